"""Evaluate methods on films: those of `detect`, and the paper's on half images."""

import logging
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch

from kneematch import __version__
from kneematch.devices import full_precision, resolve_device
from kneematch.errors import FilmError, SettingsError, TemplateError
from kneematch.evaluation import GRID, RUNS, EvaluateConfig
from kneematch.evaluation.labels import load_labels
from kneematch.evaluation.scores import (
    MethodRun,
    Table,
    accuracy_table,
    loss_table,
    require_margins,
    score_knees,
)
from kneematch.films.annotation import KNEES, load_annotation
from kneematch.films.csv_text import csv_line
from kneematch.films.discovery import find_films
from kneematch.films.files import DETECTIONS, make_out_folder, refuse_existing, write_file
from kneematch.films.radiograph import LATERALITIES, Radiograph
from kneematch.films.read import read_isolated, to_film_error
from kneematch.knee.detection import Detection, map_landmarks
from kneematch.knee.detector import Detector
from kneematch.knee.knee_images import film_tensor, usual_mirroring
from kneematch.knee.template import TemplateFile, annotated_half, annotation_of, cut_from_view
from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.two_stage import network_solver, transfer_template
from kneematch.paper.algorithm2 import enlarged_size
from kneematch.paper.energy import Solver, one_sided_loss, paper_problem
from kneematch.paper.grid_search import grid_search
from kneematch.paper.pose import pose_matrix
from kneematch.paper.sharpening import sharpen
from kneematch.paper.sliding_window import sliding_window
from kneematch.paper.split import LEFT, RIGHT, SIDES, single, split
from kneematch.paper.template import Template
from kneematch.progress import Progress, no_progress
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run, absolute_path
from kneematch.run.film_record import FilmRecord
from kneematch.run.outputs.run_file import device_name
from kneematch.run.outputs.tables import detection_columns, detection_rows, open_table
from kneematch.run.pipeline import detect_folder
from kneematch.sampling import View, compose, sample
from kneematch.settings import METHODS, as_path, check_type

# Settings that a method's run takes over.
SHARED: Final = "model", "template", "force", "device", "batch_size", "workers"
PAGE: Final = "evaluation.md"
TABLES: Final = ("losses", "accuracy")

LOSS_WARNING: Final = (
    "**Do not rank methods by this table.** A lower loss is not a better place: search minimises "
    "the loss, and is less accurate than the networks on labelled films. Give labels with --truth "
    "to compare how accurate methods are."
)
logger = logging.getLogger("kneematch")


SEARCHES: Final[dict[str, Solver]] = {"sliding": sliding_window, "grid": grid_search}


