// The page on which a template is drawn.

import { BOXES, BoxMarks, nudged } from "./box_marks.js";
import { $, element, notice, onKeys, question, setUpHelp } from "./dialogs.js";
import { Drawing } from "./drawing.js";
import { FilmView } from "./film_view.js";
import { LandmarkList, freeName, renamed } from "./landmark_list.js";
import { LandmarkMarks } from "./landmark_marks.js";
import { ask, calmly, send } from "./server.js";
import { setUpTools } from "./tools.js";
import { TrialStrip } from "./trial_strip.js";

const CALM_MS = 90; // without a change, after which the server is asked
const CONFLICT = 409; // the file is there already
const HINTS = {
  box: "Drag it, pull its handles, or use the arrow keys. D draws it anew.",
  coarse: "Drawn for you around the fine box. D draws it yourself.",
  point: "Drag it, or use the arrow keys. Delete removes it.",
  drawing: "Now drag on the film, from corner to corner. Esc leaves it as it was.",
  pointing: "Now click on the film. Esc stops.",
};

const start = await ask("api/start");
const tools = setUpTools();
const view = new FilmView($("#film"), () => tools.show(view.tone));
const trial = new TrialStrip(start.trial_films);

let drawing = null; // from the first guess on
let chosen = { kind: "box", name: "fine" }; // or a "point" and its name
let usualCoarse = null; // where the coarse box lies while none is drawn
let problems = [];

const tenth = (value) => Math.round(value * 10) / 10;

function settled() {
  drawing.settle();
  show();
}

// While a landmark is dragged its mark must not be made anew.
function dragged(work) {
  drawing.drag(work);
  show({ landmarks: false });
}

const boxMarks = new BoxMarks(view, {
  changed: (name, box) => dragged((now) => (now[name] = box)),
  settled,
  chosen: (name) => choose("box", name),
});
const landmarkMarks = new LandmarkMarks(view, {
  changed: (name, point) => dragged((now) => (now.landmarks[name] = point)),
  settled,
  chosen: (name) => choose("point", name),
});
const landmarkList = new LandmarkList({
  chosen: (name) => choose("point", name),
  removed: (name) => {
    choose("point", name);
    remove();
  },
  renamed: (old, name) => {
    change((now) => (now.landmarks = renamed(now.landmarks, old, name)));
    choose("point", name);
    show();
  },
});

function change(work) {
  drawing.change(work);
  show();
}

function choose(kind, name) {
  if (!drawing) return;
  stopDrawing();
  if (chosen.kind === kind && chosen.name === name) return;
  chosen = { kind, name };
  show({ landmarks: kind === "box" });
}

function undo() {
  drawing.undo();
  if (chosen.kind === "point" && !(chosen.name in drawing.now.landmarks)) choose("box", "fine");
  show();
}

function startDrawing() {
  if (chosen.kind !== "box") return;
  const { name } = chosen;
  view.drawNext((box, click) => {
    stopDrawing();
    if (!click) change((now) => (now[name] = box.map(tenth)));
  }, BOXES[name].colour);
  showHint("drawing");
}

function startPointing() {
  view.drawNext(([x, y]) => {
    const name = freeName(drawing.now.landmarks);
    change((now) => (now.landmarks[name] = [tenth(x), tenth(y)]));
    choose("point", name);
    show();
  }, "#ffffff");
  showHint("pointing");
}

function stopDrawing() {
  view.drawNext(null);
  showHint();
}

function remove() {
  if (chosen.kind === "point") {
    const { name } = chosen;
    chosen = { kind: "box", name: "fine" };
    change((now) => delete now.landmarks[name]);
  } else if (chosen.name === "coarse") {
    change((now) => (now.coarse = null));
  }
}

function nudge(dx, dy, resize) {
  const { kind, name } = chosen;
  if (kind === "box" && !drawing.now[name]) return;
  change((now) => {
    if (kind === "box") now[name] = nudged(now[name], dx, dy, resize);
    else now.landmarks[name] = [now.landmarks[name][0] + dx, now.landmarks[name][1] + dy];
  });
}

function showHint(kind = null) {
  const usual = chosen.name === "coarse" && !drawing.now.coarse ? "coarse" : chosen.kind;
  $("#hint").textContent = HINTS[kind ?? usual];
}

function show({ landmarks = true } = {}) {
  showBoxes();
  const point = chosen.kind === "point" ? chosen.name : null;
  if (landmarks) landmarkMarks.set(drawing.now.landmarks, point);
  landmarkList.set(drawing.now.landmarks, point);
  showHint();
  check(drawing.now);
}

