// Dialogs, help, notices and keyboard shortcuts.

export const $ = (selector, root = document) => root.querySelector(selector);

// Creates an element with properties and content; text is never parsed as HTML.
export function element(kind, properties = {}, ...content) {
  const created = document.createElement(kind);
  const { dataset, ...plain } = properties;
  Object.assign(created, plain);
  Object.assign(created.dataset, dataset);
  created.append(...content);
  return created;
}

// Shows a <dialog> with a text; resolves to the value of the button that was pressed.
export function showDialog(dialog, text) {
  $("p", dialog).textContent = text;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

let ofKnees = true; // else the run looked for other areas

// Returns a text about knees as one about what the run looked for.
export function say(text) {
  if (ofKnees) return text;
  return text
    .replace(/\ba knee(?=s?\b)/g, "an area")
    .replace(/\bknee(?=s?\b)/g, "area")
    .replace(/\bKnee(?=s?\b)/g, "Area");
}

// Has all texts of the page speak of areas instead of knees.
export function speakOfAreas() {
  ofKnees = false;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = say(texts.currentNode.data);
  for (const name of ["title", "aria-label"]) {
    for (const each of document.querySelectorAll(`[${name}]`)) each.setAttribute(name, say(each.getAttribute(name)));
  }
}

let noticeTimer = 0;

export function showNotice(text, kind = "good") {
  const place = $("#notice");
  place.textContent = text;
  place.className = `shown ${kind}`;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => (place.className = ""), kind === "bad" ? 8000 : 3500);
}

// Shows errors that were not caught.
addEventListener("unhandledrejection", ({ reason }) => showNotice(reason.message, "bad"));

const isTextInput = (target) => target.matches?.("input:not([type=range]), select, textarea");

// Binds actions to keys such as "a", "Shift+ArrowLeft", "Ctrl+z" or "Ctrl+Shift+z"; letters in either case.
export function bindKeys(keys) {
  addEventListener("keydown", (event) => {
    if (isTextInput(event.target) || $("dialog[open]")) return;
    const letter = event.key.length === 1;
    const command = event.ctrlKey || event.metaKey;
    const parts = [
      command ? "Ctrl+" : "",
      event.altKey ? "Alt+" : "",
      event.shiftKey && (command || !letter) ? "Shift+" : "",
      letter ? event.key.toLowerCase() : event.key,
    ];
    const action = keys[parts.join("")];
    // Enter and Space press the button that has the focus.
    if (!action || (event.target.matches?.("button") && [" ", "Enter"].includes(event.key))) return;
    event.preventDefault();
    action(event);
  });
}

// Returns keys that call `move` with a step of one film pixel, or of ten with Shift.
export function arrowKeys(move, modifier = "") {
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const keys = Object.entries(arrows).flatMap(([key, [dx, dy]]) => [
    [`${modifier}${key}`, () => move(dx, dy)],
    [`${modifier}Shift+${key}`, () => move(10 * dx, 10 * dy)],
  ]);
  return Object.fromEntries(keys);
}

export function setUpHelp() {
  const help = $("#help");
  $("#show-help").addEventListener("click", () => help.showModal());
  help.addEventListener("click", ({ target }) => target === help && help.close());
  return () => help.showModal();
}
