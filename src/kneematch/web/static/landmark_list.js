// The list of landmarks, which can be renamed and removed.

import { $, element, showNotice } from "./dialogs.js";

const NAME = /^[A-Za-z0-9_-]{1,40}$/;

// Returns a copy with one landmark renamed, in the same order.
export function renamed(points, old, name) {
  const entries = Object.entries(points);
  return Object.fromEntries(entries.map(([known, point]) => [known === old ? name : known, point]));
}

export function freeName(points) {
  let count = 1;
  while (`point_${count}` in points) count += 1;
  return `point_${count}`;
}

export class LandmarkList {
  constructor({ selected, removed, renamed }) {
    this.callbacks = { selected, removed, renamed };
    this.place = $("#landmarks");
  }

  set(points, selected) {
    if (document.activeElement.matches("#landmarks input")) return; // a name is being typed
    this.points = points;
    this.place.replaceChildren(...Object.keys(points).map((name) => this.#row(name, name === selected)));
  }

  #row(name, isSelected) {
    const input = element("input", { value: name, maxLength: 40, spellcheck: false, ariaLabel: "Name" });
    input.addEventListener("focus", () => this.callbacks.selected(name));
    input.addEventListener("change", () => this.#rename(name, input));
    input.addEventListener("keydown", ({ key }) => key === "Enter" && input.blur());
    const button = element("button", { title: `Remove ${name}`, textContent: "×" });
    button.addEventListener("click", () => this.callbacks.removed(name));
    return element("div", { className: isSelected ? "selected" : "" }, "✛", input, button);
  }

  #rename(old, input) {
    const name = input.value.trim();
    if (name === old) return;
    if (NAME.test(name) && !(name in this.points)) return this.callbacks.renamed(old, name);
    input.value = old;
    showNotice("Use letters, digits, - and _, and a name that is not in use", "bad");
  }
}
