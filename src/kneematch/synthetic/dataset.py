"""Folders of phantoms with their truth, for demonstrations, tests and training."""

import csv
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch

from kneematch.errors import SettingsError
from kneematch.geometry.split import SMALLEST_FILM
from kneematch.io.atomic import write_aside
from kneematch.io.intensity import MAX_PIXELS
from kneematch.io.write import write_dicom, write_png16
from kneematch.synthetic.phantom import KINDS, Knee, Phantom, phantom

TRUTH: Final = "truth.csv"
SUFFIXES: Final = {"dicom": ".dcm", "png": ".png"}
OURS: Final = re.compile(r"phantom-\d{5,}\.(dcm|png)|truth\.csv")
FILMS_A_WORKER: Final = 16  # a process takes about as long to start

COLUMNS: Final = (
    "film",
    "side",
    "laterality",
    "plateau_left_x_px",
    "plateau_left_y_px",
    "plateau_right_x_px",
    "plateau_right_y_px",
    "centre_x_px",
    "centre_y_px",
    "rotation_deg",
    "mm_per_px",
    "grade",
    "negative",
    "hardware",
)
Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to synthesise; film k is the phantom of seed + k."""

    count: int = 100
    format: str = "dicom"  # or "png"
    size: tuple[int, int] | None = None  # of every film; None varies it as real films vary
    seed: int = 0
    family: int | None = None  # films of one family share the shape of their bones
    kind: str | None = None  # of framing: knee, wide, leg or fill; None mixes them


def synthesise(
    folder: str | os.PathLike[str],
    recipe: Recipe,
    *,
    workers: int | None = None,
    force: bool = False,
    report: Callable[[Path], None] = lambda path: None,
) -> Path:
    """Write phantom-00000 and so on, and truth.csv, two rows a film; return the latter's path.

    Args:
        folder: made if not there; must be empty unless forced.
        recipe: what to write.
        workers: processes; None goes by the cores and the number of films.
        force: replace the phantoms of an earlier run; other files stay.
        report: called with each film as it is done, in order.
    """
    folder = Path(folder)
    _check(recipe, workers)
    _prepare(folder, force)
    rows: list[Row] = []
    with closing(_written(folder, recipe, workers or _enough_workers(recipe.count))) as films:
        for path, knees in films:
            rows.extend(knees)
            report(path)
    with write_aside(folder / TRUTH) as aside, aside.open("w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    return folder / TRUTH


def _check(recipe: Recipe, workers: int | None) -> None:
    if recipe.count < 1:
        raise SettingsError(f"{recipe.count} films; expected at least 1; ask for more")
    if recipe.format not in SUFFIXES:
        raise SettingsError(f"format {recipe.format!r}; expected dicom or png; choose one")
    if min(recipe.seed, recipe.family or 0) < 0:
        raise SettingsError("a negative seed or family; expected 0 or more; choose another")
    if recipe.kind is not None and recipe.kind not in KINDS:
        raise SettingsError(f"kind {recipe.kind!r}; expected one of {', '.join(KINDS)}; choose one")
    if workers is not None and workers < 1:
        raise SettingsError(f"{workers} workers; expected at least 1; leave it to the cores")
    if recipe.size is None:
        return
    height, width = recipe.size
    if min(height, width) < SMALLEST_FILM or height * width > MAX_PIXELS:
        raise SettingsError(
            f"films of {height} x {width} pixels; expected at least {SMALLEST_FILM} a side and at "
            f"most {MAX_PIXELS} in all; choose another size"
        )


def _prepare(folder: Path, force: bool) -> None:
    """An empty folder, or one without phantoms: a truth.csv never tells of other films."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(entry.name for entry in folder.iterdir())
    if names and not force:
        raise SettingsError(
            f"{folder}: not empty ({names[0]}); expected a new folder; name another one, or "
            "replace the phantoms in it with --force"
        )
    for name in filter(OURS.fullmatch, names):
        (folder / name).unlink()


def _enough_workers(count: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, max(1, count // FILMS_A_WORKER))


def _written(folder: Path, recipe: Recipe, workers: int) -> Generator[tuple[Path, list[Row]]]:
    """Every film and its rows of the truth, in order."""
    write = partial(_write, folder, recipe)
    if workers == 1:
        yield from map(write, range(recipe.count))
        return
    # A fork would copy locks that torch's threads may hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start_worker) as pool:
        yield from pool.map(write, range(recipe.count))


def _start_worker() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops the pool


def _write(folder: Path, recipe: Recipe, index: int) -> tuple[Path, list[Row]]:
    seed = recipe.seed + index
    made = phantom(seed, size=recipe.size, family=recipe.family, kind=recipe.kind)
    film = made.radiograph
    path = folder / f"phantom-{index:05d}{SUFFIXES[recipe.format]}"
    if recipe.format == "png":
        write_png16(path, film.pixels)
    else:
        write_dicom(
            path,
            film.pixels,
            mm_per_px=film.mm_per_px,
            laterality=film.laterality,
            view=film.view,
            series=film.series,
            entropy=f"kneematch phantom {seed} {recipe.size} {recipe.family} {recipe.kind}",
        )
    return path, [_row(path.name, made, knee) for knee in made.knees]


def _row(name: str, made: Phantom, knee: Knee) -> Row:
    points = (*knee.plateau_left, *knee.plateau_right, *knee.centre, knee.rotation_deg)
    values = (
        name,
        knee.side,
        knee.laterality,
        *(f"{value:.4f}" for value in points),
        "" if made.radiograph.mm_per_px is None else f"{made.radiograph.mm_per_px:.6f}",
        str(knee.grade),
        str(int(made.negative)),
        made.hardware or "",
    )
    return dict(zip(COLUMNS, values, strict=True))
