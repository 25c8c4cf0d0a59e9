"""Write folders of phantoms with their ground truth, for demonstrations, tests and training."""

import csv
import json
import math
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from kneephantoms.anatomy import Size
from kneephantoms.config import SynthConfig
from kneephantoms.files import replace_file, write_dicom, write_png16
from kneephantoms.rendering import Knee, Phantom, phantom

TRUTH: Final = "truth.csv"
TEMPLATE: Final = "template.json"
TEMPLATE_FORMAT: Final = "kneematch-template/1"
SUFFIXES: Final = {"dicom": ".dcm", "png": ".png"}
OWN_FILES: Final = re.compile(r"phantom-\d{5,}\.(dcm|png)|truth\.csv|template\.json")

MARGINS: Final = ("plateau_medial", "plateau_lateral")
POINTS: Final = (*MARGINS, "centre")
TRUTH_COLUMNS: Final = (
    *("film", "side", "laterality", *(f"{point}_{axis}_px" for point in POINTS for axis in "xy")),
    *("rotation_deg", "mm_per_px", "grade", "negative", "implant"),
)

# Boxes of a template around a knee in the right half of a picture: x0, y0, x1, y1 from the midpoint
# between the plateau's margins, in plateau widths.
BOXES: Final = {
    "fine": (-0.665, -0.702, 0.684, 0.646),
    "coarse": (-0.867, -0.904, 0.886, 0.848),
    "red": (-0.627, -0.215, -0.234, 0.178),
    "green": (0.253, -0.234, 0.646, 0.159),
}
PREFERRED_GRADE: Final = 2  # the highest Kellgren-Lawrence grade of a typical knee
# Half a film as kneematch cuts it, 1.6 times as tall as wide: a little more than half of the width
# where two knees make the film symmetric, and perhaps less around a single one.
HALF_WIDTHS: Final = {1: 0.41, 2: 0.55}
HALF_ASPECT: Final = 1.6
BOX_WIDTHS: Final = (0.15, 0.95)  # share of the half's width

TruthRow = dict[str, str]


@dataclass(frozen=True, slots=True)
class SynthResult:
    """Files that `synthesize` wrote besides the films."""

    truth: Path
    template: Path | None  # None if no knee can serve as a template


@dataclass(frozen=True, slots=True)
class WrittenFilm:
    """What is known of a film on disk."""

    name: str
    size: Size
    knees: list[TruthRow]


