"""apply_review: write the decisions of a review to all files of a run."""

import csv
from dataclasses import dataclass, replace
from pathlib import Path

from kneematch.errors import SettingsError
from kneematch.films.csv_text import read_csv
from kneematch.films.files import remove_leftovers
from kneematch.films.run_folder import JOURNAL, RUN, find_root
from kneematch.films.write import is_own_picture
from kneematch.parallel import choose_workers
from kneematch.progress import Progress, no_progress
from kneematch.run.artifacts import crop_size
from kneematch.run.config import DetectConfig, config_from_json
from kneematch.run.journal import Journal
from kneematch.run.outputs.run_file import Counts, Run, read_run
from kneematch.run.outputs.tables import TABLES, landmark_names
from kneematch.run.results import (
    measure_corrections,
    write_artifacts,
    write_results,
    write_run_and_report,
)
from kneematch.run.row import row_reviser


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The outcome of applying a review."""

    out: Path
    counts: Counts
    problems: tuple[str, ...]  # what could not be made or measured, and why

    @property
    def message(self) -> str:
        """The counts in words."""
        return f"{self.counts.decisions}, {self.counts.review:,} to review"


def apply_review(
    out: Path,
    *,
    root: Path | None = None,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> ApplyResult:
    """Write tables, report and artifacts of a run again, from the rows as reviewed.

    Args:
        out: the folder that `kneematch detect` wrote.
        root: folder of films with relative paths; None finds it as `find_root` does.
        workers: number of worker processes; None chooses it.
        progress: shows progress.

    Raises:
        SettingsError: the folder holds no run that has ended, or another program writes to it.
    """
    run = read_run(out / RUN)
    config = run_config(run)
    with Journal(out / JOURNAL) as journal:
        check_ended(journal)
        journal.root, _ = find_root(out, journal.films, root)
        journal.revise = row_reviser(out, journal.root)
        remove_leftovers(out, *(path for path in out.iterdir() if path.is_dir()))
        count = choose_workers(workers, journal.count)
        problems = measure_corrections(config, journal, workers=count, progress=progress)
        counts = write_results(config, out, journal, _landmarks(out), progress=progress)
        problems += write_artifacts(config, out, journal, workers=count, progress=progress)
        write_run_and_report(out, journal, lambda: replace(run, counts=counts), workers=count)
    return ApplyResult(out, counts, tuple(problems))


def check_ended(journal: Journal) -> None:
    """Raise SettingsError unless every film of a run has a row."""
    if journal.done() < journal.count:
        raise SettingsError(
            f"{journal.path}: {journal.count - journal.done()} films have no row; expected a run "
            "that has ended; continue it with `kneematch detect`"
        )


def run_config(run: Run) -> DetectConfig:
    """Return the settings that say which files a run has.

    Raises:
        SettingsError: run.json was changed by hand.
    """
    settings = {**run.settings, "resume": False, "force": False}
    try:
        if settings.get("sheet") is not None:  # drawn again if it is where it was
            sheet = Path(settings["sheet"])
            settings["sheet"] = sheet if is_own_picture(sheet) else None
        config = config_from_json(settings)
        if config.crops:
            crop_size(config)
        return config
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{RUN}: settings that no run has ({error}); expected those of `kneematch detect`; "
            "run the films again"
        ) from error


def _landmarks(out: Path) -> list[str]:
    path = out / TABLES[0]
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            return landmark_names(next(read_csv(file)))
    except (OSError, csv.Error, StopIteration) as error:
        raise SettingsError(
            f"{path}: cannot be read; expected the table of a run; write it again by the command "
            "of the run, `kneematch detect`"
        ) from error
