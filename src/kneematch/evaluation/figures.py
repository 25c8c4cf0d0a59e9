"""Figure of the areas of all methods side by side, as in the paper (Sect. 6)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from kneematch.evaluation.method_runs import MethodRun, common_films
from kneematch.films.files import atomic_write
from kneematch.films.pictures import to_grey8
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated
from kneematch.knee.detection import Detection
from kneematch.paper.split import SIDES

DPI: Final = 300
STYLE: Final[dict[Any, Any]] = {
    "font.family": "STIXGeneral",  # ships with matplotlib, so figures look the same everywhere
    "mathtext.fontset": "stix",
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 7.0,
    "figure.constrained_layout.h_pad": 0.02,
    "figure.constrained_layout.w_pad": 0.02,
    "pdf.fonttype": 42,  # TrueType, so that text can be searched and copied
}
FILMS: Final = 8  # rows of the figure
LETTERS: Final = "abcdefgh"

# Lengths in inches.
PAGE_WIDTH: Final = 7.2  # both columns of a journal
WIDEST: Final = 1.3  # area
LABELS: Final = 0.3  # column of (a), (b), ...
GAP: Final = 0.1  # between the sides
CAPTION: Final = 0.2  # loss below an area
HEADINGS: Final = 0.5  # sides and names of methods


@contextmanager
def journal_style() -> Iterator[None]:
    """Draw and save figures in one style, whatever the user's matplotlib settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write PATH.png and PATH.pdf, reproducibly; `path` has no suffix."""
    written = []
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        target = path.with_name(f"{path.name}.{kind}")
        with atomic_write(target) as temp:
            figure.savefig(temp, format=kind, dpi=DPI, metadata=metadata)
        written.append(target)
    return written


def choose_films(runs: Sequence[MethodRun], count: int = FILMS) -> list[str]:
    """Choose films from easy to hard: the middle ones of `count` groups by the first method's loss.

    Only films on which every method found two knees are chosen, all of them if they are fewer.
    """
    found = runs[0].found
    pairs = [film for film in common_films(runs) if len(found[film]) == len(SIDES)]
    ranked = sorted(pairs, key=lambda film: (sum(knee.loss for knee in found[film]), film))
    count = min(count, len(ranked))
    return [ranked[(2 * k + 1) * len(ranked) // (2 * count)] for k in range(count)]


def draw_areas(runs: Sequence[MethodRun], films: Sequence[str]) -> Figure:
    """Draw the areas of all methods: one row per film, one column per method, left sides first.

    The loss is below each area, the lowest one of a knee in bold. Films are lettered and not named.
    """
    first = runs[0].found[films[0]][0]  # all areas are of one template
    width = min((PAGE_WIDTH - LABELS) / (2 * len(runs)), WIDEST)
    height = width * first.height_px / first.width_px + CAPTION
    size = 2 * len(runs) * width + LABELS, len(films) * height + HEADINGS
    figure = Figure(size, layout="constrained")
    ratios = [1.0] * len(runs) + [GAP / width] + [1.0] * len(runs)
    grid = figure.subplots(len(films), len(ratios), squeeze=False, width_ratios=ratios)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[], frame_on=False)
    for row, film in enumerate(films):
        grid[row, 0].set_ylabel(f"({LETTERS[row]})", rotation=0, ha="right", va="center")
        radiograph = read_isolated(film)
        for number, side in enumerate(SIDES):
            knees = [run.found[film][number] for run in runs]
            lowest = min(round(knee.loss, 3) for knee in knees)
            columns = grid[row, number * (len(runs) + 1) :]
            for axes, run, knee in zip(columns, runs, knees, strict=False):
                best = len(runs) > 1 and round(knee.loss, 3) == lowest
                axes.imshow(_area(radiograph, knee), cmap="gray", vmin=0, vmax=255)
                axes.set_xlabel(f"{knee.loss:.3f}", labelpad=1.5, weight="bold" if best else None)
                if row == 0:
                    axes.set_title(f"{side}\n{run.method}".replace("+", "\n+ "), linespacing=1.0)
    return figure


def _area(film: Radiograph, knee: Detection) -> NDArray[np.uint8]:
    """Return an area upright, with its own grey levels, no larger than it is printed."""
    image = Image.fromarray(to_grey8(knee.crop(film, mm=None, spacing_mm=None)))
    image.thumbnail((round(WIDEST * DPI), 10 * image.height), Image.Resampling.LANCZOS)
    return np.asarray(image)
