// The landmarks on the film, as crosses that can be dragged.

import { tenth } from "./film_view.js";

const ARM_PX = 9; // screen pixels

export class LandmarkMarks {
  constructor(view, { started = () => {}, changed, dragEnded, selected }) {
    this.view = view;
    this.callbacks = { started, changed, dragEnded, selected };
    this.group = new Konva.Group();
    view.marks.add(this.group);
    // Crosses and names have the same size on the screen at any zoom.
    view.marks.on("scaleXChange", () => this.#resize());
  }

  set(points, selected) {
    this.group.destroyChildren();
    for (const [name, [x, y]] of Object.entries(points)) this.#add(name, x, y, name === selected);
    this.#resize();
  }

  #add(name, x, y, isSelected) {
    const colour = isSelected ? "#ffffff" : "#d5dbe6";
    const cross = new Konva.Group({ x, y, draggable: true, name });
    const stroke = { stroke: colour, strokeWidth: isSelected ? 2 : 1.2 };
    cross.add(
      new Konva.Circle({ radius: ARM_PX, fill: "rgba(0, 0, 0, 0.001)" }),
      new Konva.Line({ points: [-ARM_PX, 0, ARM_PX, 0], ...stroke }),
      new Konva.Line({ points: [0, -ARM_PX, 0, ARM_PX], ...stroke }),
      new Konva.Text({ x: 6, y: 5, text: name.replaceAll("_", " "), fontSize: 12, fill: colour, shadowBlur: 4, listening: false }),
    );
    cross.on("pointerdown", () => this.callbacks.selected(name));
    cross.on("dragstart", () => this.callbacks.started());
    cross.on("dragmove", () => this.callbacks.changed(name, [tenth(cross.x()), tenth(cross.y())]));
    cross.on("dragend", () => this.callbacks.dragEnded());
    this.group.add(cross);
  }

  #resize() {
    const size = 1 / this.view.scale;
    for (const cross of this.group.getChildren()) cross.scale({ x: size, y: size });
  }
}
