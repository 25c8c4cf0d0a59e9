"""Figures of films: areas of all methods side by side (the paper, Sect. 6), and outlines."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, cycle
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon
from numpy.typing import NDArray
from PIL import Image

from kneematch.evaluation.method_run import MethodRun, common_films
from kneematch.evaluation.scores import Scores
from kneematch.films.display import to_grey8
from kneematch.films.files import atomic_write
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated
from kneematch.knee.detection import Detection
from kneematch.paper.split import SIDES

FULL_WIDTH: Final = 7.2  # inches, both columns of a journal
DPI: Final = 300
TEXT_PT: Final = 8.0
SMALL_PT: Final = 7.0

# Okabe and Ito's colours for colour-blind readers, without yellow, which is lost on paper, and
# black, which is lost on films.
COLOURS: Final = ("#D55E00", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#0072B2")

STYLE: Final[dict[Any, Any]] = {
    "font.family": "STIXGeneral",  # ships with matplotlib, so figures look the same everywhere
    "mathtext.fontset": "stix",
    "font.size": TEXT_PT,
    "axes.labelsize": TEXT_PT,
    "axes.titlesize": TEXT_PT,
    "xtick.labelsize": SMALL_PT,
    "ytick.labelsize": SMALL_PT,
    "legend.fontsize": SMALL_PT,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # TrueType, so that text can be searched and copied
}

FILMS: Final = 8  # rows of the figure
LETTERS: Final = "abcdefgh"

# Lengths in the figure of areas, in inches.
LABELS: Final = 0.26  # column of (a), (b), ...
BETWEEN_SIDES: Final = 0.16
GAP: Final = 0.04  # between areas
CAPTION: Final = 0.17  # below an area
HEADINGS: Final = 0.47  # sides and names of methods
WIDEST: Final = 1.3  # area

# Lengths in the figure of outlines, in inches.
TALLEST: Final = 6.0  # film
LEGEND: Final = 0.3
AROUND: Final = 0.5  # of an area's width, shown of the film around all areas

DASHES: Final = ("-", (0, (5, 2)), (0, (2, 2)), (0, (7, 3, 2, 3)), (0, (9, 4)), (0, (1, 3)))
LINES: Final[tuple[dict[str, Any], ...]] = tuple(
    # Each line is thinner than the one before, so that all are seen where they coincide.
    {"color": colour, "linestyle": dashes, "linewidth": max(1.9 - 0.3 * number, 0.8)}
    for number, (colour, dashes) in enumerate(zip(COLOURS, DASHES, strict=True))
)
# Drawn under all lines, so that they stand out on bone.
SHADE: Final[dict[str, Any]] = {"color": "black", "alpha": 0.15, "linewidth": 2.7}


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


def draw_areas(
    runs: Sequence[MethodRun], films: Sequence[str], scores: Scores | None = None
) -> Figure:
    """Draw the areas of all methods: one row per film, one column per method, left sides first.

    The loss is below each area. In bold is the area of a knee that is closest to its label or,
    without labels, that has the lowest loss. Films are lettered and not named.
    """
    errors = {
        (method, knee.film, knee.side): knee.margin_percent
        for method, knees in (scores or {}).items()
        for knee in knees
    }
    first = runs[0].found[films[0]][0]  # all areas are of one template
    figure, grids = _area_grids(len(runs), len(films), first.height_px / first.width_px)
    for side, grid in zip(SIDES, grids, strict=True):
        for run, axes in zip(runs, grid[0], strict=True):
            axes.set_title(run.method.replace("+", "\n+ "), pad=5, linespacing=1.0)
        x0, x1 = grid[0, 0].get_position().x0, grid[0, -1].get_position().x1
        top = 1 - GAP / figure.get_figheight()
        figure.text((x0 + x1) / 2, top, side, ha="center", va="top", weight="bold")
    for row, film in enumerate(films):
        grids[0][row, 0].set_ylabel(f"({LETTERS[row]})", rotation=0, ha="right", va="center")
        radiograph = read_isolated(film)
        for number, grid in enumerate(grids):
            knees = [run.found[film][number] for run in runs]
            known = [
                errors.get((run.method, film, knee.side), math.nan)
                for run, knee in zip(runs, knees, strict=True)
            ]
            _draw_side(grid[row], radiograph, knees, known)
    return figure


def draw_outlines(runs: Sequence[MethodRun], film: str) -> Figure:
    """Draw the outlines of all methods' areas on a film; the legend has the sum of their losses."""
    radiograph = read_isolated(film)
    found = [run.found[film] for run in runs]
    figure, axes = _film_page(radiograph, _window(list(chain(*found)), radiograph.size))
    for knee in chain(*found):
        axes.add_patch(Polygon(knee.corners, fill=False, **SHADE))
    handles = []
    for run, knees, line in zip(runs, found, cycle(LINES), strict=False):
        for knee in knees:
            axes.add_patch(Polygon(knee.corners, fill=False, **line))
        loss = sum(knee.loss for knee in knees)
        handles.append(Line2D([], [], label=f"{run.method}  {loss:.3f}", **line))
    spaces = {"handlelength": 2.6, "columnspacing": 2.0, "borderaxespad": 0.2, "frameon": False}
    figure.legend(
        handles=handles, loc="lower center", ncols=len(handles), fontsize=TEXT_PT, **spaces
    )
    return figure


