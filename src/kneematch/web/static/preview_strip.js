// The strip of films on which the template is previewed.

import { $, element } from "./dialogs.js";
import { postLines } from "./server.js";

// Losses up to GOOD are green, above BAD red: a rough guide, not a measured limit.
const GOOD = 0.3;
const BAD = 0.5;

const grade = (loss) => (loss <= GOOD ? "good" : loss <= BAD ? "fair" : "bad");

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export class PreviewStrip {
  constructor(count) {
    this.count = count;
    this.place = $("#preview");
    this.films = $("#preview-films");
    this.summary = $("#preview-summary");
    this.current = new AbortController();
    $("#close-preview").addEventListener("click", () => this.close());
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
    this.#summarise(done, losses);
    try {
      for await (const result of postLines("api/preview", drawing, this.current.signal)) {
        done += 1;
        losses.push(...(result.knees ?? []).map((knee) => knee.loss));
        this.films.append(this.#card(result));
        this.#summarise(done, losses);
      }
      this.place.dataset.state = "done";
    } catch (error) {
      if (error.name === "AbortError") return;
      this.place.hidden = true;
      throw error;
    }
  }

  #summarise(done, losses) {
    const middle = losses.length ? `, median loss ${median(losses).toFixed(2)}` : "";
    const poor = losses.filter((loss) => loss > GOOD).length;
    const rest = poor ? `, ${poor} of ${losses.length} knees above ${GOOD}` : "";
    this.summary.textContent = `${done} of ${this.count} films${middle}${rest}`;
  }

  #card({ film, picture, knees, problem }) {
    const shown = picture
      ? element("img", { src: picture, alt: `${film} with the detected areas` })
      : element("p", { className: "problem", textContent: problem });
    const losses = (knees ?? []).map(({ side, loss }) =>
      element("span", { className: grade(loss), title: `knee on the image’s ${side}` }, loss.toFixed(2)),
    );
    const name = element("span", { className: "name", title: film }, element("bdi", {}, film));
    return element("figure", {}, shown, element("figcaption", {}, name, ...losses));
  }
}
