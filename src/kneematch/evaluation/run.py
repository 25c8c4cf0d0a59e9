"""Evaluate detection methods on a set of films: `evaluate`, and the result that it returns."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from kneematch.devices import resolve_device
from kneematch.evaluation.config import RUNS, EvaluateConfig
from kneematch.evaluation.ground_truth import GroundTruth, load_ground_truth
from kneematch.evaluation.loss_tables import found_knees, loss_error_tables, loss_tables
from kneematch.evaluation.method_run import (
    MethodRun,
    file_hashes,
    leave_out_knee,
    load_detectors,
    measure_times,
    run_methods,
    timing_caption,
)
from kneematch.evaluation.scores import (
    Scores,
    accuracy_table,
    distance_tables,
    reliability_tables,
    require_margins,
    score_knees,
)
from kneematch.evaluation.tables import PAGE, Table, columns, remove_evaluation, write_evaluation
from kneematch.evaluation.template_ranking import METHOD, rank_templates
from kneematch.evaluation.uniformity import find_joint_lines, uniformity_table
from kneematch.films.annotation import load_annotation
from kneematch.films.discovery import select_films
from kneematch.films.files import refuse_existing
from kneematch.films.run_folder import JOURNAL
from kneematch.parallel import choose_workers
from kneematch.progress import Progress, no_progress

SEED: Final = 0  # of the bootstrap, so that an evaluation can be repeated
LEFT_OUT: Final = (
    "The template's own knee, in the {side} half of {film}, is left out of all tables and figures."
)

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateResult:
    """Tables and figures of an evaluation; all of them are written to `out`."""

    out: Path
    runs: tuple[MethodRun, ...]
    tables: tuple[Table, ...]
    drawings: Mapping[str, str]  # captions of NAME.png and NAME.pdf

    @property
    def page(self) -> Path:
        """The page with all tables and figures."""
        return self.out / PAGE

    @property
    def failed(self) -> dict[str, str]:
        """Films that a method could not use, with the reasons."""
        return {film: reason for run in self.runs for film, reason in run.failed.items()}

    def table(self, name: str) -> Table | None:
        """Return the table of this name; None if it was not made."""
        return next((table for table in self.tables if table.name == name), None)


def evaluate(
    films: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    config: EvaluateConfig = EvaluateConfig(),
    *,
    truth: GroundTruth | None = None,
    progress: Progress = no_progress,
) -> EvaluateResult:
    """Compare methods on films: loss, time, uniformity and, with labels, accuracy.

    With `config.templates`, rank the annotated knees of a folder instead; films are optional then.

    Args:
        films: files, folders, patterns, lists (`@list.txt`, a CSV with a column of paths), or
            several of these.
        out: folder to write evaluation.md, tables and figures to; the methods' own runs, as of
            `kneematch detect`, are in out/runs/METHOD.
        config: which methods, labels, device and so on.
        truth: labels, if not those of `config.truth`.
        progress: opened for every method.

    Raises:
        SettingsError: the settings contradict each other, the films or what is in the folder.
    """
    out = Path(out)
    _check_folder(out, config)
    if config.templates is not None and not films:
        paths = []
    else:
        paths = select_films(films, series=config.series, limit=config.limit, leave_out=[out])
    if config.truth is not None:
        truth = load_ground_truth(config.truth)
    device = resolve_device(config.device)
    own, runs, drawings = None, list[MethodRun](), dict[str, str]()
    if config.templates is None:
        own = _template_knee(paths, config.template)
        runs, tables, drawings = _compare_methods(paths, truth, own, out, config, progress)
    else:
        tables = rank_templates(config.templates, paths, truth, paper=config.paper, device=device)
        remove_evaluation(out)
        config = replace(config, methods=(METHOD,))
    note = "" if own is None else LEFT_OUT.format(film=own[0], side=own[1])
    write_evaluation(
        out, config, len(paths), device, file_hashes(config), tables, drawings, note=note
    )
    return EvaluateResult(out, tuple(runs), tuple(tables), drawings)


def _check_folder(out: Path, config: EvaluateConfig) -> None:
    """Refuse a folder with an evaluation that is neither to be resumed nor replaced."""
    if config.resume or config.force:
        return
    if (out / PAGE).exists() or any((out / RUNS).glob(f"*/{JOURNAL}")):
        refuse_existing(out, "an evaluation", can_resume=True)


def _template_knee(films: Sequence[str], template: str | None) -> tuple[str, str] | None:
    """Return the film and half that a template was drawn on, if it is among the films."""
    if template is None:
        return None
    drawn = load_annotation(template)
    for film in films:
        if Path(film).exists() and drawn.film.exists() and drawn.film.samefile(film):
            return film, drawn.side
    return None


def _compare_methods(
    films: Sequence[str],
    truth: GroundTruth | None,
    own: tuple[str, str] | None,
    out: Path,
    config: EvaluateConfig,
    progress: Progress,
) -> tuple[list[MethodRun], list[Table], dict[str, str]]:
    """Return the run of every method, all tables, and the figures' captions."""
    detectors = load_detectors(config, len(films))
    if truth is not None:  # refuse what cannot be compared before hours of work
        truth.match(films)
        for detector in detectors.values():
            require_margins(detector.template.landmarks)
    runs = run_methods(films, out, config, progress)
    remove_evaluation(out)
    logger.info("times")
    runs = measure_times(runs, detectors, films)
    if own is not None:
        logger.info(LEFT_OUT.format(film=own[0], side=own[1]))
        runs = leave_out_knee(runs, *own)
        truth = None if truth is None else truth.leave_out(*own)
    logger.info("tables")
    workers = choose_workers(config.workers, len(films))
    tables = [
        *loss_tables(runs, timing_caption(detectors)),
        uniformity_table(runs, find_joint_lines(runs, films, workers=workers)),
    ]
    scores: Scores = {}
    if truth is not None:
        scores = score_knees(runs, truth)
        tables.append(accuracy_table(scores, truth.left_out, np.random.default_rng(SEED)))
        tables += distance_tables(scores)
        tables += [*reliability_tables(scores), *loss_error_tables(scores)]
    tables = [table for table in (*tables, _failure_table(runs)) if table.rows]
    logger.info("figures")
    return runs, tables, _draw(out, runs, scores)


