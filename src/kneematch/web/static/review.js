// The page on which a run is reviewed.

import { $, element, notice, onKeys, setUpHelp } from "./dialogs.js";
import { Editor } from "./editor.js";
import { Gallery } from "./gallery.js";
import { ask, calmly, send } from "./server.js";

const TYPING_MS = 200;
const MEMORY = "kneematch-filters"; // of this tab, so that a reload shows the same

const start = await ask("api/start");
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

// Decisions reach the server one by one, in the order of the keys, however fast they come.
let before = Promise.resolve();

function inTurn(work) {
  const mine = before.then(work);
  before = mine.catch(() => {}); // a refusal is shown, and does not stop the next one
  return mine;
}

async function decide(row, what, area = null) {
  const told = await inTurn(() => send("api/decide", { row, what, area }));
  gallery.update(told.row);
  showCounts(told.counts);
}

function decideHere(what) {
  const { row } = gallery;
  if (row === undefined) return;
  gallery.move(1);
  return decide(row, what);
}

async function undo() {
  const { row, counts } = await inTurn(() => send("api/undo", {}));
  if (!row) return notice("Nothing to undo");
  gallery.update(row);
  showCounts(counts);
  const at = gallery.order.indexOf(row.row);
  if (at >= 0) gallery.goTo(at);
  notice(`Undone: ${row.side} half of ${row.film}`);
  if (editor.open) await editor.show(row);
}

async function openEditor(row) {
  if (row === undefined) return;
  const [told] = await ask(`api/rows?wanted=${row}`);
  await editor.show(told);
}

// To the knee before or after, while one is open.
async function step(columns) {
  const here = gallery.at;
  gallery.move(columns);
  if (gallery.at === here) return editor.close();
  await openEditor(gallery.row);
}

async function exportTable() {
  const { path, rows } = await send("api/export", {});
  notice(`${rows.toLocaleString("en")} rows in ${path}`);
}

function asked() {
  const given = [...new FormData(filters)].filter(([, value]) => value !== "");
  return new URLSearchParams(given);
}

async function order(signal, at = null) {
  const query = asked();
  sessionStorage.setItem(MEMORY, query);
  const { rows } = await ask(`api/order?${query}`, { signal });
  $("#shown").textContent = `${rows.length.toLocaleString("en")} knees`;
  // Where one stopped: behind the last decision, or at the start.
  gallery.setOrder(rows, at === null ? 0 : rows.indexOf(at) + 1);
}

function restoreFilters() {
  for (const [reason, count] of start.reasons) {
    filters.reason.append(element("option", { value: reason }, `${reason} (${count})`));
  }
  for (const [name, value] of new URLSearchParams(sessionStorage.getItem(MEMORY) ?? "")) {
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
  a: () => decideHere("accepted"),
  x: () => decideHere("rejected"),
  n: () => gallery.nextUndecided(),
  e: () => openEditor(gallery.row),
  Enter: () => openEditor(gallery.row),
};
const inEditor = editor.keys();
const everywhere = { u: undo, "Ctrl+z": undo, "?": setUpHelp() };
const names = new Set([...Object.keys(inGallery), ...Object.keys(inEditor)]);
const whereOneIs = [...names].map((key) => [key, () => (editor.open ? inEditor : inGallery)[key]?.()]);
onKeys({ ...Object.fromEntries(whereOneIs), ...everywhere });

$("#undo").addEventListener("click", undo);
$("#export").addEventListener("click", exportTable);
filters.addEventListener("submit", (event) => event.preventDefault());
filters.addEventListener("input", calmly(TYPING_MS, (signal) => order(signal)));
$("#name").textContent = start.run;
$("#no-loss").textContent = start.no_loss && `No loss here: ${start.no_loss}`;
showCounts(start.counts);
restoreFilters();
await order(undefined, start.last);
$("#gallery").focus();
document.body.dataset.ready = "yes";
