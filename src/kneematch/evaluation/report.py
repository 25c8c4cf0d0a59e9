"""What an evaluation writes: evaluation.md, its tables as CSV, and the figure of areas."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from kneematch import __version__
from kneematch.evaluation.scores import MethodRun, Table, common_films
from kneematch.films.csv_text import csv_line
from kneematch.films.files import atomic_write, make_out_folder, write_file
from kneematch.films.pictures import to_grey8
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated
from kneematch.knee.detection import Detection
from kneematch.paper.split import SIDES
from kneematch.run.outputs.run_file import device_name

PAGE: Final = "evaluation.md"
FIGURE: Final = "figure"
TABLES: Final = ("losses", "pairs", "accuracy", "distances", "failures", "templates")

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
DPI: Final = 300
LETTERS: Final = "abcdefgh"  # rows of the figure
# Lengths in inches.
PAGE_WIDTH: Final = 7.2  # both columns of a journal
WIDEST: Final = 1.3  # area
LABELS: Final = 0.3  # column of (a), (b), ...
GAP: Final = 0.1  # between the sides
CAPTION: Final = 0.2  # loss below an area
HEADINGS: Final = 0.5  # sides and names of methods


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateResult:
    """Tables of an evaluation; they and a figure are written to `out`."""

    out: Path
    runs: tuple[MethodRun, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""  # what applies to all tables

    @property
    def page(self) -> Path:
        """The page with all tables and the figure."""
        return self.out / PAGE

    @property
    def failed(self) -> dict[str, str]:
        """Films that a method could not use, with the reasons."""
        return {film: reason for run in self.runs for film, reason in run.failed.items()}

    def table(self, name: str) -> Table | None:
        """Return the table of this name; None if it was not made."""
        return next((table for table in self.tables if table.name == name), None)


def remove_evaluation(out: Path) -> None:
    """Remove what an earlier evaluation wrote, except the runs of its methods."""
    if (out / PAGE).exists():
        files = (*(f"{name}.csv" for name in TABLES), f"{FIGURE}.png", f"{FIGURE}.pdf", PAGE)
        for file in files:
            (out / file).unlink(missing_ok=True)


def write_report(result: EvaluateResult, about: str, device: str) -> None:
    """Write TABLE.csv for each table, the figure if there is one, and evaluation.md.

    `about` says what was evaluated: the number of films and the methods.
    """
    out = result.out
    make_out_folder(out)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    parts = [f"# Evaluation\n\n{about}; kneematch {__version__} on {device_name(device)}; {today}."]
    parts += [result.note] * bool(result.note)
    for table in result.tables:
        lines = "".join(map(csv_line, (table.columns, *table.rows)))
        write_file(out / f"{table.name}.csv", lines.encode("utf-8", "surrogateescape"))
        parts.append(f"## {table.name.capitalize()}\n\n{to_markdown(table)}\n\n{table.caption}")
    runs = [run for run in result.runs if run.found]
    if films := choose_films(runs):
        write_figure(runs, films, out)
        listed = ", ".join(f"({LETTERS[k]}) {film}" for k, film in enumerate(films))
        bold = ", the lowest in bold" if len(runs) > 1 else ""
        caption = f"Areas and their losses{bold}. Films: {listed}."
        parts.append(f"## Figure\n\n![Figure]({FIGURE}.png)\n\n{caption}")
    # The page comes last, since it marks a complete evaluation.
    write_file(out / PAGE, ("\n\n".join(parts) + "\n").encode("utf-8", "surrogateescape"))


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, numbers aligned to the right."""
    rules = ["---" if digits is None else "---:" for digits in table.columns.values()]
    lines = [list(table.columns), rules, *table.shown()]
    cells = ([cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def choose_films(runs: Sequence[MethodRun], count: int = len(LETTERS)) -> list[str]:
    """Choose films from easy to hard: the middle ones of `count` groups by the first method's loss.

    Only films on which every method found two knees are chosen, all of them if they are fewer.
    """
    if not runs:
        return []
    found = runs[0].found
    pairs = [film for film in common_films(runs) if len(found[film]) == len(SIDES)]
    ranked = sorted(pairs, key=lambda film: (sum(knee.loss for knee in found[film]), film))
    count = min(count, len(ranked))
    return [ranked[(2 * k + 1) * len(ranked) // (2 * count)] for k in range(count)]


def write_figure(runs: Sequence[MethodRun], films: Sequence[str], out: Path) -> None:
    """Write figure.png and figure.pdf, in one style whatever the user's matplotlib settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        figure = draw_areas(runs, films)
        for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
            with atomic_write(out / f"{FIGURE}.{kind}") as temp:
                figure.savefig(temp, format=kind, dpi=DPI, metadata=metadata)


def draw_areas(runs: Sequence[MethodRun], films: Sequence[str]) -> Figure:
    """Draw the areas of all methods as the paper does (Sect. 6): a row per film, left sides first.

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
