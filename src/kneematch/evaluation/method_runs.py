"""Every method as a run of `kneematch detect`, and the trials that their ledgers hold."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kneematch.batch.config import DetectConfig
from kneematch.batch.journal import NAME, Journal
from kneematch.batch.run import detect_files
from kneematch.errors import SettingsError
from kneematch.evaluation.config import GRID, Settings
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.page import PAGE
from kneematch.progress import Progress, no_progress

RUNS: Final = "runs"


def unheard(line: str) -> None:
    """Say to nobody."""


def run_trials(
    settings: Settings,
    films: Sequence[str],
    progress: Progress = no_progress,
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


def read_trial(folder: Path, method: str, count: int) -> Trial:
    """What a run of `count` films found."""
    with Journal(folder / NAME, count) as journal:
        records = list(journal.rows())
    return Trial(
        method,
        {record.film: record.detections for record in records if record.failure is None},
        failed={record.film: record.failure for record in records if record.failure is not None},
    )


def _trial(settings: Settings, method: str, films: Sequence[str], progress: Progress) -> Trial:
    recipe, out = settings.recipe, settings.out / RUNS / method
    config = DetectConfig(
        model=recipe.model,
        template=recipe.template,
        method=method,
        paper=recipe.paper,
        device=recipe.device,
        batch_size=recipe.batch_size,
        workers=settings.workers,
        resume=settings.resume,
        force=settings.force,
    )
    detect_files(films, out, config, progress=progress)
    return read_trial(out, method, len(films))
