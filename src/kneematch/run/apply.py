"""apply_review: write the decisions of a review to all files of a run."""

from dataclasses import dataclass, replace
from pathlib import Path

from kneematch.errors import SettingsError
from kneematch.films.files import remove_leftovers
from kneematch.films.pictures import is_own_picture
from kneematch.films.run_folder import FOLDERS, REPORT, RUN, find_root
from kneematch.knee.decision import Decision
from kneematch.parallel import choose_workers
from kneematch.progress import Progress, no_progress
from kneematch.run.config import DetectConfig, config_from_json
from kneematch.run.database import Run
from kneematch.run.decisions import read_decisions
from kneematch.run.outputs.report import write_report
from kneematch.run.outputs.run_file import Counts, RunInfo, write_run
from kneematch.run.outputs.write import write_outputs
from kneematch.run.pipeline import save_visits
from kneematch.run.visit import Visit
from kneematch.run.workers import map_visits


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
    decisions: Path | None = None,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> ApplyResult:
    """Visit the films about which something was decided, and write tables and report again.

    Args:
        out: the folder that `kneematch detect` wrote.
        root: folder of films with relative paths; None finds it as `find_root` does.
        decisions: review.csv of another run on the same films, whose decisions are added first.
        workers: number of worker processes; None chooses it.
        progress: shows progress.

    Raises:
        SettingsError: the folder holds no run that has ended, or another process is using it.
    """
    with Run(out) as run:
        config, info = run_config(run), ended_run(run)
        if decisions is not None:
            add_decisions(run, decisions)
        paths = [path for _, path in run.paths()]
        folder, _ = find_root(out, run.setting("out"), paths, root)
        remove_leftovers(out, *(out / name for name in FOLDERS))
        films = list(run.to_visit(run.decided()))
        if config.measure and films:
            check_outlines(run, config, folder)
        visit = Visit(config, out, folder)
        visited = (
            # A film of which something is missing is visited again the next time.
            [replace(film, last_decision=0) if film.missing else film for film in batch]
            for batch in map_visits(visit, films, workers=choose_workers(workers, len(films)))
        )
        problems = save_visits(run, visited, progress, len(films))
        counts, summary = write_outputs(run, config, run.setting("landmarks"), progress=progress)
        info = replace(info, counts=counts)
        write_report(out / REPORT, info, summary, run.thumbnail)
        run.store(run=info.to_dict())
        write_run(info, out / RUN)
    return ApplyResult(out, counts, tuple(problems))


def ended_run(run: Run) -> RunInfo:
    """Return how a run went; raise SettingsError unless it has ended."""
    left, stored = run.count("status = ''"), run.setting("run")
    if left or stored is None:
        raise SettingsError(
            f"{left} films of the run in {run.out} have not been searched. Continue it with "
            "`kneematch detect`."
        )
    return RunInfo.from_dict(stored)


def check_outlines(run: Run, config: DetectConfig, root: Path) -> None:
    """Raise SettingsError if another outline network lies in the place of the run's."""
    if config.outlines is not None:
        config = replace(config, outlines=str(root / config.outlines))
    if config.outline_hash()["outlines"] != run.setting("fingerprint").get("outlines"):
        raise SettingsError(
            f"{config.outlines or 'The built-in outline network'} is not the network that measured "
            f"the knees of {run.out}. Put that one back, or run the films again."
        )


def run_config(run: Run) -> DetectConfig:
    """Return the settings of a run, which say what files it has."""
    try:
        settings = {**run.setting("config"), "resume": False, "force": False}
        if settings.get("sheet") is not None:  # drawn again if it is where it was
            sheet = Path(settings["sheet"])
            settings["sheet"] = sheet if is_own_picture(sheet) else None
        return config_from_json(settings)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"The settings in {run.path} cannot be read. Run the films again."
        ) from error


def add_decisions(run: Run, path: Path) -> None:
    """Add the decisions of a review.csv to a run; those that hold already are left out.

    Raises:
        SettingsError: the file is not a review.csv, or is about other films.
    """
    films = {film: number for number, film in run.paths()}
    latest: dict[tuple[str, str], tuple[str, Decision]] = {}
    for time, film, side, decision, revoked in read_decisions(path):
        latest.pop((film, side), None)
        if not revoked:
            latest[film, side] = time, decision
    unknown = sorted({film for film, _ in latest} - {*films})
    if unknown:
        raise SettingsError(
            f"{path}: {len(unknown)} films are not in the run, such as {unknown[0][-100:]}."
        )
    known = {film.id: film.decisions for film in run.to_visit(films.values())}
    for (film, side), (time, decision) in latest.items():
        before = known[films[film]].get(side)
        if before is None or before.to_dict() != decision.to_dict():
            run.decide(films[film], side, decision, time)
