// The landmarks of a template as a list of names that can be changed.

import { $, element, notice } from "./dialogs.js";

const NAME = /^[A-Za-z0-9_-]{1,40}$/;

// A copy in which one name is another, in the same place.
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
  constructor({ chosen, removed, renamed }) {
    this.told = { chosen, removed, renamed };
    this.place = $("#landmarks");
  }

  set(points, chosen) {
    if (document.activeElement.matches("#landmarks input")) return; // a name is being typed
    this.points = points;
    this.place.replaceChildren(...Object.keys(points).map((name) => this.#row(name, name === chosen)));
  }

  #row(name, isChosen) {
    const input = element("input", { value: name, maxLength: 40, spellcheck: false, ariaLabel: "Name" });
    input.addEventListener("focus", () => this.told.chosen(name));
    input.addEventListener("change", () => this.#rename(name, input));
    input.addEventListener("keydown", ({ key }) => key === "Enter" && input.blur());
    const button = element("button", { title: `Remove ${name}`, textContent: "×" });
    button.addEventListener("click", () => this.told.removed(name));
    return element("div", { className: isChosen ? "chosen" : "" }, "✛", input, button);
  }

  #rename(old, input) {
    const name = input.value.trim();
    if (name === old) return;
    if (NAME.test(name) && !(name in this.points)) return this.told.renamed(old, name);
    input.value = old;
    notice("A name is letters, digits, - and _, and not taken", "bad");
  }
}