@dataclass(frozen=True, slots=True, eq=False)
class HalvesDetector:
    """One of the paper's methods, with its energy: a template and what finds it in half images."""

    template: Template = field(repr=False)
    solver: Solver = field(repr=False)
    method: str
    device: str = "cpu"

    @classmethod
    def load(
        cls,
        method: str,
        *,
        model: str | os.PathLike[str] | None = None,
        template: TemplateFile | None = None,
        device: str = "cpu",
    ) -> "HalvesDetector":
        """Load one of the paper's methods: sliding, grid, neural or neural+sharpen.

        Args:
            method: its name.
            model: file written by `kneematch train`. Default: the built-in model.
            template: annotation to find instead of the model's own template. The networks find
                it without training, at a fixed pose relative to their own.
            device: where to compute.

        Raises:
            TemplateError: the annotation cannot serve as a template, or the networks see no knee.
        """
        loaded = load_model(model or builtin_model())
        networks = loaded.networks(device, float32=True)
        wanted = loaded.fine_template
        if template is not None:
            drawn = annotation_of(template)
            half = annotated_half(read_isolated(drawn.film), drawn)
            wanted, theta = cut_from_view(half, drawn)
            if method not in SEARCHES:
                networks = transfer_template(networks, half.pixels.to(device), theta)
        refine = sharpen if method == "neural+sharpen" else None
        learnt = network_solver(networks, refine, enlarged_size(loaded.coarse_template))
        wanted = wanted.to(torch.empty(0, device=device))
        return cls(wanted, SEARCHES.get(method, learnt), method, device)

    @full_precision()
    def detect(self, film: Radiograph) -> tuple[Detection, ...]:
        """Return the area in each half of a film, or the one of a film of one knee."""
        pixels = film_tensor(film)
        if film.laterality in LATERALITIES:  # the header says that the film shows one knee
            view = single(pixels, mirrored=usual_mirroring(film))
        else:
            view = split(pixels)
        images = view.pixels[None].to(self.device)  # (1, S, 800, 500)
        problem = paper_problem(images, self.template)
        theta = self.solver(problem).double()  # (1, S, 4)
        match = problem.match(theta)
        matrices = pose_matrix(theta[0], self.template.aspect, problem.image_aspect).cpu()
        to_film = compose(view.to_film, matrices)
        return tuple(
            Detection(
                matrix.numpy(),
                SIDES[LEFT if torch.linalg.det(matrix) < 0 else RIGHT],
                self.method,
                map_landmarks(matrix.numpy(), self.template.landmarks),
                alone=len(to_film) == 1,
                energy=float(match.energy[0]),
                loss=float(loss),
                polarity="negative" if negative else "positive",
                mm_per_px=film.mm_per_px,
            )
            for matrix, loss, negative in zip(
                to_film, match.loss[0], match.negative[0], strict=True
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateResult:
    """Tables of an evaluation, which are written to `out`."""

    out: Path
    runs: tuple[MethodRun, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""  # what applies to all tables

    @property
    def page(self) -> Path:
        """The page with all tables."""
        return self.out / PAGE

    @property
    def failed(self) -> dict[str, str]:
        """Films that a method could not use, with the reasons."""
        return {film: reason for run in self.runs for film, reason in run.failed.items()}


def evaluate(
    films: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    config: EvaluateConfig = EvaluateConfig(),
    *,
    progress: Progress = no_progress,
) -> EvaluateResult:
    """Compare methods on films: loss and, with labels, accuracy.

    An evaluation that is in the folder already is continued; the paper's methods begin again.

    Args:
        films: files, folders, patterns, lists (`@list.txt`), or several of these.
        out: folder to write evaluation.md and tables to; out/runs/METHOD has each method's run
            with the files of `kneematch detect`, or detections.csv of one of the paper's.
        config: which methods, labels, device and so on.
        progress: opened for every method.

    Raises:
        SettingsError: the settings contradict each other, the films or what is in the folder.
    """
    check_type("config", config, EvaluateConfig)
    out = as_path("out", out)
    if not config.force and (out / PAGE).exists() and not (out / RUNS).is_dir():
        refuse_existing(out, "an evaluation")
    device = resolve_device(config.device)
    paths = find_films(films, leave_out=[out])
    paths, note = _without_template(paths, config.template)
    labels = None if config.truth is None else load_labels(config.truth)
    counts = dict.fromkeys(config.methods, len(paths))
    if config.grid:  # which is slow
        counts[GRID] = min(config.grid, len(paths))
    detectors = {method: _load_detector(config, method, device) for method in counts}
    if labels is not None:  # refuse what cannot be compared before hours of work
        labels.match(paths)
        for detector in detectors.values():
            require_margins(detector.template.landmarks)
    runs = []
    for method, count in counts.items():
        logger.info("%s, %d films", method, count)
        folder, detector = out / RUNS / method, detectors[method]
        if isinstance(detector, HalvesDetector):
            runs.append(_run_on_halves(detector, paths[:count], folder, progress))
        else:
            detect_folder(paths[:count], folder, detect_config(config, method), progress=progress)
            runs.append(read_run(folder, method, paths[:count]))
    for name in (PAGE, *(f"{table}.csv" for table in TABLES)):  # of an earlier evaluation
        (out / name).unlink(missing_ok=True)
    runs = measure_losses(runs, load_loss_template(config), progress)
    tables = [loss_table(runs, "" if labels is not None else LOSS_WARNING)]
    if labels is not None:
        tables.append(accuracy_table(score_knees(runs, labels), labels.left_out))
    tables = [table for table in tables if table.rows]
    result = EvaluateResult(out, tuple(runs), tuple(tables), note)
    write_report(result, f"{len(paths)} films", device)
    return result


def _load_detector(
    config: EvaluateConfig, method: str, device: str = "cpu"
) -> Detector | HalvesDetector:
    """Load what finds the template by a method of `detect`, or by one of the paper's."""
    if method in METHODS:
        return detect_config(config, method).load_detector(config.template)
    return HalvesDetector.load(method, model=config.model, template=config.template, device=device)


def _run_on_halves(
    detector: HalvesDetector, films: Sequence[str], folder: Path, progress: Progress
) -> MethodRun:
    """Return what one of the paper's methods finds on films, and write its table to a folder."""
    found, failed = dict[str, tuple[Detection, ...]](), dict[str, str]()
    with progress(detector.method, len(films)) as advance:
        for film in films:
            try:
                found[film] = detector.detect(read_isolated(film))
            except Exception as error:  # noqa: BLE001 - one film must not stop the others
                failed[film] = to_film_error(film, error).message
            advance("")
    make_out_folder(folder)
    columns = detection_columns({"": [*detector.template.landmarks]})
    with open_table(folder / DETECTIONS, columns) as add:
        for film, knees in found.items():
            for row in detection_rows(FilmRecord(0, film, ""), knees):
                add(row)
    return MethodRun(detector.method, found, failed)


def detect_config(config: EvaluateConfig, method: str) -> DetectConfig:
    """Return the settings of a method's run."""
    return DetectConfig(method=method, **{name: getattr(config, name) for name in SHARED})


def read_run(folder: Path, method: str, films: Iterable[str]) -> MethodRun:
    """Return what a finished run knows of some of its films."""
    with Run(folder, exclusive=False) as run:
        known = {absolute_path(record.path): record for record in run.records()}
    records = {film: known[place] for film in films if (place := absolute_path(film)) in known}
    reasons = {film: each.reason for film, each in records.items() if each.has_failed}
    return MethodRun(
        method,
        {film: each.kept for film, each in records.items() if each.kept},
        failed={path: why if path in why else f"{path}: {why}" for path, why in reasons.items()},
    )


def _without_template(films: Sequence[str], template: str | None) -> tuple[list[str], str]:
    """Return the films without the one that a template was drawn on, and a note that says so."""
    if template is None:
        return list(films), ""
    drawn = load_annotation(template)
    if drawn.find != KNEES:
        raise SettingsError("Methods are compared for templates of knees only.")
    others = [film for film in films if not (Path(film).exists() and drawn.film.samefile(film))]
    if not others:
        raise SettingsError("The template's own film is no test of it. Name other films.")
    return others, "The template's own film is left out." if len(others) < len(films) else ""


def load_loss_template(config: EvaluateConfig) -> Template | None:
    """Return the template as it is found in half images; None if it does not lie in one."""
    try:
        return _load_detector(config, "sliding").template
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
            halves = None
            with suppress(FilmError, OSError):  # it has changed, or is gone
                halves = split(torch.from_numpy(read_isolated(film).pixels))
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


def write_report(result: EvaluateResult, about: str, device: str) -> None:
    """Write TABLE.csv for each table, and evaluation.md; `about` says what was evaluated."""
    out = result.out
    make_out_folder(out)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    parts = [f"# Evaluation\n\n{about}; kneematch {__version__} on {device_name(device)}; {today}."]
    parts += [result.note] * bool(result.note)
    for table in result.tables:
        lines = "".join(map(csv_line, (table.columns, *table.rows)))
        write_file(out / f"{table.name}.csv", lines.encode("utf-8", "surrogateescape"))
        parts.append(f"## {table.name.capitalize()}\n\n{to_markdown(table)}\n\n{table.caption}")
    # The page comes last, since it marks a complete evaluation.
    write_file(out / PAGE, ("\n\n".join(parts) + "\n").encode("utf-8", "surrogateescape"))


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, numbers aligned to the right."""
    rules = ["---" if digits is None else "---:" for digits in table.columns.values()]
    lines = [list(table.columns), rules, *table.shown()]
    cells = ([cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
