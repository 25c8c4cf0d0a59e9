"""Run every method on the same films; measure its time and, in one way for all, its losses."""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import torch

from kneematch.errors import FilmError, TemplateError
from kneematch.evaluation.config import GRID, RUNS, EvaluateConfig
from kneematch.films.csv_text import read_csv_file
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated
from kneematch.films.run_folder import DETECTIONS, FAILURES
from kneematch.knee.detection import Detection
from kneematch.knee.detector import Detector
from kneematch.paper.energy import one_sided_loss
from kneematch.paper.split import SIDES, split
from kneematch.paper.template import Template
from kneematch.progress import Progress, no_progress
from kneematch.run.config import DetectConfig
from kneematch.run.outputs.run_file import device_name
from kneematch.run.outputs.tables import CORNER_COLUMNS, landmark_names
from kneematch.run.pipeline import detect_folder
from kneematch.sampling import View, sample

# Settings that a method's run takes over.
SHARED: Final = "model", "template", "paper", "resume", "force", "device", "batch_size", "workers"
TIMED_FILMS: Final = 8
TIMED_FILMS_OF_GRID: Final = 1  # it takes minutes
NO_WARM_UP: Final = (GRID, "sliding")  # methods whose first call takes no longer than the next

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True, eq=False)
class MethodRun:
    """What one method found; a film is either in `found` or in `failed`."""

    method: str
    found: Mapping[str, tuple[Detection, ...]]  # by the film's path
    ms_per_film: float | None = None  # time from a film in memory to its detections
    failed: Mapping[str, str] = field(default_factory=dict)  # reasons by the film's path


def common_films(runs: Sequence[MethodRun]) -> list[str]:
    """Return the films on which all methods found the same number of knees, in order."""
    first, *others = runs
    return [
        film
        for film, knees in first.found.items()
        if all(len(other.found.get(film, ())) == len(knees) for other in others)
    ]


def leave_out_knee(runs: Sequence[MethodRun], film: str, side: str) -> list[MethodRun]:
    """Return runs without the knee in one half of a film; a film without others is left out."""
    changed = []
    for run in runs:
        kept = tuple(knee for knee in run.found.get(film, ()) if knee.side != side)
        others = {path: knees for path, knees in run.found.items() if path != film}
        changed.append(replace(run, found=others | ({film: kept} if kept else {})))
    return changed


def films_per_method(config: EvaluateConfig, count: int) -> dict[str, int]:
    """Return how many of `count` films each method is run on: the grid search on the first few."""
    films = dict.fromkeys(config.methods, count)
    return films | {GRID: min(config.grid, count)} if config.grid else films


def detect_config(config: EvaluateConfig, method: str) -> DetectConfig:
    """Return the settings of a method's run."""
    shared = {name: getattr(config, name) for name in SHARED}
    return DetectConfig(method=method, paper_settings=config.paper_settings(), **shared)


def run_methods(
    films: Sequence[str], out: Path, config: EvaluateConfig, progress: Progress = no_progress
) -> list[MethodRun]:
    """Run each method as `kneematch detect` does.

    The runs are written to out/runs/METHOD, and continued where there are some.
    """
    runs = []
    for method, count in films_per_method(config, len(films)).items():
        logger.info("%s, %d films", method, count)
        folder = out / RUNS / method
        detect_folder(films[:count], folder, detect_config(config, method), progress=progress)
        runs.append(read_run(folder, method, films[:count]))
    return runs


def read_run(folder: Path, method: str, films: Iterable[str]) -> MethodRun:
    """Return what the tables of a finished run say of some of its films."""
    found: dict[str, tuple[Detection, ...]] = {}
    for row in _rows(folder / DETECTIONS):
        found[row["film"]] = (*found.get(row["film"], ()), _detection(row))
    reasons = {
        row["film"]: f"{row['film']}: {row['reason'].removeprefix(row['film'] + ': ')}"
        for row in _rows(folder / FAILURES)
    }
    return MethodRun(
        method,
        {film: found[film] for film in films if film in found},
        failed={film: reasons[film] for film in films if film in reasons},
    )


def _rows(path: Path) -> list[dict[str, str]]:
    header, rows = read_csv_file(path)
    return [dict(zip(header, row, strict=True)) for row in rows]


