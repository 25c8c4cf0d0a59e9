// The annotation page: draw the boxes of a template on a film.

import { BOXES, BoxMarks, nudged } from "./box_marks.js";
import { $, arrowKeys, bindKeys, element, setUpHelp, showDialog, showNotice } from "./dialogs.js";
import { Drawing } from "./drawing.js";
import { FilmView, tenth } from "./film_view.js";
import { LandmarkList, freeName, renamed } from "./landmark_list.js";
import { LandmarkMarks } from "./landmark_marks.js";
import { PreviewStrip } from "./preview_strip.js";
import { debounce, getJson, postJson } from "./server.js";
import { setUpToolbar } from "./toolbar.js";

const DELAY_MS = 90; // after a change, before the server checks the boxes
const ALL = "all"; // selects all boxes, to move them together
const MOVE_ALL = { colour: "transparent", key: "5", meaning: "move all together" };
const CONFLICT = 409; // the file exists already
const HINTS = {
  box: "Drag the box or its handles, or use the arrow keys. D draws it again.",
  coarse: "Placed automatically around the fine box. Press D to draw it yourself.",
  all: "Drag any box, or use the arrow keys, to move all boxes and landmarks together.",
  point: "Drag the point or use the arrow keys. Delete removes it.",
  drawing: "Drag on the film from corner to corner. Esc cancels.",
  pointing: "Click on the film. Esc cancels.",
};

const start = await getJson("api/start");
const view = new FilmView($("#film"));
const toolbarKeys = setUpToolbar(view, zoomToKnee);
const preview = new PreviewStrip(start.preview_films);

let drawing = null; // until the initial annotation is there
let selected = { kind: "box", name: "fine" }; // or a "point" and its name
let defaultCoarse = null; // the coarse box while the user has drawn none
let problems = [];

function dragEnded() {
  drawing.endDrag();
  show();
}

// Redrawing the marks of landmarks would end the drag.
function dragged(work) {
  drawing.drag(work);
  show({ landmarks: false });
}

const boxMarks = new BoxMarks(view, {
  changed: (name, box) => dragged((now) => (selected.name === ALL ? moveTo(now, name, box) : (now[name] = box))),
  dragEnded,
  selected: (name) => selected.name !== ALL && select("box", name),
});
const landmarkMarks = new LandmarkMarks(view, {
  changed: (name, point) => dragged((now) => (now.landmarks[name] = point)),
  dragEnded,
  selected: (name) => select("point", name),
});
const landmarkList = new LandmarkList({
  selected: (name) => select("point", name),
  removed: (name) => {
    select("point", name);
    remove();
  },
  renamed: (old, name) => {
    change((now) => (now.landmarks = renamed(now.landmarks, old, name)));
    select("point", name);
    show();
  },
});

// Moves all boxes and landmarks so that one box comes to lie at a place.
function moveTo(now, name, [x, y]) {
  const [x0, y0] = now[name] ?? defaultCoarse;
  moveAll(now, x - x0, y - y0);
}

function moveAll(now, dx, dy) {
  for (const name of Object.keys(BOXES)) if (now[name]) now[name] = nudged(now[name], dx, dy);
  for (const [name, [x, y]] of Object.entries(now.landmarks)) now.landmarks[name] = [x + dx, y + dy];
  if (defaultCoarse) defaultCoarse = nudged(defaultCoarse, dx, dy); // until the server answers
}

// Mirrors everything to the knee in the other half.
function mirror() {
  if (!drawing) return;
  const flip = ([x0, y0, x1, y1]) => [2 * start.axis - x1, y0, 2 * start.axis - x0, y1].map(tenth);
  change((now) => {
    for (const name of Object.keys(BOXES)) if (now[name]) now[name] = flip(now[name]);
    for (const [name, [x, y]] of Object.entries(now.landmarks)) now.landmarks[name] = [tenth(2 * start.axis - x), y];
    defaultCoarse = defaultCoarse && flip(defaultCoarse);
  });
  zoomToKnee();
}

function change(work) {
  drawing.change(work);
  show();
}

function select(kind, name) {
  if (!drawing) return;
  stopDrawing();
  if (selected.kind === kind && selected.name === name) return;
  selected = { kind, name };
  show({ landmarks: kind === "box" });
}

function undo() {
  drawing.undo();
  if (selected.kind === "point" && !(selected.name in drawing.now.landmarks)) select("box", "fine");
  show();
}

function startDrawing() {
  if (!drawing || selected.kind !== "box" || selected.name === ALL) return;
  const { name } = selected;
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
    select("point", name);
    show();
  }, "#ffffff");
  showHint("pointing");
}

function stopDrawing() {
  view.drawNext(null);
  showHint();
}

function remove() {
  if (selected.kind === "point") {
    const { name } = selected;
    selected = { kind: "box", name: "fine" };
    change((now) => delete now.landmarks[name]);
  } else if (selected.name === "coarse") {
    change((now) => (now.coarse = null));
  }
}

function nudge(dx, dy, resize) {
  const { kind, name } = selected;
  if (name === ALL) return change((now) => moveAll(now, dx, dy));
  if (kind === "box" && !drawing.now[name]) return;
  change((now) => {
    if (kind === "box") now[name] = nudged(now[name], dx, dy, resize);
    else now.landmarks[name] = [now.landmarks[name][0] + dx, now.landmarks[name][1] + dy];
  });
}

function showHint(kind = null) {
  const automatic = selected.name === "coarse" && !drawing.now.coarse;
  const usualHint = selected.name === ALL ? "all" : automatic ? "coarse" : selected.kind;
  $("#hint").textContent = HINTS[kind ?? usualHint];
}

