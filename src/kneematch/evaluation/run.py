"""The whole of an evaluation: every method is run and timed, then come the tables and figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from kneematch.detection.detector import Detector
from kneematch.devices import resolve_device
from kneematch.evaluation.accuracy import accuracy_tables
from kneematch.evaluation.config import Settings
from kneematch.evaluation.ground_truth import Truth, load_truth
from kneematch.evaluation.loss_and_error import LossAndError, loss_and_error
from kneematch.evaluation.losses import loss_tables
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.method_runs import check_folder, films_of_methods, run_trials, unheard
from kneematch.evaluation.page import PAGE, About, Drawing, remove_earlier, write_evaluation
from kneematch.evaluation.reliability import reliability_tables
from kneematch.evaluation.tables import Column, Table
from kneematch.evaluation.times import how_timed, timed
from kneematch.evaluation.uniformity import joint_lines, uniformity_tables
from kneematch.parallel import default_workers
from kneematch.progress import Progress, no_progress

SEED: Final = 0  # of the intervals, so that they are the same every time
RANKED_BY: Final = "search"  # templates: it knows nothing but them


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What an evaluation has come to."""

    out: Path
    trials: tuple[Trial, ...]
    tables: tuple[Table, ...]
    drawings: tuple[Drawing, ...]

    @property
    def page(self) -> Path:
        """All of it to read."""
        return self.out / PAGE

    @property
    def failed(self) -> dict[str, str]:
        """The films on which a method failed, and why."""
        return {film: why for trial in self.trials for film, why in trial.failed.items()}

    def table(self, name: str) -> Table | None:
        """One of the tables, if there is one of this name."""
        return next((table for table in self.tables if table.name == name), None)


def evaluate(
    settings: Settings,
    films: Sequence[str],
    progress: Progress = no_progress,
    say: Callable[[str], None] = unheard,
    command: Sequence[str] = (),
) -> Evaluation:
    """Run every method on films, and write to `settings.out` how good each one is.

    Args:
        settings: which methods, and the truth if it is known.
        films: their paths, each once.
        progress: opened for every method with the number of films and of those done.
        say: told what is done next.
        command: as it was typed, for evaluation.json.

    Raises:
        SettingsError: the settings contradict each other, the films or what is in the folder.
    """
    check_folder(settings)
    truth = _truth(settings, films)
    detectors = _detectors(settings, films)
    trials = run_trials(settings, films, progress, say)
    remove_earlier(settings.out)
    say("times")
    trials = timed(trials, detectors, films)
    say("tables")
    tables = [*loss_tables(trials, how_timed(detectors)), *_uniformity(settings, trials, films)]
    relation = None
    if truth is not None:
        relation, known = _against_truth(trials, truth)
        tables += known
    tables += _failures(trials)
    say("figures")
    drawings = _drawings(settings.out, trials, relation)
    about = About(settings, len(films), next(iter(detectors.values())).device, tuple(command))
    write_evaluation(settings.out, about, tables, drawings)
    return Evaluation(settings.out, tuple(trials), tuple(tables), tuple(drawings))


def evaluate_templates(
    settings: Settings,
    folder: Path,
    films: Sequence[str] = (),
    say: Callable[[str], None] = unheard,
    command: Sequence[str] = (),
) -> Evaluation:
    """Rank the annotated knees of a folder by how well each finds the others, and write it down.

    Args:
        settings: where to, the truth if it is known, the energy and the device; no more is used.
        folder: of annotations.
        films: more films to search, each once.
        say: told which template is next.
        command: as it was typed, for evaluation.json.

    Raises:
        SettingsError: too few templates, or there is an evaluation already.
    """
    from kneematch.evaluation.template_ranking import rank_templates

    check_folder(settings)
    settings = replace(settings, methods=(RANKED_BY,))
    device = resolve_device(settings.recipe.device)
    tables = rank_templates(
        folder,
        films=films,
        truth=None if settings.truth is None else load_truth(settings.truth),
        method=RANKED_BY,
        paper=settings.recipe.paper,
        device=device,
        report=say,
    )
    settings.out.mkdir(parents=True, exist_ok=True)
    remove_earlier(settings.out)
    write_evaluation(settings.out, About(settings, len(films), device, tuple(command)), tables, ())
    return Evaluation(settings.out, (), tuple(tables), ())


def _truth(settings: Settings, films: Sequence[str]) -> Truth | None:
    """The labels, which must be of these films: better refused now than after the runs."""
    if settings.truth is None:
        return None
    truth = load_truth(settings.truth)
    truth.match(films)
    return truth


def _detectors(settings: Settings, films: Sequence[str]) -> dict[str, Detector]:
    """By method; one that cannot be is refused before the first film."""
    methods = films_of_methods(settings, len(films))
    return {method: replace(settings.recipe, method=method).load() for method in methods}


def _uniformity(settings: Settings, trials: Sequence[Trial], films: Sequence[str]) -> list[Table]:
    workers = default_workers(len(films)) if settings.workers is None else settings.workers
    return uniformity_tables(trials, joint_lines(trials, films, workers=workers))


def _against_truth(trials: Sequence[Trial], truth: Truth) -> tuple[LossAndError, list[Table]]:
    relation = loss_and_error(trials, truth)
    tables = [
        *accuracy_tables(trials, truth, np.random.default_rng(SEED)),
        *reliability_tables(trials, truth),
        *relation.tables(),
    ]
    return relation, tables


def _failures(trials: Sequence[Trial]) -> list[Table]:
    """The films that could not be used; a bad file is so for all methods, and one row."""
    methods: dict[tuple[str, str], list[str]] = {}
    for trial in trials:
        for failure in trial.failed.items():
            methods.setdefault(failure, []).append(trial.method)
    if not methods:
        return []
    columns = Column("film"), Column("reason"), Column("methods")
    rows = tuple((*failure, ", ".join(names)) for failure, names in methods.items())
    return [Table("failures", "Films that could not be used, and by which methods.", columns, rows)]


def _drawings(out: Path, trials: Sequence[Trial], relation: LossAndError | None) -> list[Drawing]:
    """As many as there is something to draw for."""
    from kneematch.evaluation.figure import FILMS, choose_films, draw_figure
    from kneematch.evaluation.outlines import draw_outlines
    from kneematch.evaluation.plots import draw_loss_and_error

    # The grid search on fewer films than the figure has would leave it half empty.
    most = max(len(trial.found) for trial in trials)
    shown = [trial for trial in trials if len(trial.found) >= min(FILMS, most)]
    films, drawings = choose_films(shown), []
    if films:
        listed = ", ".join(f"({chr(ord('a') + k)}) {film}" for k, film in enumerate(films))
        draw_figure(shown, films, out / "figure")
        drawings.append(Drawing("figure", f"The areas and their losses. Films: {listed}."))
        middle = films[len(films) // 2]
        draw_outlines(shown, middle, out / "outlines")
        drawings.append(Drawing("outlines", f"All methods on one film, {middle}."))
    if relation is not None and len(relation.loss):
        draw_loss_and_error(relation, out / "curve")
        drawings.append(Drawing("curve", "Does a smaller loss mean a better place?"))
    return drawings