def _detection(row: Mapping[str, str]) -> Detection:
    """Return the detection of a row of detections.csv."""
    corners = np.array([float(row[name]) for name in CORNER_COLUMNS]).reshape(4, 2)
    to_film = np.eye(3)
    to_film[:2, 0] = (corners[1] - corners[0]) / 2
    to_film[:2, 1] = (corners[3] - corners[0]) / 2
    to_film[:2, 2] = corners.mean(0)
    names = [name for name in landmark_names(row) if row[f"{name}_x_px"]]
    return Detection(
        to_film,
        row["side"],
        row["method"],
        {name: (float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])) for name in names},
        laterality=row["laterality"],
        energy=float(row["energy"] or "nan"),
        loss=float(row["loss"] or "nan"),
        polarity=row["polarity"],
        mm_per_px=float(row["mm_per_px"]) if row["mm_per_px"] else None,
        needs_review=row["review"] == "yes",
        reasons=tuple(filter(None, row["reason"].split("; "))),
    )


def load_loss_template(config: EvaluateConfig) -> Template | None:
    """Return the template as it is found in half images; None if it does not lie in one."""
    try:
        return Detector.load(
            config.model, template=config.template, method="search", paper=True, device="cpu"
        ).template
    except TemplateError as error:
        logger.warning("Losses are left out, since half images do not show the template: %s", error)
        return None


def measure_losses(
    runs: Sequence[MethodRun], template: Template | None, progress: Progress = no_progress
) -> list[MethodRun]:
    """Return the runs with the paper's loss of each area, measured in one way for all methods.

    A method's own losses come from the images that it searches, and those with less detail give
    lower losses at the same place. Here every loss is that of the film's half images (paper,
    Sect. 2), NaN where the film cannot be read any more or there is no template.
    """
    measured: list[dict[str, tuple[Detection, ...]]] = [{} for _ in runs]
    films = dict.fromkeys(film for run in runs for film in run.found)
    with progress("measuring losses", len(films)) as advance:
        for film in films:
            radiograph = _read(film)
            halves = None if radiograph is None else split(torch.from_numpy(radiograph.pixels))
            for run, found in zip(runs, measured, strict=True):
                knees = run.found.get(film, ())
                found[film] = tuple(replace(k, loss=_loss(k, halves, template)) for k in knees)
            advance("")
    return [
        replace(run, found={film: found[film] for film in run.found})
        for run, found in zip(runs, measured, strict=True)
    ]


def _loss(knee: Detection, halves: View | None, template: Template | None) -> float:
    """Return the loss of an area in its half image, given both (2, H, W)."""
    if halves is None or template is None:
        return math.nan
    half, to_film = (each[SIDES.index(knee.side)] for each in (halves.pixels, halves.to_film))
    matrix = torch.linalg.inv(to_film) @ torch.from_numpy(knee.to_film)
    patch = sample(half, matrix[:2].to(half), template.size)
    return float(one_sided_loss(patch, template))


def _read(film: str) -> Radiograph | None:
    """Read a film; None if it cannot be read, perhaps since it has changed after the detection."""
    try:
        return read_isolated(film)
    except (FilmError, OSError):
        return None


def measure_times(
    runs: Sequence[MethodRun], detectors: Mapping[str, Detector], films: Iterable[str]
) -> list[MethodRun]:
    """Return the runs with the time per film, measured on the first films that can be read."""
    chosen = list(islice(filter(None, map(_read, films)), TIMED_FILMS))
    return [replace(run, ms_per_film=_milliseconds(detectors[run.method], chosen)) for run in runs]


def timing_caption(detectors: Mapping[str, Detector]) -> str:
    """Describe how times were measured."""
    detector = next(iter(detectors.values()))
    return (
        f"Milliseconds from a film in memory to its detections, on {device_name(detector.device)}, "
        f"in batches of up to {min(detector.batch_size, TIMED_FILMS)}, on at most {TIMED_FILMS} "
        f"films ({TIMED_FILMS_OF_GRID} for the grid search)."
    )


def _milliseconds(detector: Detector, films: Sequence[Radiograph]) -> float | None:
    """Time a detector on films; None without films."""
    chosen = films[:TIMED_FILMS_OF_GRID] if detector.method == GRID else films
    if not chosen:
        return None
    if detector.method not in NO_WARM_UP:
        list(detector.detect_each(chosen[: detector.batch_size]))
    started = time.perf_counter()
    list(detector.detect_each(chosen))
    return 1000 * (time.perf_counter() - started) / len(chosen)
