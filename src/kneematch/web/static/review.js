// The review page: look through the knees of a run and decide about them.

import { $, bindKeys, element, setUpHelp, showNotice, speakOfAreas } from "./dialogs.js";
import { Editor } from "./editor.js";
import { Gallery } from "./gallery.js";
import { debounce, getJson, postJson } from "./server.js";

const TYPING_MS = 200;
const FILTERS_KEY = "kneematch-filters"; // in the session storage, so that a reload keeps the filters

const start = await getJson("api/start");
const filters = $("#filters");
const gallery = new Gallery(openEditor);
const editor = new Editor({ decide, closed, step, measured: start.measured });
if (start.noun === "area") speakOfAreas();

function showCounts(counts) {
  const { rows, accepted, corrected, rejected, to_review } = counts;
  const done = accepted + corrected + rejected;
  for (const name of ["accepted", "corrected", "rejected"]) {
    $(`#progress .${name}`).style.width = `${(100 * counts[name]) / Math.max(1, rows)}%`;
  }
  const number = (value) => value.toLocaleString("en");
  $("#facts").textContent =
    `${to_review ? number(to_review) : "Nothing"} left to review · ${number(done)} of ${number(rows)} decided: ` +
    `${number(accepted)} accepted, ${number(corrected)} corrected, ${number(rejected)} rejected`;
}

// Decisions are sent one after the other, in the order of the keys, however fast they are pressed.
let lastRequest = Promise.resolve();

function enqueue(work) {
  const request = lastRequest.then(work);
  lastRequest = request.catch(() => {}); // an error is shown and does not stop the next request
  return request;
}

async function decide(decision) {
  const { row, counts } = await enqueue(() => postJson("api/decide", decision));
  if (!gallery.order.includes(row.row)) {
    gallery.insert(row.row); // a knee that was added
    if (filters.shown.value !== "no_knee") showLength(start.noun);
  }
  gallery.update(row);
  showCounts(counts);
}

function decideSelected(state) {
  const { row } = gallery;
  if (row === undefined || gallery.known.get(row)?.state === "no_knee") return;
  gallery.move(1);
  return decide({ row, state });
}

// Takes back the last decision, of whichever knee it was.
async function revoke() {
  const { undone, row, counts } = await enqueue(() => postJson("api/undo", {}));
  if (!undone) return showNotice("There is no decision to revoke");
  showCounts(counts);
  showNotice(`Decision revoked: ${undone}`);
  if (!row) return order(); // the knee that was added is gone
  gallery.update(row);
  const at = gallery.order.indexOf(row.row);
  if (at >= 0) gallery.goTo(at);
}

let lastOpened = 0; // number of the last request to open a knee, or to close the editor

async function openEditor(row) {
  if (row === undefined) return;
  const request = (lastOpened += 1);
  const [knee] = await getJson(`api/rows?numbers=${row}`);
  if (request === lastOpened) await editor.show(knee); // else it comes too late
}

function closed() {
  lastOpened += 1;
  $("#gallery").focus();
}

// Opens the previous or next knee in the editor.
async function step(columns) {
  const here = gallery.at;
  gallery.move(columns);
  if (gallery.at === here) return editor.close();
  await openEditor(gallery.row);
}

// Writes the decisions to all files of the run.
async function apply() {
  const button = $("#apply");
  button.disabled = true;
  button.textContent = "Applying";
  try {
    const { out, message, problems } = await enqueue(() => postJson("api/apply", {}));
    showNotice(problems.length ? problems[0] : `${out}: ${message}`, problems.length ? "bad" : "good");
  } finally {
    button.disabled = false;
    button.textContent = "Apply";
  }
}

function filterQuery() {
  const given = [...new FormData(filters)].filter(([, value]) => value !== "");
  return new URLSearchParams(given);
}

async function order(signal, at = null) {
  const query = filterQuery();
  sessionStorage.setItem(FILTERS_KEY, query);
  gallery.busy = true;
  try {
    const { rows } = await getJson(`api/order?${query}`, { signal });
    showOrder(rows, query, at);
  } finally {
    gallery.busy = Boolean(signal?.aborted); // until the request that came after this one is answered
  }
}

function showOrder(rows, query, at) {
  // Continue after the last decision, or start at the beginning.
  gallery.setOrder(rows, at === null ? 0 : rows.indexOf(at) + 1);
  showLength(query.get("shown") === "no_knee" ? "film" : start.noun);
}

function showLength(noun) {
  const { length } = gallery.order;
  $("#shown").textContent = `${length.toLocaleString("en")} ${noun}${length === 1 ? "" : "s"}`;
}

function restoreFilters() {
  for (const [reason, count] of start.reasons) {
    filters.reason.append(element("option", { value: reason }, `${reason} (${count})`));
  }
  for (const [name, value] of new URLSearchParams(sessionStorage.getItem(FILTERS_KEY) ?? "")) {
    if (filters[name]) filters[name].value = value;
  }
}

const inGallery = {
  ArrowLeft: () => gallery.move(-1),
  ArrowRight: () => gallery.move(1),
  ArrowUp: () => gallery.move(0, -1),
  ArrowDown: () => gallery.move(0, 1),
  PageUp: () => gallery.page(-1),
  PageDown: () => gallery.page(1),
  Home: () => gallery.goTo(0),
  End: () => gallery.goTo(Infinity),
  a: () => decideSelected("accepted"),
  x: () => decideSelected("rejected"),
  u: revoke,
  n: () => gallery.nextUndecided(),
  e: () => openEditor(gallery.row),
  Enter: () => openEditor(gallery.row),
};
const inEditor = editor.keys();
const everywhere = { "?": setUpHelp() };
const names = new Set([...Object.keys(inGallery), ...Object.keys(inEditor)]);
const keysNow = () => (editor.open ? inEditor : gallery.busy ? {} : inGallery);
const byPlace = [...names].map((key) => [key, () => keysNow()[key]?.()]);
bindKeys({ ...Object.fromEntries(byPlace), ...everywhere });

$("#revoke").addEventListener("click", revoke);
$("#apply").addEventListener("click", apply);
filters.addEventListener("submit", (event) => event.preventDefault());
const orderSoon = debounce(TYPING_MS, (signal) => order(signal));
filters.addEventListener("input", () => {
  gallery.busy = true;
  orderSoon();
});
$("#name").textContent = start.run;
$("#reader").textContent = `Reader: ${start.reader}`;
$("#reader").hidden = !start.reader;
$(".measured-run").hidden = !start.measured;
showCounts(start.counts);
restoreFilters();
await order(undefined, start.last);
$("#gallery").focus();
document.body.dataset.ready = "yes";
if (start.warning) showNotice(start.warning, "bad");