function showBoxes() {
  const boxes = { ...drawing.now, coarse: drawing.now.coarse ?? usualCoarse };
  const box = chosen.kind === "box" ? chosen.name : null;
  boxMarks.set(boxes, box);
  for (const button of $("#boxes").children) {
    const { name } = button.dataset;
    button.setAttribute("aria-pressed", String(name === box));
    button.classList.toggle("wrong", problems.some((problem) => problem.box === name));
  }
}

const check = calmly(CALM_MS, async (signal, asked) => {
  const { side, coarse, template, ...told } = await send("api/check", asked, signal);
  usualCoarse = coarse;
  problems = told.problems;
  showBoxes();
  const valid = problems.length === 0;
  const lines = valid
    ? [element("p", { className: "fine" }, `Good: ${side} half, ${template.size.join(" × ")} pixels`)]
    : problems.map(({ text }) => element("p", { className: "problem" }, text));
  $("#status").replaceChildren(...lines);
  $("#status").dataset.valid = valid ? "yes" : "no";
  $("#save").disabled = !valid;
  $("#try").disabled = !valid || !start.trial_films;
  $("#templates").classList.toggle("stale", !template);
  if (!template) return;
  $("#template-left").src = template.left;
  $("#template-right").src = template.right;
});

async function save(overwrite = false) {
  if ($("#save").disabled) return;
  const { text } = drawing;
  try {
    const { saved } = await send(`api/save?overwrite=${overwrite}`, drawing.now);
    drawing.saved(text);
    notice(`Saved ${saved}`);
  } catch (error) {
    if (error.status !== CONFLICT) throw error;
    const asked = `${error.message}. What it holds would be lost.`;
    if ((await question($("#replace"), asked)) === "replace") await save(true);
  }
}

function tryIt() {
  if (!$("#try").disabled) return trial.run(drawing.now);
}

function zoomToKnee() {
  if (drawing) view.fitBox(drawing.now.coarse ?? usualCoarse ?? drawing.now.fine, 1.25);
}

function addBoxButton(name, { key, colour, means }) {
  const swatch = element("i");
  swatch.style.background = colour;
  const words = element("span", {}, element("b", {}, name), ` ${means}`);
  const button = element("button", { dataset: { name } }, element("kbd", {}, key), swatch, words);
  button.addEventListener("click", () => choose("box", name));
  button.addEventListener("dblclick", startDrawing);
  $("#boxes").append(button);
  return [key, () => choose("box", name)];
}

tools.control(view);
const choices = Object.entries(BOXES).map(([name, facts]) => addBoxButton(name, facts));
const showHelp = setUpHelp();
$("#zoom-box").addEventListener("click", zoomToKnee);
$("#name").textContent = start.film;
$("#facts").textContent = `${start.size[0]} × ${start.size[1]} pixels`;
$("#target").textContent = `to ${start.template}`;
$("#try").title = start.trial_films ? `On ${start.trial_films} films (T)` : "Needs --films";
await view.show("film.jpg", ...start.size);
$("#wait").textContent = "Looking for the knee";

const guess = await ask("api/guess"); // only now, so that the film has all cores
drawing = new Drawing(guess.drawing);
$("#wait").hidden = true;
$("#add-landmark").addEventListener("click", startPointing);
$("#save").addEventListener("click", () => save());
$("#try").addEventListener("click", tryIt);
addEventListener("beforeunload", (event) => drawing.unsaved && event.preventDefault());
const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const moves = Object.entries(arrows).flatMap(([key, [dx, dy]]) => [
  [key, () => nudge(dx, dy)],
  [`Shift+${key}`, () => nudge(10 * dx, 10 * dy)],
  [`Alt+${key}`, () => nudge(dx, dy, true)],
  [`Alt+Shift+${key}`, () => nudge(10 * dx, 10 * dy, true)],
]);
onKeys({
  ...Object.fromEntries([...choices, ...moves]),
  d: startDrawing,
  l: startPointing,
  f: zoomToKnee,
  t: tryIt,
  s: () => save(),
  "Ctrl+s": () => save(),
  "Ctrl+z": undo,
  Delete: remove,
  Backspace: remove,
  Escape: () => (view.drawn ? stopDrawing() : trial.close()),
  "?": showHelp,
  ...tools.keys(view),
});
show();
document.body.dataset.ready = "yes";
if (guess.source === "middle") notice("No first guess for this film: draw the boxes", "fair");
