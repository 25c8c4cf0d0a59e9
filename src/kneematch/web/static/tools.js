// The bar above a film: zoom, brightness, contrast, invert.

import { $ } from "./dialogs.js";

const STEP = 1.25; // of the zoom

// The sliders are in doublings, as the mouse's drag is.
export function setUpTools(root = document) {
  const brightness = $("#brightness", root);
  const contrast = $("#contrast", root);

  function control(view) {
    brightness.addEventListener("input", () => view.setTone({ brightness: 2 ** brightness.value }));
    contrast.addEventListener("input", () => view.setTone({ contrast: 2 ** contrast.value }));
    $("#zoom-in", root).addEventListener("click", () => view.zoom(STEP));
    $("#zoom-out", root).addEventListener("click", () => view.zoom(1 / STEP));
    $("#zoom-fit", root).addEventListener("click", () => view.fit());
    $("#invert", root).addEventListener("click", () => view.invert());
    $("#plain", root).addEventListener("click", () => view.plainTone());
  }

  function show(tone) {
    brightness.value = Math.log2(tone.brightness);
    contrast.value = Math.log2(tone.contrast);
    $("#invert", root).setAttribute("aria-pressed", String(tone.inverted));
  }

  function keys(view) {
    return {
      "+": () => view.zoom(STEP),
      "=": () => view.zoom(STEP),
      "-": () => view.zoom(1 / STEP),
      0: () => view.fit(),
      i: () => view.invert(),
      w: () => view.plainTone(),
    };
  }

  return { control, show, keys };
}
