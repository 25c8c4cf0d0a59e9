"""Write folders of phantoms with their ground truth, for demonstrations, tests and training."""

import csv
import multiprocessing
import os
import re
import signal
from collections.abc import Generator
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
from kneematch.io.limits import MAX_PIXELS
from kneematch.io.write import write_dicom, write_png16
from kneematch.matching.annotation import save_annotation
from kneematch.progress import Progress, no_progress
from kneematch.synthetic.annotation import annotation_from_truth
from kneematch.synthetic.config import SynthConfig
from kneematch.synthetic.phantom import Knee, Phantom, phantom

TRUTH: Final = "truth.csv"
TEMPLATE: Final = "template.json"
SUFFIXES: Final = {"dicom": ".dcm", "png": ".png"}
OWN_FILES: Final = re.compile(r"phantom-\d{5,}\.(dcm|png)|truth\.csv|template\.json")
FILMS_PER_WORKER: Final = 16  # rendering as many takes about as long as starting a process

COLUMNS: Final = (
    *("film", "side", "laterality"),
    *("plateau_left_x_px", "plateau_left_y_px", "plateau_right_x_px", "plateau_right_y_px"),
    *("centre_x_px", "centre_y_px", "rotation_deg", "mm_per_px"),
    *("grade", "negative", "hardware"),
)
Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class SynthResult:
    """Files that `synthesize` wrote besides the films."""

    truth: Path
    template: Path | None  # None if no knee can serve as a template


def synthesize(
    out: str | os.PathLike[str],
    config: SynthConfig | None = None,
    *,
    progress: Progress = no_progress,
) -> SynthResult:
    """Write phantoms, their ground truth (two rows a film) and an annotation of one of them.

    Film k is named phantom-0000k and is the phantom of seed + k. The files do not depend on the
    number of workers.

    Args:
        out: folder, created if missing; must be empty unless `config.force`, which replaces the
            files of an earlier run and keeps all others.
        config: what to write.
        progress: display of the films that are done.

    Raises:
        SettingsError: the folder is not empty, or the films would be too small or too large.
    """
    out, config = Path(out), config or SynthConfig()
    _check_size(config.size)
    _prepare_folder(out, force=config.force)
    rows: list[Row] = []
    with (
        progress("synthesizing", config.count) as advance,
        closing(_write_films(out, config)) as films,
    ):
        for path, film_rows in films:
            rows.extend(film_rows)
            advance(path.name)
    truth = out / TRUTH
    with write_aside(truth) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    annotation = annotation_from_truth(truth)
    if annotation is None:
        return SynthResult(truth, None)
    save_annotation(annotation, out / TEMPLATE)
    return SynthResult(truth, out / TEMPLATE)


def _check_size(size: tuple[int, int] | None) -> None:
    if size is None:
        return
    height, width = size
    if min(height, width) < SMALLEST_FILM or height * width > MAX_PIXELS:
        raise SettingsError(
            f"films of {height} x {width} pixels; expected at least {SMALLEST_FILM} a side and at "
            f"most {MAX_PIXELS} in all; choose another size"
        )


def _prepare_folder(folder: Path, *, force: bool) -> None:
    """Create the folder, or remove the files of an earlier run from it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(entry.name for entry in folder.iterdir())
    if names and not force:
        raise SettingsError(
            f"{folder}: not empty ({names[0]}); expected a new folder; name another one, or "
            "replace the phantoms in it with --force"
        )
    for name in filter(OWN_FILES.fullmatch, names):
        (folder / name).unlink()


def _write_films(folder: Path, config: SynthConfig) -> Generator[tuple[Path, list[Row]]]:
    """Yield the path and the rows of the truth of every film, in order."""
    write = partial(_write_film, folder, config)
    workers = _default_workers(config.count) if config.workers is None else config.workers
    if workers <= 1:
        yield from map(write, range(config.count))
        return
    # A fork would copy locks that torch's threads may hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start_worker) as pool:
        yield from pool.map(write, range(config.count))


def _default_workers(count: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, max(1, count // FILMS_PER_WORKER))


def _start_worker() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and stops the pool


def _write_film(folder: Path, config: SynthConfig, index: int) -> tuple[Path, list[Row]]:
    seed, size, family, kind = config.seed + index, config.size, config.family, config.kind
    made = phantom(seed, size=size, family=family, kind=kind)
    film = made.radiograph
    path = folder / f"phantom-{index:05d}{SUFFIXES[config.format]}"
    if config.format == "png":
        write_png16(path, film.pixels)
    else:
        write_dicom(
            path,
            film.pixels,
            mm_per_px=film.mm_per_px,
            laterality=film.laterality,
            view=film.view,
            series=film.series,
            entropy=f"kneematch phantom {seed} {size} {family} {kind}",
        )
    return path, [_truth_row(path.name, made, knee) for knee in made.knees]


def _truth_row(name: str, made: Phantom, knee: Knee) -> Row:
    numbers = (*knee.plateau_left, *knee.plateau_right, *knee.centre, knee.rotation_deg)
    values = (
        name,
        knee.side,
        knee.laterality,
        *(f"{value:.4f}" for value in numbers),
        "" if made.radiograph.mm_per_px is None else f"{made.radiograph.mm_per_px:.6f}",
        str(knee.grade),
        str(int(made.negative)),
        made.hardware or "",
    )
    return dict(zip(COLUMNS, values, strict=True))
