// What is drawn: boxes and landmarks in film pixels, and the steps that led there.

const MOST_STEPS = 200;

export class Drawing {
  #before = []; // earlier drawings, for undo
  #calm; // as it was before a drag began; null during one
  #saved;

  constructor(plain) {
    this.now = plain;
    this.#calm = structuredClone(plain);
    this.#saved = this.text; // a mere guess is no loss
  }

  get text() {
    return JSON.stringify(this.now);
  }

  get unsaved() {
    return this.text !== this.#saved;
  }

  saved(text) {
    this.#saved = text;
  }

  // One change, one step of undo.
  change(work) {
    this.drag(work);
    this.settle();
  }

  // Of the many changes of a drag, all until `settle` are one step.
  drag(work) {
    if (this.#calm) this.#before.push(this.#calm);
    this.#calm = null;
    if (this.#before.length > MOST_STEPS) this.#before.shift();
    work(this.now);
  }

  settle() {
    this.#calm = structuredClone(this.now);
  }

  undo() {
    this.now = this.#before.pop() ?? this.now;
    this.settle();
  }
}
