// The editor: one knee on its film, whose area can be moved, turned and resized.

import { $, showNotice } from "./dialogs.js";
import { FilmView } from "./film_view.js";
import { debounce, getJson, postJson } from "./server.js";
import { setUpToolbar } from "./toolbar.js";

const COLOURS = { left: "#ff9628", right: "#46aaff" }; // as in the overlays of `kneematch detect`
const DELAY_MS = 40;
const TURN_DEG = 0.25;
const RESIZE = 1.005;
const NAMES = ["centre_x_px", "centre_y_px", "width_px", "rotation_deg"];

const same = (a, b) => NAMES.every((name) => Math.abs(a[name] - b[name]) < 1e-3);

export class Editor {
  // `decide(row, state, area)` is called with the decision of the user.
  constructor({ decide, closed, step, loss }) {
    this.callbacks = { decide, closed, step };
    this.showsLoss = loss;
    this.place = $("#editor");
    this.toolbar = setUpToolbar(this.place);
    this.view = new FilmView($("#film"), () => this.toolbar.show(this.view.tone));
    this.toolbar.control(this.view);
    this.#addShapes();
    const buttons = {
      "#save-area": () => this.save(),
      "#restore": () => this.restore(),
      "#accept": () => this.decide("accepted"),
      "#reject": () => this.decide("rejected"),
      "#previous": () => this.callbacks.step(-1),
      "#next": () => this.callbacks.step(1),
      "#back": () => this.close(),
      "#zoom-box": () => this.zoomToKnee(),
    };
    for (const [name, work] of Object.entries(buttons)) $(name).addEventListener("click", work);
  }

  get open() {
    return !this.place.hidden;
  }

  async show(row) {
    this.#warn();
    const { film, side, laterality, found_loss, reasons, state } = row;
    this.row = row.row;
    this.place.hidden = false;
    delete this.place.dataset.ready;
    this.area = null;
    this.rect.visible(false);
    $("#knee-film").textContent = film;
    $("#knee-facts").textContent = `${side} half${laterality && ` (${laterality})`}, ${state}`;
    $("#knee-reasons").textContent = reasons.join("; ");
    $("#loss-found").textContent = found_loss?.toFixed(3) ?? "–";
    $("#loss-here").textContent = "–";
    let areas;
    try {
      areas = await getJson(`api/areas/${row.row}`);
      if (this.row !== row.row) return;
      if (film !== this.film) await this.view.show(`film/${row.row}`, ...areas.size);
    } catch (error) {
      this.close();
      throw error;
    }
    if (this.row !== row.row) return; // the user has moved on to another knee
    this.film = film;
    this.found = areas.found;
    this.start = areas.area;
    this.rect.stroke(COLOURS[side]);
    this.handles.anchorStroke(COLOURS[side]);
    this.#showOthers(areas.others);
    this.#set(areas.area);
    this.zoomToKnee();
    this.place.dataset.ready = row.row;
  }

  close() {
    this.#warn();
    this.place.hidden = true;
    this.row = null;
    this.callbacks.closed();
  }

  async decide(state) {
    this.area = null; // the decision is about the detected area, not the moved one
    await this.callbacks.decide(this.row, state);
    if (this.open) this.callbacks.step(1);
  }

  async save() {
    if ($("#save-area").disabled) return;
    const area = Object.fromEntries(NAMES.map((name) => [name, this.area[name]]));
    this.start = this.area;
    await this.callbacks.decide(this.row, "corrected", area);
    if (this.open) this.callbacks.step(1);
  }

  restore() {
    if (this.area) this.#set(this.found);
  }

  nudge(dx, dy) {
    if (!this.area) return;
    const { centre_x_px: x, centre_y_px: y } = this.area;
    this.#set({ ...this.area, centre_x_px: x + dx, centre_y_px: y + dy });
  }

  turn(sign) {
    if (!this.area) return;
    this.#set({ ...this.area, rotation_deg: this.area.rotation_deg + sign * TURN_DEG });
  }

  resize(sign) {
    if (!this.area) return;
    const factor = RESIZE ** sign;
    const { width_px: width, height_px: height } = this.area;
    this.#set({ ...this.area, width_px: factor * width, height_px: factor * height });
  }

