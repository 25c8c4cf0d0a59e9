// The editor: one knee on its film, whose area, landmarks, outlines and side can be corrected.

import { AreaMarks } from "./area_marks.js";
import { $, arrowKeys, element, say, showNotice } from "./dialogs.js";
import { FilmView } from "./film_view.js";
import { LandmarkMarks } from "./landmark_marks.js";
import { OutlineMarks } from "./outline_marks.js";
import { debounce, getJson, postJson } from "./server.js";
import { setUpToolbar } from "./toolbar.js";

const DELAY_MS = 40;
const TURN_DEG = 0.25;
const RESIZE = 1.005;
const NAMES = ["centre_x_px", "centre_y_px", "width_px", "rotation_deg"];
const GRADES = ["0", "1", "2", "3", "4"]; // of Kellgren and Lawrence
const LATERALITIES = ["R", "L", ""];

const near = (a, b) => Math.abs(a - b) < 1e-3;
const inSamePlace = (a, b) => NAMES.every((name) => near(a[name], b[name]));
const areaOf = (knee) => Object.fromEntries(NAMES.map((name) => [name, knee[name]]));

function same(a, b) {
  const points = Object.entries(a.landmarks);
  return (
    a.laterality === b.laterality &&
    inSamePlace(a, b) &&
    JSON.stringify(a.outlines) === JSON.stringify(b.outlines) &&
    points.every(([name, [x, y]]) => near(x, b.landmarks[name][0]) && near(y, b.landmarks[name][1]))
  );
}

// Returns landmarks moved, turned and scaled with their area.
function carried(points, from, to) {
  const scale = to.width_px / from.width_px;
  const angle = ((to.rotation_deg - from.rotation_deg) * Math.PI) / 180;
  const [cos, sin] = [scale * Math.cos(angle), scale * Math.sin(angle)];
  const move = ([x, y]) => {
    const [dx, dy] = [x - from.centre_x_px, y - from.centre_y_px];
    return [to.centre_x_px + cos * dx - sin * dy, to.centre_y_px + sin * dx + cos * dy];
  };
  return Object.fromEntries(Object.entries(points).map(([name, point]) => [name, move(point)]));
}

export class Editor {
  // `decide(decision)` is called with the decision of the user.
  constructor({ decide, closed, step, measured }) {
    this.callbacks = { decide, closed, step };
    this.measured = measured; // the run has outlines
    this.free = []; // halves to which a knee can be added
    this.past = []; // what the knee was before each change, to undo it
    this.future = []; // what was undone, to redo it
    $("#measures").hidden = !measured;
    this.place = $("#editor");
    this.view = new FilmView($("#film"));
    this.toolbarKeys = setUpToolbar(this.view, () => this.zoomToKnee());
    this.#addShapes();
    const buttons = {
      "#save-area": () => this.save(),
      "#restore": () => this.restore(),
      "#accept": () => this.decide("accepted"),
      "#reject": () => this.decide("rejected"),
      "#previous": () => this.#leave(() => this.callbacks.step(-1)),
      "#next": () => this.#leave(() => this.callbacks.step(1)),
      "#back": () => this.#leave(() => this.close()),
      "#edit-outlines": () => this.editOutlines(),
      "#add-left": () => this.add("left"),
      "#add-right": () => this.add("right"),
    };
    for (const [name, work] of Object.entries(buttons)) $(name).addEventListener("click", work);
    for (const button of $("#laterality").children) {
      button.addEventListener("click", () => this.setLaterality(button.value));
    }
  }

  get open() {
    return !this.place.hidden;
  }

  async show(row) {
    this.#warn();
    const { film, name, side, knee, reasons, state } = row;
    this.row = row.row;
    this.place.hidden = false;
    delete this.place.dataset.ready;
    this.#set(null);
    $("#knee-film").textContent = name;
    $("#knee-film").title = film;
    $("#knee-facts").textContent = side ? `${knee}, ${state}` : say("no knee was found");
    $("#knee-reasons").textContent = reasons.join("; ");
    let areas;
    try {
      areas = await getJson(`api/areas/${row.row}`);
      if (this.row !== row.row) return;
      if (film !== this.film) this.filmShown = this.view.show(`film/${row.row}`, ...areas.size);
      this.film = film;
      await this.filmShown;
    } catch (error) {
      if (this.film === film) this.film = null; // to load it again
      if (this.row !== row.row) return;
      this.close();
      throw error;
    }
    if (this.row !== row.row) return; // the user has moved on to another knee
    this.found = areas.found;
    this.start = areas.knee;
    this.lateralities = areas.lateralities; // of the film's knees, by half
    this.free = areas.free;
    this.read = { grade: areas.grade, note: areas.note };
    for (const [name, text] of Object.entries(this.read)) $(`#${name}`).value = text;
    this.adding = null; // the half of a knee that is being added
    this.#forget();
    this.outlined = null; // borders and measures of the run's outline network
    this.#showOthers(areas.others);
    this.#set(areas.knee);
    if (areas.knee) this.zoomToKnee();
    else this.view.fit();
    this.place.dataset.ready = row.row;
    if (this.measured && areas.knee) await this.#loadOutlines(row.row);
  }

