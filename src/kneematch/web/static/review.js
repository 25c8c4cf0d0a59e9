// The review page: look through the knees of a run and decide about them.

import { $, bindKeys, element, setUpHelp, showNotice } from "./dialogs.js";
import { Editor } from "./editor.js";
import { Gallery } from "./gallery.js";
import { debounce, getJson, postJson } from "./server.js";

const TYPING_MS = 200;
const FILTERS_KEY = "kneematch-filters"; // in the session storage, so that a reload keeps the filters

const start = await getJson("api/start");
const filters = $("#filters");
const gallery = new Gallery(openEditor);
const editor = new Editor({ decide, closed: () => $("#gallery").focus(), step, loss: !start.no_loss });

function showCounts(counts) {
  const { accepted, corrected, rejected } = counts;
  const done = accepted + corrected + rejected;
  for (const name of ["accepted", "corrected", "rejected"]) {
    $(`#progress .${name}`).style.width = `${(100 * counts[name]) / Math.max(1, start.rows)}%`;
  }
  const number = (value) => value.toLocaleString("en");
  $("#facts").textContent =
    `${number(done)} of ${number(start.rows)} decided: ` +
    `${number(accepted)} accepted, ${number(corrected)} corrected, ${number(rejected)} rejected`;
}

// Decisions are sent one after the other, in the order of the keys, however fast they are pressed.
let lastRequest = Promise.resolve();

function enqueue(work) {
  const request = lastRequest.then(work);
  lastRequest = request.catch(() => {}); // an error is shown and does not stop the next request
  return request;
}

async function decide(row, state, area = null) {
  const result = await enqueue(() => postJson("api/decide", { row, state, area }));
  gallery.update(result.row);
  showCounts(result.counts);
}

function decideSelected(state) {
  const { row } = gallery;
  if (row === undefined) return;
  gallery.move(1);
  return decide(row, state);
}

async function undo() {
  const { row, counts } = await enqueue(() => postJson("api/undo", {}));
  if (!row) return showNotice("Nothing to undo");
  gallery.update(row);
  showCounts(counts);
  const at = gallery.order.indexOf(row.row);
  if (at >= 0) gallery.goTo(at);
  showNotice(`Undone: ${row.side} half of ${row.film}`);
  if (editor.open) await editor.show(row);
}

async function openEditor(row) {
  if (row === undefined) return;
  const [knee] = await getJson(`api/rows?numbers=${row}`);
  await editor.show(knee);
}

// Opens the previous or next knee in the editor.
async function step(columns) {
  const here = gallery.at;
  gallery.move(columns);
  if (gallery.at === here) return editor.close();
  await openEditor(gallery.row);
}

async function exportTable() {
  const { path, rows } = await postJson("api/export", {});
  showNotice(`Wrote ${rows.toLocaleString("en")} rows to ${path}`);
}

function filterQuery() {
  const given = [...new FormData(filters)].filter(([, value]) => value !== "");
  return new URLSearchParams(given);
}

async function order(signal, at = null) {
  const query = filterQuery();
  sessionStorage.setItem(FILTERS_KEY, query);
  const { rows } = await getJson(`api/order?${query}`, { signal });
  $("#shown").textContent = `${rows.length.toLocaleString("en")} ${rows.length === 1 ? "knee" : "knees"}`;
  // Continue after the last decision, or start at the beginning.
  gallery.setOrder(rows, at === null ? 0 : rows.indexOf(at) + 1);
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
  n: () => gallery.nextUndecided(),
  e: () => openEditor(gallery.row),
  Enter: () => openEditor(gallery.row),
};
const inEditor = editor.keys();
const everywhere = { u: undo, "Ctrl+z": undo, "?": setUpHelp() };
const names = new Set([...Object.keys(inGallery), ...Object.keys(inEditor)]);
const byPlace = [...names].map((key) => [key, () => (editor.open ? inEditor : inGallery)[key]?.()]);
bindKeys({ ...Object.fromEntries(byPlace), ...everywhere });

$("#undo").addEventListener("click", undo);
$("#export").addEventListener("click", exportTable);
filters.addEventListener("submit", (event) => event.preventDefault());
filters.addEventListener("input", debounce(TYPING_MS, (signal) => order(signal)));
$("#name").textContent = start.run;
$("#no-loss").textContent = start.no_loss && `The loss cannot be computed: ${start.no_loss}`;
showCounts(start.counts);
restoreFilters();
await order(undefined, start.last);
$("#gallery").focus();
document.body.dataset.ready = "yes";
if (start.warning) showNotice(start.warning, "bad");