  zoomToKnee() {
    if (!this.area) return;
    const { centre_x_px: x, centre_y_px: y, width_px: w, height_px: h } = this.area;
    this.view.fitBox([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 1.7);
  }

  keys() {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const moves = Object.entries(arrows).flatMap(([key, [dx, dy]]) => [
      [key, () => this.nudge(dx, dy)],
      [`Shift+${key}`, () => this.nudge(10 * dx, 10 * dy)],
    ]);
    return {
      ...Object.fromEntries(moves),
      "[": () => this.turn(-1),
      "]": () => this.turn(1),
      ",": () => this.resize(-1),
      ".": () => this.resize(1),
      r: () => this.restore(),
      f: () => this.zoomToKnee(),
      a: () => this.decide("accepted"),
      x: () => this.decide("rejected"),
      Enter: () => this.save(),
      PageUp: () => this.callbacks.step(-1),
      PageDown: () => this.callbacks.step(1),
      Escape: () => this.close(),
      ...this.toolbar.keys(this.view),
    };
  }

  // Warns that an area was moved and not saved.
  #warn() {
    if (this.area && !same(this.area, this.start)) showNotice("The moved area was not saved", "fair");
    this.area = null;
  }

  #addShapes() {
    const { view } = this;
    this.others = new Konva.Group({ listening: false, opacity: 0.45 });
    this.rect = new Konva.Rect({
      draggable: true,
      strokeScaleEnabled: false,
      strokeWidth: 2,
      fill: "rgba(0, 0, 0, 0.001)",
    });
    this.handles = new Konva.Transformer({
      nodes: [this.rect],
      enabledAnchors: ["top-left", "top-right", "bottom-left", "bottom-right"],
      keepRatio: true,
      flipEnabled: false,
      centeredScaling: false,
      ignoreStroke: true,
      borderEnabled: false,
      anchorSize: 11,
      anchorCornerRadius: 3,
      anchorFill: "#12151b",
      rotateAnchorOffset: 34,
    });
    this.rect.on("dragmove transform", () => this.#read());
    this.rect.on("mousedown", ({ evt }) => this.rect.draggable(evt.button === 0 && !evt.altKey));
    view.marks.add(this.others, this.rect);
    view.markLayer.add(this.handles);
    view.marks.on("xChange yChange scaleXChange", () => this.handles.forceUpdate());
  }

  #showOthers(outlines) {
    this.others.destroyChildren();
    for (const corners of outlines) {
      const points = corners.flat();
      this.others.add(
        new Konva.Line({ points, closed: true, stroke: "#ffffff", dash: [5, 5], strokeScaleEnabled: false }),
      );
    }
  }

  #set(area) {
    this.area = { ...area };
    const { centre_x_px: x, centre_y_px: y, width_px: width, height_px: height, rotation_deg } = area;
    const offset = { offsetX: width / 2, offsetY: height / 2 };
    this.rect.setAttrs({ x, y, width, height, ...offset, rotation: rotation_deg, scaleX: 1, scaleY: 1 });
    this.rect.visible(true);
    this.handles.forceUpdate();
    this.#changed();
  }

  // Reads the area from the rectangle after a drag.
  #read() {
    const { rect } = this;
    const factor = rect.scaleX();
    const area = {
      centre_x_px: rect.x(),
      centre_y_px: rect.y(),
      width_px: Math.max(4, rect.width() * factor),
      height_px: rect.height() * factor,
      rotation_deg: rect.rotation(),
    };
    this.area = area;
    this.#changed();
  }

  #changed() {
    const { area } = this;
    $("#save-area").disabled = same(area, this.start);
    if (this.showsLoss) this.#requestLoss(this.row, area);
  }

  #requestLoss = debounce(DELAY_MS, async (signal, row, area) => {
    const plain = Object.fromEntries(NAMES.map((name) => [name, area[name]]));
    const { loss } = await postJson(`api/loss/${row}`, plain, signal);
    $("#loss-here").textContent = loss === null ? "–" : loss.toFixed(3);
  });
}
