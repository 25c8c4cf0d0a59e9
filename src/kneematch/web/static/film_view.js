// A film with zoom, pan, brightness and contrast, and marks on it in film pixels.

import { debounce } from "./server.js";

const ZOOM_STEP = 1.2;
const MAX_ZOOM = 12; // screen pixels per film pixel
const MARGIN_PX = 14; // around the film when it fits the window
const CLICK_PX = 3; // a shorter drag is a click
const TONE_MS = 150; // without a change of tone, until the film is shown anew in its own depth
const DEFAULT_TONE = { brightness: 1, contrast: 1, inverted: false };

export const tenth = (value) => Math.round(value * 10) / 10;
const between = (value, low, high) => Math.min(Math.max(value, low), high);

// Returns the greys that are shown as black and white, as shares of the usual window.
function windowOf({ brightness, contrast, inverted }) {
  const ends = [-0.5, 0.5].map((half) => (0.5 + half / contrast) / brightness);
  return inverted ? [1 - ends[1], 1 - ends[0]] : ends;
}

export class FilmView {
  changed = () => {}; // called when position, zoom or tone have changed

  constructor(container) {
    this.container = container;
    this.stage = new Konva.Stage({ container, width: 10, height: 10 });
    this.filmLayer = new Konva.Layer({ listening: false });
    this.markLayer = new Konva.Layer();
    this.stage.add(this.filmLayer, this.markLayer);
    this.film = new Konva.Group();
    this.marks = new Konva.Group(); // same position and scale as the film
    this.filmLayer.add(this.film);
    this.markLayer.add(this.marks);
    this.size = { width: 1, height: 1 };
    this.tone = { ...DEFAULT_TONE };
    this.drawn = null; // called with the next box that is drawn
    this.fitted = true;
    this.#listen();
  }

  // Loads a film and shows it, unless another one was asked for meanwhile.
  async show(address, width, height) {
    const image = new Image();
    this.awaited = image;
    image.src = address;
    await image.decode();
    if (this.awaited !== image) return;
    this.size = { width, height };
    this.image = image;
    this.film.destroyChildren();
    this.film.add(new Konva.Image({ image, width, height }));
    this.setTone({});
    this.fit();
    this.filmLayer.draw();
    this.container.dataset.ready = "yes";
  }

  get scale() {
    return this.film.scaleX();
  }

  fit() {
    const { clientWidth, clientHeight } = this.container;
    const { width, height } = this.size;
    const room = [clientWidth - 2 * MARGIN_PX, clientHeight - 2 * MARGIN_PX];
    const scale = Math.max(Math.min(room[0] / width, room[1] / height), 0.01);
    this.#place((clientWidth - scale * width) / 2, (clientHeight - scale * height) / 2, scale);
    this.fitted = true;
  }

  // Zooms to a rectangle of the film, with a margin.
  fitBox([x0, y0, x1, y1], margin) {
    const { clientWidth, clientHeight } = this.container;
    const wanted = Math.min(clientWidth / (x1 - x0), clientHeight / (y1 - y0)) / margin;
    const scale = between(wanted, 0.01, MAX_ZOOM);
    const x = clientWidth / 2 - (scale * (x0 + x1)) / 2;
    this.#place(x, clientHeight / 2 - (scale * (y0 + y1)) / 2, scale);
  }

  zoom(factor, at = null) {
    const { x, y } = at ?? { x: this.stage.width() / 2, y: this.stage.height() / 2 };
    const scale = between(this.scale * factor, 0.02, MAX_ZOOM);
    const ratio = scale / this.scale;
    this.#place(x - ratio * (x - this.film.x()), y - ratio * (y - this.film.y()), scale);
  }

  setTone(tone) {
    this.tone = { ...this.tone, ...tone };
    this.tone.brightness = between(this.tone.brightness, 0.2, 4);
    this.tone.contrast = between(this.tone.contrast, 0.2, 6);
    this.#showImage(this.image, this.tone);
    delete this.container.dataset.window;
    if (this.image && (this.tone.brightness !== 1 || this.tone.contrast !== 1)) this.#rewindow(this.image, this.tone);
    this.changed();
  }

