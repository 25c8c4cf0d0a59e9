// The borders of femur and tibia on the film, whose handles can be dragged.

const COLOURS = { femur: "#ffd84d", tibia: "#5fe0a0" };
const HANDLES = 13; // of each border
const SPREAD = 0.05; // of a border: standard deviation of the part that follows a handle up or down
const REACH = 0.25; // of a border: the part that follows a margin sideways
const RADIUS_PX = 5; // screen pixels
const WIDTH_COLOUR = "#ffffff";
const LABEL_PX = 26; // screen pixels from the joint space, which it leaves free, up to the text of a width

const thousandth = (value) => Math.round(value * 1000) / 1000;

// Returns a border after its point `at` was moved by (dx, dy).
// Points move across the plateau, whose direction is `along`, so that they keep their order; only
// the border's ends move along it, too.
function bent(border, at, [dx, dy], along) {
  const last = border.length - 1;
  const [ax, ay] = along;
  const isEnd = at === 0 || at === last;
  const most = 0.8 * REACH * Math.hypot(border[last][0] - border[0][0], border[last][1] - border[0][1]);
  const sideways = isEnd ? Math.min(Math.max(dx * ax + dy * ay, -most), most) : 0;
  const across = dy * ax - dx * ay;
  return border.map(([x, y], k) => {
    const distance = Math.abs(k - at) / last;
    const up = across * Math.exp(-((distance / SPREAD) ** 2) / 2);
    const side = sideways * Math.max(0, 1 - distance / REACH);
    return [thousandth(x + side * ax - up * ay), thousandth(y + side * ay + up * ax)];
  });
}

export class OutlineMarks {
  // `changed(borders)` is called while a handle is dragged.
  constructor(view, { started, changed, dragEnded }) {
    this.view = view;
    this.callbacks = { started, changed, dragEnded };
    this.lines = new Konva.Group({ listening: false });
    this.widths = new Konva.Group({ listening: false });
    this.handles = new Konva.Group({ visible: false });
    view.marks.add(this.lines, this.widths, this.handles);
    view.marks.on("scaleXChange", () => this.#resize()); // handles have the same size at any zoom
  }

  // Shows borders { femur, tibia }, or none; with handles to edit them.
  set(borders, editing) {
    this.borders = borders;
    this.lines.destroyChildren();
    this.handles.destroyChildren();
    this.handles.visible(Boolean(borders) && editing);
    for (const [name, stroke] of borders ? Object.entries(COLOURS) : []) {
      const shape = { points: borders[name].flat(), stroke, strokeWidth: 1.3, strokeScaleEnabled: false };
      this.lines.add(new Konva.Line({ ...shape, name }));
      if (editing) for (let k = 0; k < HANDLES; k += 1) this.#addHandle(name, k, stroke);
    }
    this.#resize();
  }

  // Shows measured widths as lines between the borders, each with its text beside it.
  setWidths(widths) {
    this.widths.destroyChildren();
    for (const { ends, text } of widths) {
      const [x, y] = ends[0];
      const look = { stroke: WIDTH_COLOUR, strokeWidth: 2, strokeScaleEnabled: false };
      const label = new Konva.Label({ x, y, name: "width" });
      label.add(
        new Konva.Tag({ fill: "rgba(18, 21, 27, 0.75)", cornerRadius: 4, pointerDirection: "down", pointerWidth: 6, pointerHeight: LABEL_PX }),
        new Konva.Text({ text, fontSize: 13, fontStyle: "bold", padding: 4, fill: WIDTH_COLOUR }),
      );
      this.widths.add(new Konva.Line({ points: ends.flat(), ...look }), label);
    }
    this.#resize();
  }

  #indexOf(name, k) {
    return Math.round((k * (this.borders[name].length - 1)) / (HANDLES - 1));
  }

  #addHandle(name, k, stroke) {
    const at = this.#indexOf(name, k);
    const [x, y] = this.borders[name][at];
    const look = { radius: RADIUS_PX, stroke, strokeWidth: 1.5, fill: "rgba(18, 21, 27, 0.6)", hitStrokeWidth: 12 };
    const handle = new Konva.Circle({ x, y, draggable: true, name: `${name} ${at}`, ...look });
    handle.on("dragstart", () => {
      this.before = this.borders;
      this.callbacks.started();
    });
    handle.on("dragmove", () => this.#drag(handle, name, at));
    handle.on("dragend", () => this.callbacks.dragEnded());
    handle.on("pointerdown", ({ evt }) => handle.draggable(evt.button === 0 && !evt.altKey));
    this.handles.add(handle);
  }

  #drag(handle, name, at) {
    const before = this.before[name];
    const [[x0, y0], [x1, y1]] = [this.before.tibia[0], this.before.tibia.at(-1)];
    const width = Math.hypot(x1 - x0, y1 - y0);
    const move = [handle.x() - before[at][0], handle.y() - before[at][1]];
    const border = bent(before, at, move, [(x1 - x0) / width, (y1 - y0) / width]);
    this.borders = { ...this.before, [name]: border };
    for (const line of this.lines.getChildren()) line.points(this.borders[line.name()].flat());
    for (const other of this.handles.getChildren()) {
      const [border, index] = other.name().split(" ");
      const [x, y] = this.borders[border][index];
      other.position({ x, y });
    }
    this.callbacks.changed(this.borders);
  }

  #resize() {
    const size = 1 / this.view.scale;
    for (const mark of [...this.handles.getChildren(), ...this.widths.find(".width")]) mark.scale({ x: size, y: size });
  }
}
