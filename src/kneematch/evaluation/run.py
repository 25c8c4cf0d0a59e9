"""Evaluate detection methods on a set of films: `evaluate`, and the result that it returns."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kneematch.devices import resolve_device
from kneematch.evaluation import figures
from kneematch.evaluation.config import RUNS, EvaluateConfig
from kneematch.evaluation.labels import Labels, load_labels
from kneematch.evaluation.losses import loss_tables
from kneematch.evaluation.method_runs import (
    MethodRun,
    detect_config,
    films_per_method,
    leave_out_knee,
    load_loss_template,
    measure_losses,
    measure_times,
    run_methods,
    timing_caption,
)
from kneematch.evaluation.scores import (
    accuracy_table,
    distance_tables,
    reliability_table,
    require_margins,
    score_knees,
)
from kneematch.evaluation.tables import PAGE, Table, columns, remove_evaluation, write_evaluation
from kneematch.evaluation.template_ranking import METHOD, rank_templates
from kneematch.films.annotation import load_annotation
from kneematch.films.discovery import select_films
from kneematch.films.files import refuse_existing
from kneematch.progress import Progress, no_progress

LEFT_OUT: Final = (
    "The template's own knee, in the {} half of {}, is left out of all tables and figures."
)
FIGURE: Final = "figure"

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True, eq=False)
class EvaluateResult:
    """Tables and figures of an evaluation; all of them are written to `out`."""

    out: Path
    runs: tuple[MethodRun, ...] = ()
    tables: tuple[Table, ...] = ()
    drawings: Mapping[str, str] = field(default_factory=dict)  # captions of NAME.png and NAME.pdf
    note: str = ""  # what applies to all tables and figures

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
    labels: Labels | None = None,
    progress: Progress = no_progress,
) -> EvaluateResult:
    """Compare methods on films: loss, time and, with labels, accuracy.

    With `config.templates`, rank the annotated knees of a folder instead; films are optional then.

    Args:
        films: files, folders, patterns, lists (`@list.txt`, a CSV with a column of paths), or
            several of these.
        out: folder to write evaluation.md, tables and figures to; the methods' own runs, as of
            `kneematch detect`, are in out/runs/METHOD.
        config: which methods, labels, device and so on.
        labels: labelled knees, if not those of `config.truth`.
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
    if config.truth is not None:
        labels = load_labels(config.truth)
    device = resolve_device(config.device)
    if config.templates is None:
        result = _compare_methods(paths, labels, out, config, progress)
    else:
        ranked = rank_templates(config.templates, paths, labels, paper=config.paper, device=device)
        remove_evaluation(out)
        result = EvaluateResult(out, tables=(ranked,))
        config = replace(config, methods=(METHOD,))
    hashes = detect_config(config, "auto").file_hashes()
    facts = {"films": len(paths), "device": device, "sha256": hashes}
    write_evaluation(out, config, facts, result.tables, result.drawings, result.note)
    return result


def _compare_methods(
    films: Sequence[str],
    labels: Labels | None,
    out: Path,
    config: EvaluateConfig,
    progress: Progress,
) -> EvaluateResult:
    """Run all methods, and make the tables and figures."""
    detectors = {
        method: detect_config(config, method).load_detector()
        for method in films_per_method(config, len(films))
    }
    if labels is not None:  # refuse what cannot be compared before hours of work
        labels.match(films)
        for detector in detectors.values():
            require_margins(detector.template.landmarks)
    runs = run_methods(films, out, config, progress)
    remove_evaluation(out)
    own, note = _template_knee(films, config.template), ""
    if own is not None:
        note = LEFT_OUT.format(own[1], own[0])
        logger.info(note)
        runs = leave_out_knee(runs, *own)
        labels = None if labels is None else labels.leave_out(*own)
    runs = measure_losses(runs, load_loss_template(config), progress)
    logger.info("times")
    runs = measure_times(runs, detectors, films)
    tables = loss_tables(runs, timing_caption(detectors))
    if labels is not None:
        scores = score_knees(runs, labels)
        tables += [accuracy_table(scores, labels.left_out), *distance_tables(scores)]
        tables.append(reliability_table(scores))
    tables.append(_failure_table(runs))
    logger.info("figures")
    drawings = _draw(out, [run for run in runs if run.found])
    shown = tuple(table for table in tables if table.rows)
    return EvaluateResult(out, tuple(runs), shown, drawings, note)


def _template_knee(films: Sequence[str], template: str | None) -> tuple[str, str] | None:
    """Return the film and half that a template was drawn on, if it is among the films."""
    if template is None:
        return None
    drawn = load_annotation(template)
    for film in films:
        if Path(film).exists() and drawn.film.exists() and drawn.film.samefile(film):
            return film, drawn.side
    return None


def _failure_table(runs: Sequence[MethodRun]) -> Table:
    """Return a table of the films that could not be used, one row per film and reason."""
    methods: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for failure in run.failed.items():
            methods.setdefault(failure, []).append(run.method)
    caption = "Films that could not be used, and by which methods."
    rows = tuple((*failure, ", ".join(names)) for failure, names in methods.items())
    return Table("failures", caption, columns("film", "reason", "methods"), rows)


def _draw(out: Path, runs: Sequence[MethodRun]) -> dict[str, str]:
    """Draw and save the figure if there are results for it; return its caption by its name."""
    films = figures.choose_films(runs) if runs else []
    if not films:
        return {}
    with figures.journal_style():
        figures.save_figure(figures.draw_areas(runs, films), out / FIGURE)
    listed = ", ".join(f"({figures.LETTERS[k]}) {film}" for k, film in enumerate(films))
    bold = ", the lowest in bold" if len(runs) > 1 else ""
    return {FIGURE: f"Areas and their losses{bold}. Films: {listed}."}
