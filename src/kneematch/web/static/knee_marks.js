// The marks of a knee on its card: the outline of its area, and a label with its side.

const FIELD = 1.9; // side of the square that is shown, in sides of the area
const TICK = 0.09; // length of the thick corner, in sides of the area
const LABEL_SHARE = 0.1; // room that a label needs, in sides of the square
const SVG = "http://www.w3.org/2000/svg";

const range = (values) => [Math.min(...values), Math.max(...values)];
const between = ([x0, y0], [x1, y1], share) => [x0 + share * (x1 - x0), y0 + share * (y1 - y0)];
const distance = ([x0, y0], [x1, y1]) => Math.hypot(x1 - x0, y1 - y0);

// Returns the square of the film that a card shows, [left, top, side] in film pixels.
export function shownSquare({ size: [width, height], corners }) {
  const [x, y] = corners ? between(corners[0], corners[2], 0.5) : [width / 2, height / 2];
  let side = Math.max(width, height);
  if (corners) side = FIELD * Math.max(distance(corners[0], corners[1]), distance(corners[0], corners[3]));
  const outside = x + side / 2 < 2 || y + side / 2 < 2 || x - side / 2 > width - 2 || y - side / 2 > height - 2;
  return outside ? shownSquare({ size: [width, height] }) : [x - side / 2, y - side / 2, side];
}

function line(name, points, className) {
  const shape = document.createElementNS(SVG, name);
  shape.setAttribute("points", points.map((point) => point.join(",")).join(" "));
  shape.setAttribute("class", className);
  return shape;
}

// Returns the outline and the label of a knee, for a square of the film.
export function kneeMarks({ corners, side, laterality, alone, review }, left, top, length) {
  const marks = document.createElementNS(SVG, "svg");
  marks.setAttribute("viewBox", `${left} ${top} ${length} ${length}`);
  marks.setAttribute("class", `marks ${side.split("-")[0]}${review ? " review" : ""}`);
  const tick = [between(corners[0], corners[1], TICK), corners[0], between(corners[0], corners[3], TICK)];
  const shapes = [["polygon", corners, "area"], ["polyline", tick, "tick"]];
  marks.append(...shapes.map(([name, points, kind]) => line(name, points, `${kind} shade`)));
  marks.append(...shapes.map(([name, points, kind]) => line(name, points, kind)));

  const label = document.createElement("span");
  label.className = marks.getAttribute("class").replace("marks", "label");
  const texts = [laterality || (alone ? "knee" : `image ${side}`), review && "review"];
  label.textContent = texts.filter(Boolean).join("  ");
  const [x0, x1] = range(corners.map(([x]) => (x - left) / length));
  const [y0, y1] = range(corners.map(([, y]) => (y - top) / length));
  const above = y0 > LABEL_SHARE; // else there is room below
  label.classList.toggle("below", !above);
  label.style.left = `${50 * (x0 + x1)}%`;
  label.style.top = `${100 * (above ? y0 : y1)}%`;
  return [marks, label];
}
