// The gallery: a grid of cards of which only the visible ones are in the document.

import { $, element, say, showNotice } from "./dialogs.js";
import { kneeMarks, shownSquare } from "./knee_marks.js";
import { debounce, getJson } from "./server.js";

const GAP_PX = 10;
const SPARE_ROWS = 1; // above and below the visible part
const DELAY_MS = 25; // after scrolling, before rows are requested
const MAX_CACHED = 4000; // rows in memory

export class Gallery {
  // `opened(row)` is called when the selected card is clicked.
  constructor(opened) {
    this.place = $("#gallery");
    this.room = $("#room");
    this.opened = opened;
    this.order = []; // keys of rows, sorted by the server
    this.at = 0; // index of the selected row in `order`
    this.known = new Map(); // content of cards, by row
    this.cards = new Map(); // by index in `order`
    this.place.addEventListener("scroll", () => this.#render());
    new ResizeObserver(() => this.#layOut()).observe(this.place);
    this.#fetch = debounce(DELAY_MS, (signal, rows) => this.#load(signal, rows));
  }

  #fetch;

  get row() {
    return this.order[this.at];
  }

  // Whether other knees are about to be shown: until then, keys and clicks would hit knees that go away.
  get busy() {
    return this.place.ariaBusy === "true";
  }

  set busy(busy) {
    this.place.ariaBusy = String(busy);
  }

  setOrder(order, at) {
    this.order = order;
    this.at = Math.max(0, Math.min(at, order.length - 1));
    $("#none")?.remove();
    if (!order.length) this.place.append(element("p", { id: "none" }, say("No knee matches these filters.")));
    this.#layOut();
    this.goTo(this.at);
  }

  // Inserts a row behind the selected one.
  insert(row) {
    this.order.splice(this.at + 1, 0, row);
    this.#layOut();
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

  // Goes to the next undecided knee; rows that are not known yet are requested.
  async nextUndecided() {
    const { order } = this;
    for (let start = this.at + 1; start < order.length; start += 200) {
      const rows = order.slice(start, start + 200);
      await this.#load(undefined, rows);
      if (order !== this.order) return; // other knees are shown by now
      const found = rows.findIndex((row) => this.known.get(row)?.state === "undecided");
      if (found >= 0) return this.goTo(start + found);
    }
    showNotice(say("No undecided knee after this one"));
  }

  update(knee) {
    this.known.set(knee.row, knee);
    for (const card of this.cards.values()) if (card.row === knee.row) this.#fill(card);
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
    const rowsShown = this.order.slice(first, end);
    if (rowsShown.some((row) => !this.known.has(row))) this.#fetch(rowsShown);
  }

  // Requests those of the rows that are not known.
  async #load(signal, rows) {
    if (this.known.size > MAX_CACHED) this.known.clear();
    const missing = rows.filter((row) => !this.known.has(row));
    if (!missing.length) return;
    const knees = await getJson(`api/rows?numbers=${missing.join(",")}`, { signal });
    for (const knee of knees) this.known.set(knee.row, knee);
    for (const card of this.cards.values()) if (!card.filled) this.#fill(card);
    this.#render();
  }

  #addCard(place) {
    const card = element("div", { className: "card" });
    card.row = this.order[place];
    card.style.left = `${(place % this.columns) * this.width}px`;
    card.style.top = `${Math.floor(place / this.columns) * this.height + GAP_PX}px`;
    card.style.height = `${this.cardHeight}px`;
    // A click selects a card, and opens the selected one: so does a double click, or a second tap.
    card.addEventListener("click", () => (place === this.at ? this.opened(card.row) : this.goTo(place)));
    this.cards.set(place, card);
    this.room.append(card);
    this.#fill(card);
  }

  #fill(card) {
    const knee = this.known.get(card.row);
    if (!knee) return;
    card.filled = true;
    card.dataset.row = knee.row;
    card.classList.remove("undecided", "accepted", "rejected", "corrected", "no_knee");
    card.classList.add(knee.state);
    card.replaceChildren(
      this.#picture(knee, card.querySelector("img")),
      element(
        "div",
        { className: "line" },
        element("span", { className: "film", title: knee.film }, element("bdi", {}, knee.name)),
        element("span", {}, knee.grade && `grade ${knee.grade}`),
      ),
      element("div", { className: "reasons", title: knee.reasons.join("; ") }, knee.reasons.join("; ")),
    );
  }

  #picture(knee, before) {
    const frame = element("div", { className: "picture" });
    const [left, top, side] = shownSquare(knee);
    const share = (length) => `${(100 * length) / side}%`; // of the square
    const image = before?.dataset.film === String(knee.picture) ? before : new Image();
    image.onerror = () => frame.replaceChildren(element("p", {}, "The film cannot be read"));
    if (image !== before) {
      image.dataset.film = knee.picture;
      image.src = `thumbnail/${knee.picture}`;
    }
    image.alt = knee.side ? `${knee.knee} of ${knee.film}` : knee.film;
    const [width, height] = knee.size;
    Object.assign(image.style, { left: share(-left), top: share(-top), width: share(width), height: share(height) });
    const square = element("div", { className: "square" }, image);
    if (knee.corners) square.append(...kneeMarks(knee, left, top, side));
    frame.append(square);
    if (!["undecided", "no_knee"].includes(knee.state)) frame.append(element("span", { className: "badge" }, knee.state));
    return frame;
  }
}
