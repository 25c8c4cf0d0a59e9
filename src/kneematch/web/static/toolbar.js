// The toolbar above a film: zoom, brightness, contrast, invert.

import { $ } from "./dialogs.js";

const ZOOM_STEP = 1.25;

// The sliders hold base-2 logarithms.
export function setUpToolbar(root = document) {
  const brightness = $("#brightness", root);
  const contrast = $("#contrast", root);

  function control(view) {
    brightness.addEventListener("input", () => view.setTone({ brightness: 2 ** brightness.value }));
    contrast.addEventListener("input", () => view.setTone({ contrast: 2 ** contrast.value }));
    $("#zoom-in", root).addEventListener("click", () => view.zoom(ZOOM_STEP));
    $("#zoom-out", root).addEventListener("click", () => view.zoom(1 / ZOOM_STEP));
    $("#zoom-fit", root).addEventListener("click", () => view.fit());
    $("#invert", root).addEventListener("click", () => view.invert());
    $("#reset", root).addEventListener("click", () => view.resetTone());
  }

  function show(tone) {
    brightness.value = Math.log2(tone.brightness);
    contrast.value = Math.log2(tone.contrast);
    $("#invert", root).setAttribute("aria-pressed", String(tone.inverted));
  }

  function keys(view) {
    return {
      "+": () => view.zoom(ZOOM_STEP),
      "=": () => view.zoom(ZOOM_STEP),
      "-": () => view.zoom(1 / ZOOM_STEP),
      0: () => view.fit(),
      i: () => view.invert(),
      w: () => view.resetTone(),
    };
  }

  return { control, show, keys };
}