  // Shows a picture of the film, whose tone the browser changes.
  #showImage(image, { brightness, contrast, inverted }) {
    const style = this.filmLayer.getNativeCanvasElement().style;
    style.filter = `invert(${inverted ? 1 : 0}) brightness(${brightness}) contrast(${contrast})`;
    this.film.getChildren()[0]?.image(image);
  }

  // Shows the film in the window that was chosen: the server makes it from all of the film's greys,
  // of which the picture that the browser has changed meanwhile has 256.
  #rewindow = debounce(TONE_MS, async (signal, before, tone) => {
    const [low, high] = windowOf(tone);
    const image = new Image();
    image.src = `${before.src}?low=${low}&high=${high}`;
    await image.decode();
    if (this.image !== before || this.tone !== tone) return;
    this.#showImage(image, { ...DEFAULT_TONE, inverted: tone.inverted });
    this.container.dataset.window = [low, high];
  });

  resetTone() {
    this.setTone(DEFAULT_TONE);
  }

  invert() {
    this.setTone({ inverted: !this.tone.inverted });
  }

  // Makes the next drag draw a box; `done` gets [x0, y0, x1, y1] in film pixels, and if it was a click.
  drawNext(done, colour) {
    this.drawn = done;
    this.drawColour = colour;
    this.marks.listening(!done);
    this.container.classList.toggle("drawing", Boolean(done));
  }

  toFilm({ x, y }) {
    return [(x - this.film.x()) / this.scale, (y - this.film.y()) / this.scale];
  }

  #place(x, y, scale) {
    this.fitted = false;
    for (const group of [this.film, this.marks]) {
      group.position({ x, y });
      group.scale({ x: scale, y: scale });
    }
    Object.assign(this.container.dataset, { x, y, scale });
    this.changed();
  }

  #listen() {
    new ResizeObserver(() => {
      const { clientWidth: width, clientHeight: height } = this.container;
      if (!width || !height) return;
      this.stage.size({ width, height });
      if (this.fitted) this.fit();
    }).observe(this.container);
    this.container.addEventListener("contextmenu", (event) => event.preventDefault());
    this.stage.on("wheel", ({ evt }) => {
      evt.preventDefault();
      const factor = ZOOM_STEP ** between(-evt.deltaY / 60, -1.5, 1.5);
      this.zoom(factor, this.stage.getPointerPosition());
    });
    this.stage.on("pointerdown", ({ evt, target }) => {
      if (evt.button === 2 || evt.altKey) this.#follow(evt, this.#toning());
      else if (this.drawn) this.#follow(evt, ...this.#drawing());
      else if (evt.button === 1 || target === this.stage) this.#follow(evt, this.#panning());
    });
  }

  // Calls `moved` with the distance of the pointer from its start until it is released.
  #follow(start, moved, ended = () => {}) {
    start.preventDefault();
    document.activeElement?.blur();
    const distance = (event) => [event.clientX - start.clientX, event.clientY - start.clientY];
    const move = (event) => moved(...distance(event));
    const up = (event) => {
      removeEventListener("pointermove", move);
      for (const name of ["pointerup", "pointercancel"]) removeEventListener(name, up);
      ended(...distance(event));
    };
    addEventListener("pointermove", move);
    for (const name of ["pointerup", "pointercancel"]) addEventListener(name, up);
  }

  #panning() {
    const { x, y } = this.film.position();
    return (dx, dy) => this.#place(x + dx, y + dy, this.scale);
  }

  #toning() {
    const { brightness, contrast } = this.tone;
    return (dx, dy) =>
      this.setTone({ contrast: contrast * 2 ** (dx / 200), brightness: brightness * 2 ** (-dy / 200) });
  }

  #drawing() {
    const start = this.stage.getPointerPosition();
    const [x, y] = this.toFilm(start);
    const shape = new Konva.Rect({ x, y, stroke: this.drawColour, strokeWidth: 1.5 });
    shape.strokeScaleEnabled(false);
    this.marks.add(shape);
    const to = (dx, dy) => this.toFilm({ x: start.x + dx, y: start.y + dy });
    const moved = (dx, dy) => {
      const [endX, endY] = to(dx, dy);
      shape.size({ width: endX - x, height: endY - y });
    };
    const ended = (dx, dy) => {
      shape.destroy();
      const [endX, endY] = to(dx, dy);
      const click = Math.hypot(dx, dy) < CLICK_PX;
      const box = [Math.min(x, endX), Math.min(y, endY), Math.max(x, endX), Math.max(y, endY)];
      this.drawn?.(box, click);
    };
    return [moved, ended];
  }
}
