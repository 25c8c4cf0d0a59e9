// The strip of films that a template was tried on.

import { $, element } from "./dialogs.js";
import { lines } from "./server.js";

// Losses up to GOOD are green, above BAD red: a rough guide for the eye, not a measured limit.
const GOOD = 0.3;
const BAD = 0.5;

const grade = (loss) => (loss <= GOOD ? "good" : loss <= BAD ? "fair" : "bad");

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export class TrialStrip {
  constructor(count) {
    this.count = count;
    this.place = $("#trial");
    this.films = $("#trial-films");
    this.summary = $("#trial-summary");
    this.current = new AbortController();
    $("#close-trial").addEventListener("click", () => this.close());
  }

  close() {
    this.current.abort();
    this.place.hidden = true;
  }

  async run(drawing) {
    this.current.abort();
    this.current = new AbortController();
    this.films.replaceChildren();
    this.place.hidden = false;
    this.place.dataset.state = "running";
    const losses = [];
    let done = 0;
    this.#tell(done, losses);
    try {
      for await (const told of lines("api/try", drawing, this.current.signal)) {
        done += 1;
        losses.push(...(told.knees ?? []).map((knee) => knee.loss));
        this.films.append(this.#card(told));
        this.#tell(done, losses);
      }
      this.place.dataset.state = "done";
    } catch (error) {
      if (error.name === "AbortError") return;
      this.place.hidden = true;
      throw error;
    }
  }

  #tell(done, losses) {
    const mean = losses.length ? `, median loss ${median(losses).toFixed(2)}` : "";
    const poor = losses.filter((loss) => loss > GOOD).length;
    const rest = poor ? `, ${poor} of ${losses.length} knees above ${GOOD}` : "";
    this.summary.textContent = `${done} of ${this.count} films${mean}${rest}`;
  }

  #card({ film, picture, knees, problem }) {
    const shown = picture
      ? element("img", { src: picture, alt: `${film} with the areas found` })
      : element("p", { className: "problem", textContent: problem });
    const losses = (knees ?? []).map(({ side, loss }) =>
      element("span", { className: grade(loss), title: `${side} half` }, loss.toFixed(2)),
    );
    const name = element("span", { className: "name", title: film }, film);
    return element("figure", {}, shown, element("figcaption", {}, name, ...losses));
  }
}
