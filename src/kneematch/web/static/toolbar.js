// The toolbar above a film: zoom, brightness, contrast, invert.

import { $ } from "./dialogs.js";

const ZOOM_STEP = 1.25;

// Connects the toolbar with a film; returns the keys that do what its buttons do.
export function setUpToolbar(view) {
  const zoomIn = () => view.zoom(ZOOM_STEP);
  const zoomOut = () => view.zoom(1 / ZOOM_STEP);
  const fit = () => view.fit();
  const invert = () => view.invert();
  const reset = () => view.resetTone();
  const buttons = { "#zoom-in": zoomIn, "#zoom-out": zoomOut, "#zoom-fit": fit, "#invert": invert, "#reset": reset };
  for (const [name, work] of Object.entries(buttons)) $(name).addEventListener("click", work);
  const sliders = ["brightness", "contrast"].map((name) => [name, $(`#${name}`)]); // of base-2 logarithms
  for (const [name, slider] of sliders) {
    slider.addEventListener("input", () => view.setTone({ [name]: 2 ** slider.value }));
  }
  view.changed = () => {
    for (const [name, slider] of sliders) slider.value = Math.log2(view.tone[name]);
    $("#invert").setAttribute("aria-pressed", String(view.tone.inverted));
  };
  return { "+": zoomIn, "=": zoomIn, "-": zoomOut, 0: fit, i: invert, w: reset };
}
