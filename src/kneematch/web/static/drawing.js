// The boxes and landmarks that are drawn, in film pixels, and their history for undo.

const MAX_STEPS = 200;

export class Drawing {
  #history = []; // earlier drawings
  #beforeDrag; // copy to undo to; null during a drag
  #saved;

  constructor(plain) {
    this.now = plain;
    this.#beforeDrag = structuredClone(plain);
    this.#saved = this.text; // the initial annotation need not be saved
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

  // Makes one change, which is one step of undo.
  change(work) {
    this.drag(work);
    this.endDrag();
  }

  // Makes one of the many changes of a drag; all of them until `endDrag` are one step of undo.
  drag(work) {
    if (this.#beforeDrag) this.#history.push(this.#beforeDrag);
    this.#beforeDrag = null;
    if (this.#history.length > MAX_STEPS) this.#history.shift();
    work(this.now);
  }

  endDrag() {
    this.#beforeDrag = structuredClone(this.now);
  }

  undo() {
    this.now = this.#history.pop() ?? this.now;
    this.endDrag();
  }
}
