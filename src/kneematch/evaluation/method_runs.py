"""Every method as a run of `kneematch detect`, and the trials that their ledgers hold."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kneematch.batch import config as cohort
from kneematch.batch.journal import NAME, Ledger
from kneematch.batch.run import Progress, run, silent
from kneematch.errors import SettingsError
from kneematch.evaluation.config import GRID, Settings
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.page import PAGE

RUNS: Final = "runs"


def unheard(line: str) -> None:
    """Say to nobody."""


def run_trials(
    settings: Settings,
    films: Sequence[str],
    progress: Progress = silent,
    say: Callable[[str], None] = unheard,
) -> list[Trial]:
    """Run each method on the films, the grid search on the first ones only.

    Args:
        settings: which methods; where a run is resumed, what it has done is not done again.
        films: their paths, each once.
        progress: opened for every method.
        say: told which method is next.

    Raises:
        SettingsError: there are runs already, and they are neither to be resumed nor replaced.
    """
    check_folder(settings)
    trials = []
    for method, count in films_of_methods(settings, len(films)).items():
        say(f"{method}, {count} films")
        trials.append(_trial(settings, method, films[:count], progress))
    return trials


def check_folder(settings: Settings) -> None:
    """Refuse a folder that has an evaluation, before the first film.

    Raises:
        SettingsError: it has, and is neither to be resumed nor replaced.
    """
    if settings.resume or settings.force:
        return
    if (settings.out / PAGE).exists() or any((settings.out / RUNS).glob(f"*/{NAME}")):
        raise SettingsError(
            f"{settings.out}: there is an evaluation in this folder already; expected a new "
            "folder; continue it with --resume, start over with --force, or name another folder"
        )


def films_of_methods(settings: Settings, count: int) -> dict[str, int]:
    """How many films each method gets."""
    wanted = dict.fromkeys(settings.methods, count)
    return wanted | {GRID: min(settings.grid, count)} if settings.grid else wanted


def read_trial(folder: Path, method: str, count: int, batch_size: int) -> Trial:
    """What a run of `count` films found."""
    with Ledger(folder / NAME, count, batch_size) as ledger:
        records = list(ledger.records())
    return Trial(
        method,
        {record.film: record.detections for record in records if record.failure is None},
        failed={record.film: record.failure for record in records if record.failure is not None},
    )


def _trial(settings: Settings, method: str, films: Sequence[str], progress: Progress) -> Trial:
    run_settings = cohort.Settings(
        settings.out / RUNS / method,
        replace(settings.recipe, method=method),
        workers=settings.workers,
        resume=settings.resume,
        force=settings.force,
        selection=settings.selection,
    )
    run(run_settings, films, progress)
    return read_trial(run_settings.out, method, len(films), settings.recipe.batch_size)