def _failure_table(runs: Sequence[MethodRun]) -> Table:
    """Return a table of the films that could not be used, one row per film and reason."""
    methods: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for failure in run.failed.items():
            methods.setdefault(failure, []).append(run.method)
    caption = "Films that could not be used, and by which methods."
    rows = tuple((*failure, ", ".join(names)) for failure, names in methods.items())
    return Table("failures", caption, columns("film", "reason", "methods"), rows)


def _draw(out: Path, runs: Sequence[MethodRun], scores: Scores) -> dict[str, str]:
    """Draw and save all figures that there are results for; return their captions."""
    from kneematch.evaluation import figures
    from kneematch.evaluation.loss_plot import draw_loss_and_error

    shown = [run for run in runs if run.found]
    films, captions = figures.choose_films(shown) if shown else [], {}
    with figures.journal_style():
        if films:
            listed = ", ".join(f"({figures.LETTERS[k]}) {film}" for k, film in enumerate(films))
            best = "closest to its label (lowest loss, where a knee has none)" if scores else ""
            bold = f"; in bold the one {best or 'with the lowest loss'}" if len(shown) > 1 else ""
            captions["figure"] = f"Areas and their losses{bold}. Films: {listed}."
            figures.save_figure(figures.draw_areas(shown, films, scores), out / "figure")
            middle = films[len(films) // 2]
            captions["outlines"] = f"All methods on one film, {middle}."
            figures.save_figure(figures.draw_outlines(shown, middle), out / "outlines")
        if found_knees(scores):
            captions["curve"] = "Does a lower loss mean a better position?"
            figures.save_figure(draw_loss_and_error(scores), out / "curve")
    return captions