def synthesize(
    out: str | os.PathLike[str],
    config: SynthConfig | None = None,
    *,
    advance: Callable[[str], None] | None = None,
) -> SynthResult:
    """Write phantoms, their ground truth (a row per frontal knee) and a template of one knee.

    Film k is named phantom-0000k and is the phantom of seed + k, whatever the number of workers;
    `advance` is called with the name of each, in order. The folder must be empty, or
    FileExistsError is raised; `config.force` replaces the files of an earlier call and no others.
    """
    out, config = Path(out), config or SynthConfig()
    out.mkdir(0o700, parents=True, exist_ok=True)
    names = sorted(entry.name for entry in out.iterdir())
    if names and not config.force:
        raise FileExistsError(f"{out}: the folder is not empty ({names[0]}).")
    for name in filter(OWN_FILES.fullmatch, names):
        (out / name).unlink()
    films = []
    with _mapper(config.workers) as mapper:
        for film in mapper(partial(_write_film, out, config), range(config.count)):
            films.append(film)
            if advance is not None:
                advance(film.name)
    with (
        replace_file(out / TRUTH) as temp,
        temp.open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.DictWriter(file, TRUTH_COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(row for film in films for row in film.knees)
    template = choose_template(films)
    if template is None:
        return SynthResult(out / TRUTH, None)
    with replace_file(out / TEMPLATE) as temp:
        temp.write_text(f"{json.dumps(template, indent=1)}\n", encoding="utf-8")
    return SynthResult(out / TRUTH, out / TEMPLATE)


def choose_template(films: list[WrittenFilm]) -> dict[str, Any] | None:
    """Return the template.json of the first knee that can serve as one, best a typical one.

    Returns None if all films are negatives or show implants, or if the boxes of every knee leave
    its half of the film.
    """
    typical = [
        (film, row)
        for film in films
        for row in film.knees
        if row["negative"] == "0" and not row["implant"]
    ]
    typical.sort(key=lambda each: int(each[1]["grade"]) > PREFERRED_GRADE)
    for film, row in typical:
        boxes, landmarks = _annotate(row)
        if all(_fits(boxes[name], film, row["side"]) for name in ("fine", "coarse")):
            return {
                "format": TEMPLATE_FORMAT,
                "film": film.name,
                "side": row["side"],
                "boxes": boxes,
                "landmarks": landmarks,
            }
    return None


def _annotate(row: TruthRow) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the boxes x0, y0, x1, y1 of a knee, mirrored in the left half, and its margins."""
    left, right = sorted(
        (float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])) for name in MARGINS
    )
    unit = math.dist(left, right)
    x, y = (left[0] + right[0]) / 2, (left[1] + right[1]) / 2
    boxes = {}
    for name, (x0, y0, x1, y1) in BOXES.items():
        across = (-x1, -x0) if row["side"] == "left" else (x0, x1)
        corners = x + unit * across[0], y + unit * y0, x + unit * across[1], y + unit * y1
        boxes[name] = [round(value, 1) for value in corners]
    medial_first = (right, left) if row["side"] == "left" else (left, right)
    return boxes, {name: list(at) for name, at in zip(MARGINS, medial_first, strict=True)}


def _fits(box: list[float], film: WrittenFilm, side: str) -> bool:
    """Return whether a box lies in its half of a film."""
    (height, width), (x0, y0, x1, y1) = film.size, box
    across = HALF_WIDTHS[len(film.knees)] * width
    padded = max(across, height / HALF_ASPECT)
    beside, above = (padded - across) / 2, (HALF_ASPECT * padded - height) / 2
    start = 0.0 if side == "left" else width - across
    least, most = BOX_WIDTHS
    return (
        start - beside <= x0
        and x1 <= start + across + beside
        and -above <= y0
        and y1 <= height + above
        and least * padded <= x1 - x0 <= most * padded
    )


Mapper = Callable[[Callable[[int], WrittenFilm], range], Iterator[WrittenFilm]]


@contextmanager
def _mapper(workers: int | None) -> Iterator[Mapper]:
    """Yield the built-in `map`, or that of worker processes, which ends them with the context."""
    if not workers:
        yield map
        return
    # A fork of this process would copy locks that its other threads hold.
    start = "forkserver" if sys.platform == "linux" else "spawn"
    context, ignore = multiprocessing.get_context(start), (signal.SIGINT, signal.SIG_IGN)
    # Ctrl-C is for the main process.
    pool = ProcessPoolExecutor(workers, context, signal.signal, ignore)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def _write_film(folder: Path, config: SynthConfig, index: int) -> WrittenFilm:
    seed, path = config.seed + index, folder / f"phantom-{index:05d}{SUFFIXES[config.format]}"
    names = "size", "family", "framing", "turn_deg", "mirrored"
    made = phantom(seed, **{name: getattr(config, name) for name in names})
    if config.format == "png":
        write_png16(path, made.pixels)
    else:
        # The patient's direction along the rows after each quarter turn; the one before is that
        # down the columns.
        directions, turns = "RHLF" if config.mirrored else "LHRF", round(config.turn_deg / 90) % 4
        write_dicom(
            path,
            made.pixels,
            mm_per_px=made.mm_per_px,
            laterality=made.laterality,
            view="AP",
            series="phantom",
            orientation=(directions[turns], directions[turns - 1]),
            entropy=f"kneematch phantom {seed} {replace(config, count=1, workers=None)}",
        )
    height, width = made.pixels.shape
    return WrittenFilm(
        path.name, (height, width), [_truth_row(path.name, made, knee) for knee in made.knees]
    )


def _truth_row(name: str, made: Phantom, knee: Knee) -> TruthRow:
    points = (f"{value:.4f}" for point in POINTS for value in getattr(knee, point))
    numbers = f"{knee.rotation_deg:.4f}", f"{made.mm_per_px:.6f}", knee.grade, int(made.negative)
    cells = name, knee.side, knee.laterality, *points, *map(str, numbers), knee.implant
    return dict(zip(TRUTH_COLUMNS, cells, strict=True))
