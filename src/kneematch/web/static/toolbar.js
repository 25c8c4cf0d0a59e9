// The toolbar above a film: zoom, brightness, contrast, invert.

import { $, element } from "./dialogs.js";

const ZOOM_STEP = 1.25;

// Fills the toolbar of a film; returns the keys that do what its buttons do.
export function setUpToolbar(view, zoomToKnee) {
  const zoomIn = () => view.zoom(ZOOM_STEP);
  const zoomOut = () => view.zoom(1 / ZOOM_STEP);
  const fit = () => view.fit();
  const invert = () => view.invert();
  const reset = () => view.resetTone();
  const button = (text, title, onclick) => element("button", { title, onclick }, text);
  // A slider has the base-2 logarithm of its part of the tone.
  const slider = (name, max) => {
    const input = element("input", { type: "range", min: -2, max, step: 0.05, value: 0 });
    input.addEventListener("input", () => view.setTone({ [name]: 2 ** input.value }));
    return input;
  };
  const label = (text, way, input) =>
    element("label", { title: `Or drag ${way} with the right mouse button` }, text, input);
  const [brightness, contrast] = [slider("brightness", 2), slider("contrast", 2.5)];
  const invertButton = button("Invert", "Swap black and white (I)", invert);
  $("#tools").append(
    button("−", "Zoom out (-)", zoomOut),
    button("Fit", "Show the whole film (H)", fit),
    button("+", "Zoom in (+)", zoomIn),
    button("Knee", "Zoom to the knee (F)", zoomToKnee),
    label("Brightness ", "up and down", brightness),
    label("Contrast ", "left and right", contrast),
    invertButton,
    button("Reset", "Reset brightness and contrast (W)", reset),
  );
  view.changed = () => {
    brightness.value = Math.log2(view.tone.brightness);
    contrast.value = Math.log2(view.tone.contrast);
    invertButton.setAttribute("aria-pressed", String(view.tone.inverted));
  };
  view.changed();
  return { "+": zoomIn, "=": zoomIn, "-": zoomOut, 0: fit, h: fit, f: zoomToKnee, i: invert, w: reset };
}
