// The area of a knee on the film: a rectangle that can be dragged, resized and turned.

const COLOURS = { left: "#ff9628", right: "#46aaff" }; // as in the overlays of `kneematch detect`
const SMALLEST_PX = 4; // film pixels

export class AreaMarks {
  // `started()` is called when a drag begins, and `changed(area)` while the area is dragged.
  constructor(view, { started, changed }) {
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
    this.rect.on("dragstart transformstart", started);
    this.rect.on("dragmove transform", () => changed(this.#read()));
    this.rect.on("pointerdown", ({ evt }) => this.rect.draggable(evt.button === 0 && !evt.altKey));
    view.marks.add(this.rect);
    view.markLayer.add(this.handles);
    view.marks.on("xChange yChange scaleXChange", () => this.handles.forceUpdate());
  }

  // Shows the area of a knee, or none.
  set(knee) {
    this.rect.visible(Boolean(knee));
    if (knee) {
      const { centre_x_px: x, centre_y_px: y, width_px: width, height_px: height, rotation_deg: rotation } = knee;
      const offset = { offsetX: width / 2, offsetY: height / 2 };
      this.rect.setAttrs({ x, y, width, height, ...offset, rotation, scaleX: 1, scaleY: 1 });
      this.rect.stroke(COLOURS[knee.side.split("-")[0]]);
      this.handles.anchorStroke(COLOURS[knee.side.split("-")[0]]);
    }
    this.handles.nodes(knee ? [this.rect] : []);
    this.handles.forceUpdate();
  }

  #read() {
    const { rect } = this;
    const factor = rect.scaleX();
    return {
      centre_x_px: rect.x(),
      centre_y_px: rect.y(),
      width_px: Math.max(SMALLEST_PX, rect.width() * factor),
      height_px: rect.height() * factor,
      rotation_deg: rect.rotation(),
    };
  }
}
