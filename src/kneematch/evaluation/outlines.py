"""A film with what every method found on it."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon
from PIL import Image

from kneematch.detection.detection import Detection
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.plot_style import (
    COLOURS,
    DASHES,
    DPI,
    FULL_WIDTH,
    TEXT_PT,
    journal_style,
    write_figure,
)
from kneematch.io.display import to_grey8
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read

TALLEST: Final = 6.0  # inches, a picture
LEGEND: Final = 0.3  # inches, below it
AROUND: Final = 0.5  # of an area's width, shown of the film around all areas
STYLES: Final[tuple[dict[str, Any], ...]] = tuple(
    # Thinner and thinner, so that all are seen where they coincide.
    {"color": colour, "linestyle": dashes, "linewidth": max(1.9 - 0.3 * number, 0.8)}
    for number, (colour, dashes) in enumerate(zip(COLOURS, DASHES, strict=True))
)
# Under lines, so that they stand out on bone.
SHADE: Final[dict[str, Any]] = {"color": "black", "alpha": 0.15, "linewidth": 2.7}

Window = tuple[int, int, int, int]  # x0, y0, x1, y1 in film pixels


def draw_outlines(trials: Sequence[Trial], film: str, path: Path) -> list[Path]:
    """Write PATH.png and PATH.pdf: the film around its knees, and all methods' outlines on it.

    The legend has the sum of each method's losses.
    """
    radiograph = read(film)
    found = [trial.found.get(film, ()) for trial in trials]
    window = _window(found, radiograph.size)
    with journal_style():
        figure, axes = _page(window)
        _show(axes, radiograph, window)
        for knee in chain.from_iterable(found):
            axes.add_patch(Polygon(knee.corners, fill=False, **SHADE))
        lines = []
        for trial, knees, style in zip(trials, found, cycle(STYLES), strict=False):
            for knee in knees:
                axes.add_patch(Polygon(knee.corners, fill=False, **style))
            losses = f"{sum(knee.loss for knee in knees):.3f}" if knees else "-"
            lines.append(Line2D([], [], label=f"{trial.method}  {losses}", **style))
        figure.legend(
            handles=lines,
            loc="lower center",
            ncols=len(lines),
            frameon=False,
            fontsize=TEXT_PT,
            handlelength=2.6,
            columnspacing=2.0,
            borderaxespad=0.2,
        )
        return write_figure(figure, path)


def _window(found: Iterable[Sequence[Detection]], size: tuple[int, int]) -> Window:
    """All areas and some of the film around them; all of a film without."""
    height, width = size
    knees = [knee for some in found for knee in some]
    if not knees:
        return 0, 0, width, height
    corners = np.concatenate([knee.corners for knee in knees])
    margin = AROUND * max(knee.width_px for knee in knees)
    x0, y0 = np.maximum(corners.min(0) - margin, 0)
    x1, y1 = np.minimum(corners.max(0) + margin, (width, height))
    return int(x0), int(y0), math.ceil(x1), math.ceil(y1)


def _page(window: Window) -> tuple[Figure, Axes]:
    """A page as wide as a journal's, or as the picture that would else be too tall."""
    x0, y0, x1, y1 = window
    aspect = (y1 - y0) / (x1 - x0)
    width = min(FULL_WIDTH, TALLEST / aspect)
    height = width * aspect
    figure = Figure((FULL_WIDTH, height + LEGEND))
    share = height / (height + LEGEND)
    place = (0.5 - width / FULL_WIDTH / 2, 1 - share, width / FULL_WIDTH, share)
    axes = figure.add_axes(place)
    axes.set_axis_off()
    return figure, axes


def _show(axes: Axes, film: Radiograph, window: Window) -> None:
    """A part of the film, in greys of its own and no larger than print shows it."""
    x0, y0, x1, y1 = window
    part = Image.fromarray(to_grey8(film.pixels[y0:y1, x0:x1]))
    part.thumbnail((round(FULL_WIDTH * DPI), round(TALLEST * DPI)), Image.Resampling.LANCZOS)
    axes.imshow(part, cmap="gray", vmin=0, vmax=255, extent=(x0, x1, y1, y0), aspect="auto")
    axes.set(xlim=(x0, x1), ylim=(y1, y0))
