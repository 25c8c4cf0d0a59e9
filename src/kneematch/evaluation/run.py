"""Evaluate detection methods on a set of films: `evaluate`."""

import logging
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import torch

from kneematch.devices import resolve_device
from kneematch.errors import FilmError, TemplateError
from kneematch.evaluation.config import GRID, RUNS, EvaluateConfig
from kneematch.evaluation.labels import Labels, load_labels
from kneematch.evaluation.report import PAGE, EvaluateResult, remove_evaluation, write_report
from kneematch.evaluation.scores import (
    MethodRun,
    Table,
    accuracy_tables,
    loss_tables,
    require_margins,
    score_knees,
)
from kneematch.evaluation.template_ranking import rank_templates
from kneematch.films.annotation import load_annotation
from kneematch.films.csv_text import read_csv_file
from kneematch.films.discovery import select_films
from kneematch.films.files import refuse_existing
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
TIMED_FILMS: Final = 8  # one for the grid search, which takes minutes
NO_WARM_UP: Final = (GRID, "sliding")  # methods whose first call takes no longer than the next

logger = logging.getLogger("kneematch")


def evaluate(
    films: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    config: EvaluateConfig = EvaluateConfig(),
    *,
    progress: Progress = no_progress,
) -> EvaluateResult:
    """Compare methods on films: loss, time and, with labels, accuracy.

    With `config.templates`, rank the annotated knees of a folder instead; films are optional then.

    Args:
        films: files, folders, patterns, lists (`@list.txt`, a CSV with a column of paths), or
            several of these.
        out: folder to write evaluation.md, tables and figure to; the methods' own runs, as of
            `kneematch detect`, are in out/runs/METHOD.
        config: which methods, labels, device and so on.
        progress: opened for every method.

    Raises:
        SettingsError: the settings contradict each other, the films or what is in the folder.
    """
    out, paths = Path(out), list[str]()
    runs = (out / RUNS).iterdir() if (out / RUNS).is_dir() else ()
    if not (config.resume or config.force) and ((out / PAGE).exists() or any(runs)):
        refuse_existing(out, "an evaluation", can_resume=True)
    if films or config.templates is None:
        paths = select_films(films, series=config.series, limit=config.limit, leave_out=[out])
    labels = None if config.truth is None else load_labels(config.truth)
    device = resolve_device(config.device)
    if config.templates is None:
        result = _compare_methods(paths, labels, out, config, progress)
        counts = films_per_method(config, len(paths))
        about = ", ".join(f"{name} on {n}" if name == GRID else name for name, n in counts.items())
    else:
        ranked = rank_templates(config.templates, paths, labels, paper=config.paper, device=device)
        remove_evaluation(out)
        result, about = EvaluateResult(out, tables=(ranked,)), "templates"
    write_report(result, f"{len(paths)} films; {about}", device)
    return result


def _compare_methods(
    films: Sequence[str],
    labels: Labels | None,
    out: Path,
    config: EvaluateConfig,
    progress: Progress,
) -> EvaluateResult:
    """Run all methods, and make the tables."""
    counts, note = films_per_method(config, len(films)), ""
    detectors = {method: detect_config(config, method).load_detector() for method in counts}
    if labels is not None:  # refuse what cannot be compared before hours of work
        labels.match(films)
        for detector in detectors.values():
            require_margins(detector.template.landmarks)
    runs = []
    for method, count in counts.items():
        logger.info("%s, %d films", method, count)
        folder, settings = out / RUNS / method, detect_config(config, method)
        detect_folder(films[:count], folder, settings, progress=progress)
        runs.append(read_run(folder, method, films[:count]))
    remove_evaluation(out)
    if own := _template_knee(films, config.template):
        film, side = own
        note = f"The template's own knee, in the {side} half of {film}, is left out."
        logger.info(note)
        runs = [leave_out_knee(run, film, side) for run in runs]
        labels = None if labels is None else labels.leave_out(film, side)
    runs = measure_losses(runs, load_loss_template(config), progress)
    logger.info("times")
    runs = measure_times(runs, detectors, films)
    detector = next(iter(detectors.values()))
    timing = (
        f"Milliseconds from a film in memory to its detections, on {device_name(detector.device)}, "
        f"in batches of up to {min(detector.batch_size, TIMED_FILMS)}, on at most {TIMED_FILMS} "
        "films (1 for the grid search)."
    )
    tables = loss_tables(runs, timing)
    if labels is not None:
        tables += accuracy_tables(score_knees(runs, labels), labels.left_out)
    tables.append(_failure_table(runs))
    return EvaluateResult(out, tuple(runs), tuple(each for each in tables if each.rows), note)


def films_per_method(config: EvaluateConfig, count: int) -> dict[str, int]:
    """Return how many of `count` films each method is run on: the grid search on the first few."""
    films = dict.fromkeys(config.methods, count)
    return films | {GRID: min(config.grid, count)} if config.grid else films


def detect_config(config: EvaluateConfig, method: str) -> DetectConfig:
    """Return the settings of a method's run."""
    shared = {name: getattr(config, name) for name in SHARED}
    return DetectConfig(method=method, paper_settings=config.paper_settings(), **shared)


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


def _template_knee(films: Sequence[str], template: str | None) -> tuple[str, str] | None:
    """Return the film and half that a template was drawn on, if it is among the films."""
    if template is None:
        return None
    drawn = load_annotation(template)
    for film in films:
        if Path(film).exists() and drawn.film.exists() and drawn.film.samefile(film):
            return film, drawn.side
    return None


def leave_out_knee(run: MethodRun, film: str, side: str) -> MethodRun:
    """Return a run without the knee in one half of a film; a film without others is left out."""
    kept = tuple(knee for knee in run.found.get(film, ()) if knee.side != side)
    others = {path: knees for path, knees in run.found.items() if path != film}
    return replace(run, found=others | ({film: kept} if kept else {}))


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


def _milliseconds(detector: Detector, films: Sequence[Radiograph]) -> float | None:
    """Time a detector on films; None without films."""
    chosen = films[:1] if detector.method == GRID else films
    if not chosen:
        return None
    if detector.method not in NO_WARM_UP:
        list(detector.detect_each(chosen[: detector.batch_size]))
    started = time.perf_counter()
    list(detector.detect_each(chosen))
    return 1000 * (time.perf_counter() - started) / len(chosen)


def _failure_table(runs: Sequence[MethodRun]) -> Table:
    """Return a table of the films that could not be used, one row per film and reason."""
    methods: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for failure in run.failed.items():
            methods.setdefault(failure, []).append(run.method)
    caption = "Films that could not be used, and by which methods."
    rows = tuple((*failure, ", ".join(names)) for failure, names in methods.items())
    return Table("failures", caption, dict.fromkeys(("film", "reason", "methods")), rows)