function show({ landmarks = true } = {}) {
  showBoxes();
  const point = selected.kind === "point" ? selected.name : null;
  if (landmarks) landmarkMarks.set(drawing.now.landmarks, point);
  landmarkList.set(drawing.now.landmarks, point);
  showHint();
  $("#status").dataset.valid = ""; // until the server has checked the boxes
  check(drawing.now);
}

function showBoxes() {
  $("#find").value = drawing.now.find;
  const knees = drawing.now.find === "knees";
  const { fine } = drawing.now;
  const boxes = knees ? { ...drawing.now, coarse: drawing.now.coarse ?? defaultCoarse } : { fine };
  const box = selected.kind === "box" ? selected.name : null;
  boxMarks.set(boxes, box);
  for (const button of $("#boxes").children) {
    const { name } = button.dataset;
    button.setAttribute("aria-pressed", String(name === box));
    button.hidden = !knees && name !== "fine" && name !== ALL;
    button.classList.toggle("wrong", problems.some((problem) => problem.box === name));
  }
}

const check = debounce(DELAY_MS, async (signal, boxes) => {
  const result = await postJson("api/check", boxes, signal);
  const { side, coarse, template } = result;
  defaultCoarse = coarse;
  problems = result.problems;
  showBoxes();
  const valid = problems.length === 0;
  const lines = valid
    ? [element("p", { className: "good" }, `Valid: ${drawing.now.find === "knees" ? "knee" : "area"} on the image’s ${side}, ${template.film_size.join(" × ")} film pixels`)]
    : problems.map(({ text }) => element("p", { className: "problem" }, text));
  const warnings = result.warnings.map((text) => element("p", { className: "fair" }, text));
  $("#status").replaceChildren(...lines, ...warnings);
  $("#status").dataset.valid = valid ? "yes" : "no";
  $("#save").disabled = !valid;
  $("#run-preview").disabled = !valid || !start.preview_films;
  $("#templates").classList.toggle("stale", !template);
  if (!template) return;
  $("#templates").hidden = false;
  $("#template-left").src = template.left;
  $("#template-right").src = template.right;
});

async function save(overwrite = false) {
  if ($("#save").disabled) return;
  const { text } = drawing;
  try {
    const { saved, next } = await postJson(`api/save?overwrite=${overwrite}`, drawing.now);
    drawing.saved(text);
    showNotice(`Saved ${saved}`);
    $("#target").replaceChildren("Saved. Next: ", element("code", {}, next));
  } catch (error) {
    if (error.status !== CONFLICT) throw error;
    const warning = `${error.message}. Its content would be lost.`;
    if ((await showDialog($("#replace"), warning)) === "replace") await save(true);
  }
}

function runPreview() {
  if (!$("#run-preview").disabled) return preview.run(drawing.now);
}

function zoomToKnee() {
  if (drawing) view.fitBox(drawing.now.coarse ?? defaultCoarse ?? drawing.now.fine, 1.25);
}

function addBoxButton(name, { key, colour, meaning }) {
  const swatch = element("i");
  swatch.style.background = colour;
  const label = element("span", {}, element("b", {}, name), ` ${meaning}`);
  const button = element("button", { dataset: { name } }, element("kbd", {}, key), swatch, label);
  button.addEventListener("click", () => select("box", name));
  button.addEventListener("dblclick", startDrawing);
  $("#boxes").append(button);
  return [key, () => select("box", name)];
}

const choices = Object.entries({ ...BOXES, [ALL]: MOVE_ALL }).map(([name, box]) => addBoxButton(name, box));
const showHelp = setUpHelp();
$("#name").textContent = start.film;
$("#facts").textContent = `${start.size[0]} × ${start.size[1]} pixels`;
$("#target").textContent = `Saves to ${start.template}`;
$("#run-preview").title = start.preview_films ? `Search for it on ${start.preview_films} films (T)` : "Start kneematch annotate with --films";
await view.show("film.jpg", ...start.size);
$("#wait").textContent = "Detecting the knee";

// Requested after the film was shown, since the model keeps all cores busy.
const initial = await getJson("api/initial");
drawing = new Drawing(initial.drawing);
$("#wait").hidden = true;
$("#find").disabled = false;
$("#find").addEventListener("change", () => {
  selected = { kind: "box", name: "fine" };
  change((now) => (now.find = $("#find").value));
});
for (const [name, work] of [["#add-landmark", startPointing], ["#mirror", mirror]]) {
  $(name).addEventListener("click", work);
  $(name).disabled = false;
}
$("#save").addEventListener("click", () => save());
$("#run-preview").addEventListener("click", runPreview);
addEventListener("beforeunload", (event) => drawing.unsaved && event.preventDefault());
bindKeys({
  ...Object.fromEntries(choices),
  ...arrowKeys(nudge),
  ...arrowKeys((dx, dy) => nudge(dx, dy, true), "Alt+"),
  d: startDrawing,
  l: startPointing,
  m: mirror,
  t: runPreview,
  s: () => save(),
  "Ctrl+s": () => save(),
  "Ctrl+z": undo,
  Delete: remove,
  Backspace: remove,
  Escape: () => (view.drawn ? stopDrawing() : preview.close()),
  "?": showHelp,
  ...toolbarKeys,
});
show();
document.body.dataset.ready = "yes";
if (initial.source === "middle") showNotice("No knee was detected on this film: draw the boxes", "fair");
