// The boxes of a template on a film, which are dragged, resized by handles or moved by keys.

import { tenth } from "./film_view.js";

export const BOXES = {
  fine: { colour: "#ffd166", key: "1", meaning: "the joint area" },
  red: { colour: "#ff5c5c", key: "2", meaning: "one outer border" },
  green: { colour: "#5cdc82", key: "3", meaning: "the other outer border" },
  coarse: { colour: "#8fb8ff", key: "4", meaning: "around the fine box" },
};
const INNER_FIRST = ["red", "green", "fine", "coarse"]; // which box a click selects where they overlap
const SMALLEST_PX = 3; // film pixels

export class BoxMarks {
  // `changed(name, box)` is called while a box is moved, `dragEnded()` when it is released.
  constructor(view, { changed, dragEnded, selected }) {
    this.view = view;
    this.callbacks = { changed, dragEnded, selected };
    this.shapes = {};
    this.handles = new Konva.Transformer({
      rotateEnabled: false,
      keepRatio: false,
      ignoreStroke: true,
      flipEnabled: false,
      anchorSize: 9,
      anchorCornerRadius: 2,
      anchorFill: "#12151b",
      borderEnabled: false,
    });
    for (const name of [...INNER_FIRST].reverse()) this.#add(name);
    view.markLayer.add(this.handles);
    view.marks.on("xChange yChange scaleXChange", () => this.handles.forceUpdate());
  }

  set(boxes, selected) {
    for (const [name, shape] of Object.entries(this.shapes)) {
      const box = boxes[name];
      shape.visible(Boolean(box));
      if (!box) continue;
      const [x, y, right, bottom] = box;
      shape.setAttrs({ x, y, width: right - x, height: bottom - y, scaleX: 1, scaleY: 1 });
      shape.strokeWidth(name === selected ? 2.5 : 1.5);
      shape.opacity(name === "coarse" && name !== selected ? 0.65 : 1);
    }
    const shape = this.shapes[selected];
    this.handles.anchorStroke(BOXES[selected]?.colour ?? "white");
    this.handles.nodes(shape?.visible() ? [shape] : []);
  }

  #add(name) {
    const shape = new Konva.Rect({
      name,
      stroke: BOXES[name].colour,
      strokeScaleEnabled: false,
      dash: name === "coarse" ? [6, 5] : undefined,
      draggable: true,
      hitStrokeWidth: 10,
      // Inside the coarse box the mouse pans the film; only its border drags it.
      fillEnabled: name !== "coarse",
      fill: "rgba(0, 0, 0, 0.001)",
    });
    shape.on("pointerdown", ({ evt }) => {
      shape.draggable(evt.button === 0 && !evt.altKey);
      if (shape.draggable()) this.callbacks.selected(name);
    });
    shape.on("mouseenter", () => (this.view.container.style.cursor = "move"));
    shape.on("mouseleave", () => (this.view.container.style.cursor = ""));
    shape.on("dragmove transform", () => this.callbacks.changed(name, this.#read(shape)));
    shape.on("dragend transformend", () => this.callbacks.dragEnded());
    this.shapes[name] = shape;
    this.view.marks.add(shape);
  }

  #read(shape) {
    const { x, y } = shape.position();
    const width = Math.max(shape.width() * shape.scaleX(), SMALLEST_PX);
    const height = Math.max(shape.height() * shape.scaleY(), SMALLEST_PX);
    return [x, y, x + width, y + height].map(tenth);
  }
}

// A box moved by whole film pixels, or with its lower right corner moved.
export function nudged([x0, y0, x1, y1], dx, dy, resize) {
  const start = resize ? [x0, y0] : [x0 + dx, y0 + dy];
  return [...start, Math.max(x1 + dx, start[0] + SMALLEST_PX), Math.max(y1 + dy, start[1] + SMALLEST_PX)];
}
