// Named points on a film, as crosses that can be dragged.

const ARM_PX = 9; // of the screen

const tenth = (value) => Math.round(value * 10) / 10;

export class LandmarkMarks {
  constructor(view, { changed, settled, chosen }) {
    this.view = view;
    this.told = { changed, settled, chosen };
    this.group = new Konva.Group();
    view.marks.add(this.group);
    // Crosses and names keep their size on the screen, whatever the zoom.
    view.marks.on("scaleXChange", () => this.#resize());
  }

  set(points, chosen) {
    this.group.destroyChildren();
    for (const [name, [x, y]] of Object.entries(points)) this.#add(name, x, y, name === chosen);
    this.#resize();
  }

  #add(name, x, y, isChosen) {
    const colour = isChosen ? "#ffffff" : "#d5dbe6";
    const cross = new Konva.Group({ x, y, draggable: true, name });
    const stroke = { stroke: colour, strokeWidth: isChosen ? 2 : 1.2 };
    cross.add(
      new Konva.Circle({ radius: ARM_PX, fill: "rgba(0, 0, 0, 0.001)" }),
      new Konva.Line({ points: [-ARM_PX, 0, ARM_PX, 0], ...stroke }),
      new Konva.Line({ points: [0, -ARM_PX, 0, ARM_PX], ...stroke }),
      new Konva.Text({ x: 6, y: 5, text: name, fontSize: 12, fill: colour, shadowBlur: 4, listening: false }),
    );
    cross.on("mousedown", () => this.told.chosen(name));
    cross.on("dragmove", () => this.told.changed(name, [tenth(cross.x()), tenth(cross.y())]));
    cross.on("dragend", () => this.told.settled());
    this.group.add(cross);
  }

  #resize() {
    const size = 1 / this.view.scale;
    for (const cross of this.group.getChildren()) cross.scale({ x: size, y: size });
  }
}