  // Shows handles on the outlines instead of the area's, or the other way round.
  editOutlines(editing = !this.editing) {
    if (editing && !this.#borders()) return showNotice("There are no outlines to correct", "fair");
    this.editing = editing;
    this.landmark = null;
    this.#set(this.knee);
    this.zoomToKnee();
  }

  // Takes back the last change of this knee; decisions are revoked in the list only.
  undo() {
    this.#travel(this.past, this.future, say("There is no change of this knee to undo"));
  }

  redo() {
    this.#travel(this.future, this.past, say("There is no change of this knee to redo"));
  }

  #travel(from, to, nothing) {
    if (!this.knee || !from.length) return showNotice(nothing, "fair");
    to.push(this.knee);
    this.#set(from.pop());
  }

  // Keeps the knee as it is, before a change.
  #remember() {
    this.past.push({ ...this.knee });
    this.future = [];
  }

  #forget() {
    this.past = [];
    this.future = [];
  }

  close() {
    this.#warn();
    this.place.hidden = true;
    this.row = null;
    this.callbacks.closed();
  }

  async decide(state) {
    if (!this.place.dataset.ready) return; // the knee is not shown yet
    if (!this.start || this.adding) return showNotice(say("There is no detected knee here: add one, or go on"), "fair");
    this.knee = null; // the decision is about the detected area, not the moved one
    await this.#send({ row: this.row, state, ...this.#reading });
  }

  async save() {
    if ($("#save-area").disabled) return;
    const { landmarks, laterality, outlines } = this.knee;
    const correction = { area: areaOf(this.knee), landmarks, laterality, outlines, side: this.adding };
    this.saved = this.knee; // leaving it needs no question, unless the server refuses it
    try {
      await this.#send({ row: this.row, state: "corrected", ...correction, ...this.#reading });
    } catch (error) {
      this.saved = null;
      throw error;
    }
  }

  // Goes on to the next knee, unless the user has done so before the server answered.
  async #send(decision) {
    await this.callbacks.decide(decision);
    if (this.row === decision.row) this.callbacks.step(1);
  }

  // Shows a new knee in a half without one; it is not stored before it is saved.
  async add(side = this.free[0]) {
    if (!this.place.dataset.ready) return; // the knee is not shown yet
    if (!this.free.includes(side)) return showNotice(say("Both sides of the film have a knee already"), "fair");
    if (!this.#mayDiscard()) return;
    const { row } = this;
    showNotice(say("Looking for a knee"));
    const knee = await getJson(`api/draft/${row}/${side}`);
    if (this.row !== row) return; // the user has moved on to another knee
    if (this.start) this.others.add(this.#outline(this.start));
    this.adding = side;
    this.#forget();
    this.outlined = null;
    $("#knee-reasons").textContent = ""; // those of the knee that was shown before
    $("#knee-facts").textContent = say(`new knee on the image’s ${side}, not saved`);
    this.#set(knee);
    this.zoomToKnee();
    showNotice(say(knee.recognised ? "A knee was recognised here: check it, and save it" : "No knee was recognised: place the area"), knee.recognised ? "good" : "fair");
  }

  restore() {
    if (!this.knee || !this.found || this.adding) return;
    this.#remember();
    this.#set(this.found);
  }

  // Returns whether keys move the area; says so where they do not.
  #canMove() {
    if (this.#editsOutlines) showNotice("Outlines are shown: O returns to the area", "fair");
    return this.knee && !this.#editsOutlines;
  }

  nudge(dx, dy) {
    if (!this.#canMove()) return;
    if (this.landmark) {
      const [x, y] = this.knee.landmarks[this.landmark];
      this.#remember();
      this.#setLandmark(this.landmark, [x + dx, y + dy]);
      return this.#set(this.knee);
    }
    const { centre_x_px: x, centre_y_px: y } = this.knee;
    this.#moveArea({ centre_x_px: x + dx, centre_y_px: y + dy });
  }

  turn(sign) {
    if (this.#canMove()) this.#moveArea({ rotation_deg: this.knee.rotation_deg + sign * TURN_DEG });
  }

  resize(sign) {
    if (!this.#canMove()) return;
    const factor = RESIZE ** sign;
    const { width_px: width, height_px: height } = this.knee;
    this.#moveArea({ width_px: factor * width, height_px: factor * height });
  }

  // Sets the grade, which goes with the decision.
  setGrade(grade) {
    if (this.knee) $("#grade").value = grade;
  }

  get #reading() {
    return { grade: $("#grade").value.trim(), note: $("#note").value.trim() };
  }

  setLaterality(laterality) {
    if (!this.knee || this.knee.laterality === laterality) return;
    this.#remember();
    this.#set({ ...this.knee, laterality });
  }

  // Selects the next landmark for the arrow keys, and after the last one the area.
  selectNext() {
    if (!this.knee || this.#editsOutlines) return;
    const names = [null, ...Object.keys(this.knee.landmarks)];
    this.landmark = names[(names.indexOf(this.landmark) + 1) % names.length];
    this.#set(this.knee);
  }

  // Zooms to the knee, or to its joint space while its outlines are edited.
  zoomToKnee() {
    if (!this.knee) return;
    if (this.#editsOutlines) return this.#zoomToJoint();
    const { centre_x_px: x, centre_y_px: y, width_px: w, height_px: h } = this.knee;
    this.view.fitBox([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 1.7);
  }

  #zoomToJoint() {
    const points = Object.values(this.#borders()).flat();
    const [x, y] = [0, 1].map((k) => points.map((point) => point[k]));
    this.view.fitBox([Math.min(...x), Math.min(...y), Math.max(...x), Math.max(...y)], 1.15);
  }

  keys() {
    return {
      ...arrowKeys((dx, dy) => this.nudge(dx, dy)),
      "[": () => this.turn(-1),
      "]": () => this.turn(1),
      ",": () => this.resize(-1),
      ".": () => this.resize(1),
      l: () => this.selectNext(),
      s: () => this.#nextLaterality(),
      k: () => this.add(),
      o: () => this.editOutlines(),
      r: () => this.restore(),
      "Ctrl+z": () => this.undo(),
      "Ctrl+Shift+z": () => this.redo(),
      "Ctrl+y": () => this.redo(),
      a: () => this.decide("accepted"),
      x: () => this.decide("rejected"),
      Enter: () => this.save(),
      PageUp: () => this.#leave(() => this.callbacks.step(-1)),
      PageDown: () => this.#leave(() => this.callbacks.step(1)),
      Escape: () => this.#leave(() => this.close()),
      ...this.toolbarKeys,
      ...Object.fromEntries(GRADES.map((grade) => [grade, () => this.setGrade(grade)])),
    };
  }

  get #unsaved() {
    const noted = this.knee && JSON.stringify(this.#reading) !== JSON.stringify(this.read);
    return this.knee && this.knee !== this.saved && (noted || this.adding || !same(this.knee, this.start));
  }

  // Asks whether changes may be lost, if there are any.
  #mayDiscard() {
    return !this.#unsaved || confirm(say("Discard the changes of this knee? They are not saved."));
  }

  // Leaves the knee by an action.
  #leave(action) {
    if (!this.#mayDiscard()) return;
    this.knee = null;
    action();
  }

  // Warns that a knee was changed and not saved.
  #warn() {
    if (this.#unsaved) showNotice(say("The changed knee was not saved"), "fair");
    this.knee = null;
  }

  #nextLaterality() {
    const at = LATERALITIES.indexOf(this.knee?.laterality);
    this.setLaterality(LATERALITIES[(at + 1) % LATERALITIES.length]);
  }

  #addShapes() {
    const { view } = this;
    this.others = new Konva.Group({ listening: false, opacity: 0.45 });
    view.marks.add(this.others);
    const started = () => this.#remember();
    this.area = new AreaMarks(view, { started, changed: (area) => this.#dragged(area) });
    this.landmark = null; // that the arrow keys move, instead of the area
    this.landmarks = new LandmarkMarks(view, {
      started,
      changed: (name, point) => this.#setLandmark(name, point),
      dragEnded: () => this.#set(this.knee),
      selected: (name) => (this.landmark = name),
    });
    this.editing = false; // the outlines instead of the area, where there are some
    this.outlines = new OutlineMarks(view, {
      started,
      changed: (outlines) => this.#setOutlines(outlines),
      dragEnded: () => this.#set(this.knee),
    });
  }

  #showOthers(outlines) {
    this.others.destroyChildren();
    for (const corners of outlines) this.others.add(this.#polygon(corners.flat()));
  }

  #polygon(points) {
    return new Konva.Line({ points, closed: true, stroke: "#ffffff", dash: [5, 5], strokeScaleEnabled: false });
  }

  #outline({ centre_x_px: x, centre_y_px: y, width_px: width, height_px: height, rotation_deg: rotation }) {
    const [w, h] = [width / 2, height / 2];
    const line = this.#polygon([-w, -h, w, -h, w, h, -w, h]);
    return line.setAttrs({ x, y, rotation });
  }

  // Shows a knee, or none.
  #set(knee) {
    this.knee = knee && { ...knee };
    this.area.set(this.#editsOutlines ? null : knee);
    if (!(this.landmark in (knee?.landmarks ?? {}))) this.landmark = null;
    this.#showLandmarks();
    this.#showOutlines();
    this.#changed();
  }

  async #loadOutlines(row) {
    const outlined = await getJson(`api/outlines/${row}`);
    if (this.row !== row || this.adding) return;
    this.outlined = outlined;
    this.#set(this.knee);
    if (this.#editsOutlines) this.#zoomToJoint();
  }

  get #editsOutlines() {
    return this.editing && Boolean(this.#borders());
  }

  // Returns the outlines that were drawn, or those that were found while the area is where it was.
  #borders() {
    const { knee, outlined, start } = this;
    if (!knee || !outlined) return null;
    return knee.outlines ?? (inSamePlace(knee, start) ? outlined.borders : null);
  }

  #showOutlines() {
    const borders = this.#borders();
    const editing = this.#editsOutlines;
    this.outlines.set(borders, editing);
    const drawn = this.knee?.outlines;
    if (drawn && borders) this.#requestMeasures(this.row, drawn);
    else this.#showMeasures(borders && this.outlined.measures);
    $("#edit-outlines").disabled = !borders;
    $("#edit-outlines").setAttribute("aria-pressed", String(editing));
    $("#how").hidden = editing;
    $("#how-outlines").hidden = !editing;
  }

  #setOutlines(outlines) {
    this.knee.outlines = outlines;
    this.#changed();
  }

  #showMeasures(measures) {
    const cells = (line) => line.map((text, k) => element(k ? "td" : "th", {}, text));
    const lines = (measures?.lines ?? []).map((line) => element("tr", {}, ...cells(line)));
    $("#measures tbody").replaceChildren(...lines);
    $("#measures table").hidden = !measures;
    this.outlines.setWidths(measures?.widths ?? []);
    $("#measures-unit").textContent = measures?.unit ?? "";
    const moved = this.knee && this.outlined && !measures;
    $("#measures-hint").textContent = moved ? "The knee will be outlined and measured anew once it is saved." : "";
  }

  #moveArea(change) {
    this.#remember();
    this.#set(this.#moved(change));
  }

  // Returns the knee with another area, and its landmarks moved with it.
  #moved(change) {
    const moved = { ...this.knee, ...change };
    return { ...moved, landmarks: carried(this.knee.landmarks, this.knee, moved) };
  }

  #setLandmark(name, point) {
    this.knee.landmarks = { ...this.knee.landmarks, [name]: point };
    this.#changed();
  }

  // The mark of the area is left alone meanwhile, or the drag would end.
  #dragged(area) {
    this.landmark = null;
    this.knee = this.#moved(area);
    this.#showLandmarks();
    this.#showOutlines();
    this.#changed();
  }

  #showLandmarks() {
    this.landmarks.set((!this.#editsOutlines && this.knee?.landmarks) || {}, this.landmark);
  }

  #changed() {
    const { knee, start, adding } = this;
    $("#save-area").disabled = !knee || (!adding && same(knee, start));
    for (const button of $("#laterality").children) {
      button.disabled = !knee;
      button.setAttribute("aria-pressed", String(button.value === knee?.laterality));
    }
    this.#showSameSide();
    for (const side of ["left", "right"]) {
      $(`#add-${side}`).hidden = !this.free.includes(side) || side === adding;
    }
    for (const name of ["#accept", "#reject", "#restore"]) $(name).disabled = !knee || Boolean(adding);
  }

  // Hints at two knees of a film that have the same side of the patient.
  #showSameSide() {
    const { laterality, side } = this.knee ?? {};
    const other = this.lateralities?.[side === "left" ? "right" : "left"];
    $("#same-side").textContent =
      laterality && laterality === other ? `The other knee of this film is ${other}, too: check both.` : "";
  }

  #requestMeasures = debounce(DELAY_MS, async (signal, row, borders) => {
    const { measures } = await postJson(`api/measures/${row}`, borders, signal);
    if (this.row === row && this.knee?.outlines === borders) this.#showMeasures(measures);
  });
}