def _area_grids(methods: int, films: int, aspect: float) -> tuple[Figure, list[NDArray[Any]]]:
    """Make a page with a grid of axes (films, methods) per side; `aspect` is that of an area."""
    gaps = LABELS + BETWEEN_SIDES + 2 * GAP * (methods - 1)
    width = min((FULL_WIDTH - gaps) / (2 * methods), WIDEST)
    height = aspect * width
    page = HEADINGS + films * (height + CAPTION)
    figure = Figure((FULL_WIDTH, page))
    grid_width = methods * (width + GAP) - GAP
    margin = (FULL_WIDTH - gaps - 2 * methods * width) / 2  # where few methods leave one
    lefts = margin + LABELS, margin + LABELS + grid_width + BETWEEN_SIDES
    grids = [
        figure.add_gridspec(
            films,
            methods,
            left=left / FULL_WIDTH,
            right=(left + grid_width) / FULL_WIDTH,
            top=1 - HEADINGS / page,
            bottom=CAPTION / page,
            wspace=GAP / width,
            hspace=CAPTION / height,
        ).subplots(squeeze=False)
        for left in lefts
    ]
    for axes in chain.from_iterable(grid.flat for grid in grids):
        axes.set(xticks=[], yticks=[], frame_on=False)
    return figure, grids


def _draw_side(
    grid: Iterable[Axes], film: Radiograph, knees: Sequence[Detection], errors: Sequence[float]
) -> None:
    """Draw one knee as each method found it; errors are NaN where they are not known."""
    labelled = all(map(math.isfinite, errors))
    ranks = [round(value, 3) for value in (errors if labelled else [k.loss for k in knees])]
    for axes, knee, rank in zip(grid, knees, ranks, strict=True):
        axes.imshow(_area(film, knee), cmap="gray", vmin=0, vmax=255, aspect="auto")
        weight = "bold" if len(ranks) > 1 and rank == min(ranks) else "normal"
        axes.set_xlabel(f"{knee.loss:.3f}", labelpad=1.5, size=SMALL_PT, weight=weight)


def _area(film: Radiograph, knee: Detection) -> NDArray[np.uint8]:
    """Return an area upright, with its own grey levels, no larger than it is printed."""
    crop = to_grey8(knee.crop(film, mm=None, spacing_mm=None))
    height, width = crop.shape
    scale = min(1.0, WIDEST * DPI / width)
    size = max(1, round(scale * width)), max(1, round(scale * height))
    return np.asarray(Image.fromarray(crop).resize(size, Image.Resampling.LANCZOS))


def _window(knees: Sequence[Detection], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the part of a film around all areas: x0, y0, x1, y1."""
    height, width = size
    corners = np.concatenate([knee.corners for knee in knees])
    margin = AROUND * max(knee.width_px for knee in knees)
    x0, y0 = np.maximum(corners.min(0) - margin, 0)
    x1, y1 = np.minimum(corners.max(0) + margin, (width, height))
    return int(x0), int(y0), math.ceil(x1), math.ceil(y1)


def _film_page(film: Radiograph, window: tuple[int, int, int, int]) -> tuple[Figure, Axes]:
    """Make a page with a part of a film, no taller than TALLEST, and room for a legend below."""
    x0, y0, x1, y1 = window
    aspect = (y1 - y0) / (x1 - x0)
    width = min(FULL_WIDTH, TALLEST / aspect)
    height = width * aspect
    figure = Figure((FULL_WIDTH, height + LEGEND))
    share = height / (height + LEGEND)
    axes = figure.add_axes((0.5 - width / FULL_WIDTH / 2, 1 - share, width / FULL_WIDTH, share))
    axes.set_axis_off()
    part = Image.fromarray(to_grey8(film.pixels[y0:y1, x0:x1]))
    part.thumbnail((round(FULL_WIDTH * DPI), round(TALLEST * DPI)), Image.Resampling.LANCZOS)
    axes.imshow(part, cmap="gray", vmin=0, vmax=255, extent=(x0, x1, y1, y0), aspect="auto")
    axes.set(xlim=(x0, x1), ylim=(y1, y0))
    return figure, axes
