// Questions, help and short notices.

export const $ = (selector, root = document) => root.querySelector(selector);

// An element with properties and content; text is never taken for markup.
export function element(kind, properties = {}, ...content) {
  const made = document.createElement(kind);
  const { dataset, ...plain } = properties;
  Object.assign(made, plain);
  Object.assign(made.dataset, dataset);
  made.append(...content);
  return made;
}

// Asks with the buttons of a <dialog>; resolves to the value of the one that was pressed.
export function question(dialog, text) {
  $("p", dialog).textContent = text;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

let fading = 0;

export function notice(text, kind = "good") {
  const place = $("#notice");
  place.textContent = text;
  place.className = `shown ${kind}`;
  clearTimeout(fading);
  fading = setTimeout(() => (place.className = ""), kind === "bad" ? 8000 : 3500);
}

// Problems that nobody caught are shown, not lost.
addEventListener("unhandledrejection", ({ reason }) => notice(reason.message, "bad"));

const typing = (target) => target.matches?.("input:not([type=range]), select, textarea");

// Keys by name, such as "a", "Shift+ArrowLeft" or "Ctrl+z"; letters in either case.
export function onKeys(keys) {
  addEventListener("keydown", (event) => {
    if (typing(event.target) || $("dialog[open]")) return;
    const letter = event.key.length === 1;
    const parts = [
      event.ctrlKey || event.metaKey ? "Ctrl+" : "",
      event.altKey ? "Alt+" : "",
      event.shiftKey && !letter ? "Shift+" : "",
      letter ? event.key.toLowerCase() : event.key,
    ];
    const action = keys[parts.join("")];
    // A button that has the focus is pressed by Enter and Space, as always.
    if (!action || (event.target.matches?.("button") && [" ", "Enter"].includes(event.key))) return;
    event.preventDefault();
    action(event);
  });
}

export function setUpHelp() {
  const help = $("#help");
  $("#show-help").addEventListener("click", () => help.showModal());
  help.addEventListener("click", ({ target }) => target === help && help.close());
  return () => help.showModal();
}
