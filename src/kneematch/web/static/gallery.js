// A grid of cards of which only those in sight exist, however many there are.

import { $, element, notice } from "./dialogs.js";
import { ask, calmly } from "./server.js";

const GAP_PX = 10;
const SPARE_ROWS = 1; // above and below what is in sight
const CALM_MS = 25; // of scrolling, after which rows are asked for
const KEPT = 4000; // rows in memory

export class Gallery {
  // `opened(row)` is called when a card is to be looked at closely.
  constructor(opened) {
    this.place = $("#gallery");
    this.room = $("#room");
    this.opened = opened;
    this.order = []; // rows, as the server has sorted them
    this.at = 0; // the place of the chosen one
    this.known = new Map(); // what the server has told of rows
    this.cards = new Map(); // by place
    this.place.addEventListener("scroll", () => this.#render());
    new ResizeObserver(() => this.#layOut()).observe(this.place);
    this.#fetch = calmly(CALM_MS, (signal, rows) => this.#ask(signal, rows));
  }

  #fetch;

  get row() {
    return this.order[this.at];
  }

  setOrder(order, at) {
    this.order = order;
    this.at = Math.max(0, Math.min(at, order.length - 1));
    $("#none")?.remove();
    if (!order.length) this.place.append(element("p", { id: "none" }, "No knee is like that."));
    this.#layOut();
    this.goTo(this.at);
  }

  goTo(at) {
    this.at = Math.max(0, Math.min(at, this.order.length - 1));
    const top = Math.floor(this.at / this.columns) * this.height;
    const { scrollTop, clientHeight } = this.place;
    if (top < scrollTop) this.place.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) {
      this.place.scrollTop = top + this.height + GAP_PX - clientHeight;
    }
    this.#render();
  }

  move(columns, rows = 0) {
    this.goTo(this.at + columns + rows * this.columns);
  }

  page(sign) {
    this.move(0, sign * Math.max(1, Math.floor(this.place.clientHeight / this.height)));
  }

  // The first undecided knee from the chosen one on; it may be far away, so the server is asked.
  async nextUndecided() {
    for (let start = this.at + 1; start < this.order.length; start += 200) {
      const rows = this.order.slice(start, start + 200);
      await this.#ask(undefined, rows.filter((row) => !this.known.has(row)));
      const found = rows.findIndex((row) => this.known.get(row).state === "undecided");
      if (found >= 0) return this.goTo(start + found);
    }
    notice("Nothing undecided from here on");
  }

  update(told) {
    this.known.set(told.row, told);
    for (const card of this.cards.values()) if (card.row === told.row) this.#fill(card);
  }

  #layOut() {
    const probe = element("div", { className: "card" });
    this.room.append(probe);
    const { width } = probe.getBoundingClientRect();
    probe.remove();
    const font = parseFloat(getComputedStyle(this.place).fontSize);
    this.cardHeight = width + 3 * font;
    this.width = width + GAP_PX;
    this.height = this.cardHeight + GAP_PX;
    this.columns = Math.max(1, Math.floor((this.place.clientWidth - GAP_PX) / this.width));
    this.room.style.width = `${this.columns * this.width - GAP_PX}px`;
    this.room.style.height = `${Math.ceil(this.order.length / this.columns) * this.height + GAP_PX}px`;
    for (const card of this.cards.values()) card.remove();
    this.cards.clear();
    this.#render();
  }

  #render() {
    const { scrollTop, clientHeight } = this.place;
    const first = Math.max(0, Math.floor(scrollTop / this.height) - SPARE_ROWS) * this.columns;
    const rows = Math.ceil(clientHeight / this.height) + 1 + 2 * SPARE_ROWS;
    const end = Math.min(first + rows * this.columns, this.order.length);
    for (const [place, card] of this.cards) {
      if (place >= first && place < end) continue;
      card.remove();
      this.cards.delete(place);
    }
    for (let place = first; place < end; place += 1) {
      if (!this.cards.has(place)) this.#addCard(place);
      this.cards.get(place).classList.toggle("at", place === this.at);
    }
    const missing = this.order.slice(first, end).filter((row) => !this.known.has(row));
    if (missing.length) this.#fetch(missing);
  }

  async #ask(signal, rows) {
    if (!rows.length) return;
    if (this.known.size > KEPT) this.known.clear();
    const told = await ask(`api/rows?wanted=${rows.join(",")}`, { signal });
    for (const row of told) this.known.set(row.row, row);
    for (const card of this.cards.values()) if (!card.filled) this.#fill(card);
    if (rows.length) this.#render();
  }

  #addCard(place) {
    const card = element("div", { className: "card" });
    card.row = this.order[place];
    card.style.left = `${(place % this.columns) * this.width}px`;
    card.style.top = `${Math.floor(place / this.columns) * this.height + GAP_PX}px`;
    card.style.height = `${this.cardHeight}px`;
    card.addEventListener("click", () => this.goTo(place));
    card.addEventListener("dblclick", () => this.opened(card.row));
    this.cards.set(place, card);
    this.room.append(card);
    this.#fill(card);
  }

  #fill(card) {
    const told = this.known.get(card.row);
    if (!told) return;
    card.filled = true;
    card.dataset.row = told.row;
    card.classList.remove("undecided", "accepted", "rejected", "corrected");
    card.classList.add(told.state);
    card.replaceChildren(
      this.#picture(told, card.querySelector("img")),
      element(
        "div",
        { className: "line" },
        element("span", { className: "film", title: told.film }, told.film.split(/[\\/]/).pop()),
        element("span", {}, `${told.side} ${told.loss?.toFixed(2) ?? ""}`),
      ),
      element("div", { className: "reasons", title: told.reasons.join("; ") }, told.reasons.join("; ")),
    );
  }

  #picture(told, before) {
    const frame = element("div", { className: "picture" });
    const address = `thumbnail/${told.row}/${told.key}`;
    const image = before?.dataset.key === told.key ? before : new Image();
    if (image !== before) {
      image.dataset.key = told.key;
      image.alt = `${told.side} half of ${told.film}`;
      image.addEventListener("error", () => frame.replaceChildren(element("p", {}, "The film cannot be read")));
      image.src = address;
    }
    frame.append(image);
    if (told.state !== "undecided") frame.append(element("span", { className: "badge" }, told.state));
    return frame;
  }
}
