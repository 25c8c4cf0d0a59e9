"""The paper's figure: films, both sides, all methods, each area with its loss (Sect. 6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from kneematch.detection.detection import Detection
from kneematch.evaluation.method_run import Trial, common_films
from kneematch.evaluation.plot_style import DPI, FULL_WIDTH, SMALL_PT, journal_style, write_figure
from kneematch.geometry.split import SIDES
from kneematch.io.display import to_grey8
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read

FILMS: Final = 8

# In inches.
LABELS: Final = 0.26  # the column of (a), (b), ...
BETWEEN_SIDES: Final = 0.16
GAP: Final = 0.04  # between areas
CAPTION: Final = 0.17  # below an area
HEADINGS: Final = 0.47  # sides and names of methods
ABOVE: Final = 0.07  # an area, up to its heading's line
WIDEST: Final = 1.3  # an area

BELOW_PT: Final = 1.5  # an area, down to its loss

Place = tuple[float, float, float, float]  # left, bottom, width and height, shares of the page


def choose_films(trials: Sequence[Trial], count: int = FILMS) -> list[str]:
    """Films of easy to hard: the middle ones of `count` equal parts, by the first method's loss.

    Only films on which every method found two knees; all of them where there are fewer.
    """
    first = trials[0]
    pairs = [film for film in common_films(trials) if len(first.found[film]) == len(SIDES)]
    ranked = sorted(pairs, key=lambda film: (sum(knee.loss for knee in first.found[film]), film))
    count = min(count, len(ranked))
    return [ranked[(2 * k + 1) * len(ranked) // (2 * count)] for k in range(count)]


def draw_figure(trials: Sequence[Trial], films: Sequence[str], path: Path) -> list[Path]:
    """Write PATH.png and PATH.pdf: a row a film, a column a method, the left sides first.

    The lowest loss of a side is bold.
    """
    layout = Layout(len(trials), len(films), _aspect(trials, films))
    with journal_style():
        figure = Figure((FULL_WIDTH, layout.height))
        _name_columns(figure, layout, [trial.method for trial in trials])
        for row, name in enumerate(films):
            film = read(name)
            _name_row(figure, layout, row)
            for group, side in enumerate(SIDES):
                knees = [_knee(trial, name, side) for trial in trials]
                places = [layout.place(row, group * len(trials) + k) for k in range(len(trials))]
                _draw_side(figure, places, film, knees)
        return write_figure(figure, path)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where areas stand on the page; lengths in inches."""

    methods: int
    films: int
    aspect: float  # of an area, height over width

    @property
    def area(self) -> tuple[float, float]:
        """(height, width) of an area."""
        gaps = LABELS + BETWEEN_SIDES + GAP * (2 * self.methods - 2)
        width = min((FULL_WIDTH - gaps) / (2 * self.methods), WIDEST)
        return width * self.aspect, width

    @property
    def height(self) -> float:
        """Of the page."""
        return HEADINGS + self.films * (self.area[0] + CAPTION)

    def left(self, column: int) -> float:
        """The left edge of a column."""
        used = LABELS + BETWEEN_SIDES + 2 * self.methods * (self.area[1] + GAP) - 2 * GAP
        margin = (FULL_WIDTH - used) / 2  # where few methods leave one
        between = BETWEEN_SIDES - GAP if column >= self.methods else 0.0
        return margin + LABELS + column * (self.area[1] + GAP) + between

    def place(self, row: int, column: int) -> Place:
        """Of an area."""
        height, width = self.area
        bottom = self.height - HEADINGS - row * (height + CAPTION) - height
        return (
            self.left(column) / FULL_WIDTH,
            bottom / self.height,
            width / FULL_WIDTH,
            height / self.height,
        )


def _name_columns(figure: Figure, layout: Layout, methods: Sequence[str]) -> None:
    """Methods above their columns, sides above these."""
    count = len(methods)
    for group, side in enumerate(SIDES):
        x0, bottom, _, height = layout.place(0, group * count)
        x1, _, width, _ = layout.place(0, (group + 1) * count - 1)
        top = 1 - GAP / layout.height
        figure.text((x0 + x1 + width) / 2, top, side, ha="center", va="top", weight="bold")
        for column, method in enumerate(methods, group * count):
            left, *_ = layout.place(0, column)
            heading = method.replace("+", "\n+ ")
            y = bottom + height + ABOVE / layout.height
            figure.text(left + width / 2, y, heading, ha="center", va="baseline", linespacing=1.0)


def _name_row(figure: Figure, layout: Layout, row: int) -> None:
    left, bottom, _, height = layout.place(row, 0)
    x = left - 2 * GAP / FULL_WIDTH
    figure.text(x, bottom + height / 2, f"({_letters(row)})", ha="right", va="center")


def _letters(row: int) -> str:
    """a, b, ... z, then aa, ab, ..."""
    letter = ascii_lowercase[row % 26]
    return letter if row < 26 else _letters(row // 26 - 1) + letter


def _draw_side(
    figure: Figure, places: Sequence[Place], film: Radiograph, knees: Sequence[Detection | None]
) -> None:
    """One knee as each method found it, nothing where it did not."""
    found = [knee for knee in knees if knee is not None]
    lowest = min((knee.loss for knee in found), default=0.0)
    for place, knee in zip(places, knees, strict=True):
        if knee is not None:
            bold = len(found) > 1 and _shown(knee.loss) == _shown(lowest)
            _draw_area(figure.add_axes(place), film, knee, bold=bold)


def _draw_area(axes: Axes, film: Radiograph, knee: Detection, *, bold: bool) -> None:
    """An area, upright and in greys of its own, and its loss below."""
    axes.set_axis_off()
    axes.imshow(_grey(film, knee), cmap="gray", vmin=0, vmax=255, aspect="auto")
    weight = "bold" if bold else "normal"
    axes.annotate(
        _shown(knee.loss),
        (0.5, 0),
        (0, -BELOW_PT),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
        va="top",
        size=SMALL_PT,
        weight=weight,
    )


def _grey(film: Radiograph, knee: Detection) -> NDArray[np.uint8]:
    """The area in bytes, no larger than print shows it."""
    crop = to_grey8(knee.crop(film, mm=None, spacing_mm=None))
    height, width = crop.shape
    scale = min(1.0, WIDEST * DPI / width)
    size = max(1, round(scale * width)), max(1, round(scale * height))
    return np.asarray(Image.fromarray(crop).resize(size, Image.Resampling.LANCZOS))


def _shown(loss: float) -> str:
    return f"{loss:.3f}"


def _knee(trial: Trial, film: str, side: str) -> Detection | None:
    return next((knee for knee in trial.found.get(film, ()) if knee.side == side), None)


def _aspect(trials: Sequence[Trial], films: Sequence[str]) -> float:
    """Of the first area; the others are of the same template."""
    knees = (knee for trial in trials for film in films for knee in trial.found.get(film, ()))
    first = next(knees, None)
    return 1.0 if first is None else first.height_px / first.width_px
