"""detect_folder: visit many films, in a run that survives bad files and power cuts.

Heavy modules are imported inside functions: the process that workers are forked from is started
first, and imports the same meanwhile.
"""

import logging
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from kneematch.errors import SettingsError
from kneematch.films.discovery import find_films
from kneematch.films.files import (
    FOLDERS,
    RUN_DATABASE,
    THUMBNAILS,
    FileVersion,
    file_versions,
    make_out_folder,
    remove_leftovers,
)
from kneematch.films.read import is_uncompressed
from kneematch.parallel import choose_workers, keep_memory, start_early, usable_cores
from kneematch.progress import Progress, no_progress
from kneematch.run.config import DetectConfig, Fingerprint
from kneematch.settings import AUTO, as_path, check_type

if TYPE_CHECKING:
    from pandas import DataFrame

    from kneematch.run.database import Run
    from kneematch.run.film_record import FilmRecord
    from kneematch.run.ray import Cluster
    from kneematch.run.visit import Visit

logger = logging.getLogger("kneematch")

# With fewer films a GPU gains nothing: it takes seconds until all processes compute on it.
GPU_FILMS_PER_CORE: Final = 128
LISTED_REASONS: Final = 10  # kept in the result; failures.csv has all
COMMIT_S: Final = 1.0  # between commits to the database, each of which waits for the disk


@dataclass(frozen=True, slots=True)
class DetectResult:
    """The outcome of a run, or of applying a review to it."""

    out: Path
    films: int  # films with detections
    knees: int
    review: int  # knees that a person should look at
    no_knee: int  # films without a frontal knee
    failed: int  # films that could not be used
    reasons: tuple[str, ...]  # why the first of them could not be used
    missing: int  # films of which a picture, a crop, an export or measures could not be made
    missing_reasons: tuple[str, ...]  # the first ones
    gone: int = 0  # films of earlier runs that are no longer there; their rows are kept
    changed: int = 0  # films that were searched again, since their files have changed
    tried_again: int = 0  # films that could not be read before, but might be now
    accepted: int = 0  # knees, by a reviewer
    rejected: int = 0
    corrected: int = 0
    noun: str = "knee"  # what was looked for: "area" with templates of other parts

    def to_dataframe(self, table: str = "detections") -> "DataFrame":
        """Return a table of the run, such as "detections" or "measurements", for pandas.

        Missing numbers are NaN, missing texts are empty.
        """
        try:
            import pandas
        except ImportError:
            raise SettingsError("to_dataframe needs pandas. Run: pip install pandas") from None
        from kneematch.run.outputs.measurements import KNEE_COLUMNS
        from kneematch.run.outputs.tables import CROP_COLUMNS, detection_columns

        path = self.out / f"{table}.csv"
        if not path.exists():
            raise SettingsError(f"{self.out} has no table {table!r}.")
        columns = detection_columns({"part": ()}) | KNEE_COLUMNS | CROP_COLUMNS
        texts = [name for name, decimals in columns.items() if decimals is None]
        frame = pandas.read_csv(
            path,
            dtype=dict.fromkeys(texts, str),
            keep_default_na=False,
            na_values="",
            encoding_errors="backslashreplace",  # names that are not UTF-8
        )
        return frame.fillna(dict.fromkeys(texts, ""))

    @property
    def decisions(self) -> str:
        """The decisions of a review in words."""
        return (
            f"{self.accepted:,} accepted, {self.rejected:,} rejected, {self.corrected:,} corrected"
        )


def detect_folder(
    films: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    config: DetectConfig | None = None,
    *,
    progress: Progress = no_progress,
) -> DetectResult:
    """Detect the knee joint areas of films, and write tables, a report and pictures.

    The run in the folder is continued: films that it has are not searched again, unless their
    files have changed, or could not be read for a reason that may have passed.

    Args:
        films: files, folders, patterns, lists (`@list.txt`), or several of these.
        out: folder for the results.
        config: settings; default: the built-in model on the fastest device.
        progress: shows progress.

    Raises:
        SettingsError: the settings contradict each other, or those of the run in the folder.
    """
    check_type("config", config, DetectConfig | None)
    config, out = config or DetectConfig(), as_path("out", out)
    own = [out, *(out / name for name in FOLDERS)]
    paths = find_films(films, series=config.series, leave_out=own)
    started, begun = datetime.now(UTC), monotonic()
    versions = file_versions(paths)
    if not any(versions):
        others = f" and {len(paths) - 1} others" if len(paths) > 1 else ""
        raise SettingsError(f"No such file or folder: {paths[0]}{others}")
    _start_workers_early(paths, config)
    from kneematch.devices import one_thread
    from kneematch.run.outputs.run_file import run_facts
    from kneematch.run.workers import map_visits

    connection: AbstractContextManager[Cluster | None] = nullcontext()
    if config.ray is not None:
        from kneematch.run.ray import connect

        connection = connect(config.ray)
    with connection as cluster:
        plan = _make_plan(len(paths), out, config, cluster)
        with _open_run(plan) as run, one_thread():
            todo, counts = _compare(run, paths, versions, plan.visit)
            ready = monotonic()
            if cluster is None:
                visited = map_visits(plan.visit, todo, workers=plan.workers)
            else:
                visited = cluster.map_visits(plan.visit, todo)
            count = max(len(paths), len(todo))
            missing = save_visits(run, visited, progress, count, count - len(todo))
            config = plan.visit.config
            settings = {"out": out, **asdict(config)}
            facts = run_facts(started, settings, plan.device_name, plan.hashes)
            facts["timings_s"] = {"start": ready - begun, "visits": monotonic() - ready}
            return finish_run(run, config, facts, missing, progress=progress, **counts)


def _start_workers_early(paths: Sequence[str], config: DetectConfig) -> None:
    """Have another process import what workers need while this one imports the same."""
    if config.ray is not None:
        return
    if choose_workers(config.workers, len(paths)):
        needed = {  # modules that visits import when they first need them; workers share them
            "kneematch.knee.measuring": config.measure,
            "kneematch.run.outputs.dicom": bool(config.dicom_objects()),
        }
        modules = [name for name, is_needed in needed.items() if is_needed]
        start_early("kneematch.run.workers", "kneematch.films.dicom", *modules)
        return
    keep_memory()
    if not is_uncompressed(paths[0]):  # which a child process will decode
        start_early("kneematch.films.read")


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Everything that is settled before the first film."""

    visit: "Visit"  # with the device and the method that were chosen
    landmarks: dict[str, list[str]]  # their names, by the name of the template, "" for knees
    device_name: str
    workers: int
    hashes: dict[str, str]
    fingerprint: Fingerprint


def _make_plan(films: int, out: Path, config: DetectConfig, cluster: "Cluster | None") -> _Plan:
    from kneematch.devices import most_processes
    from kneematch.knee.detector import GPU_BATCH
    from kneematch.run.outputs.run_file import device_name
    from kneematch.run.searchers import WORKERS_PER_SEARCHER, may_share
    from kneematch.run.visit import Visit

    if config.crops:
        config.crop_size()  # or it would be refused only with the first film
    wanted = workers = choose_workers(config.workers, films)
    if cluster is None:
        device = _choose_device(films, out, config)
        name = device_name(device)
        room = most_processes(device, config.batch_size or GPU_BATCH)
        workers = workers if room else 0
    else:
        device, name, room = cluster.device(config.device), cluster.name, workers
    # Where others search, this process only checks the settings.
    searches = cluster is None and workers == 0
    detectors = replace(config, device=device if searches else "cpu").load_detectors()
    method = ", ".join(dict.fromkeys(each.method for each in detectors.values()))
    chosen, hashes = replace(config, device=device), config.file_hashes()
    room *= WORKERS_PER_SEARCHER if may_share(chosen) else 1
    if room < wanted:
        logger.warning(
            "The memory of %s has room for %d of %d workers. Free some of it, or choose a smaller "
            "--batch-size.",
            device,
            room,
            wanted,
        )
    workers = min(workers, room)
    visit = Visit(chosen, out)
    if searches:
        visit.__dict__["detectors"] = detectors
    fingerprint = dict(config.fingerprint(method, device, hashes))
    if named := [name for name in detectors if name]:
        fingerprint["templates"] = ", ".join(named)
    return _Plan(
        visit,
        {name: list(each.template.landmarks) for name, each in detectors.items()},
        name,
        workers,
        hashes,
        fingerprint,
    )


def _choose_device(films: int, out: Path, config: DetectConfig) -> str:
    """Return the device; "auto" is that of the run in the folder, or the CPU for few films."""
    from kneematch.devices import resolve_device
    from kneematch.run.database import Run

    if config.device == config.method == AUTO:
        if not config.force and (out / RUN_DATABASE).exists():
            with Run(out) as run:
                begun_on = (run.setting("fingerprint") or {}).get("device", AUTO)
                return resolve_device(begun_on)
        if films < GPU_FILMS_PER_CORE * usable_cores():
            return "cpu"
    return resolve_device(config.device)


@contextmanager
def _open_run(plan: _Plan) -> Iterator["Run"]:
    """Yield the run in the output folder, or a new one.

    Raises:
        SettingsError: the folder holds a run with other settings, or of an earlier version.
    """
    from kneematch.run.database import Run

    out, config = plan.visit.out, plan.visit.config
    make_out_folder(out)
    if config.force:
        _remove_run(out)
    with Run(out, create=True) as run:
        _check_working_folder(run)
        run.check(plan.fingerprint)
        folder = str(Path.cwd())
        run.store(config=asdict(config), landmarks=plan.landmarks, folder=folder)
        remove_leftovers(out, *(out / name for name in FOLDERS), unchanged_s=0)
        yield run


def _check_working_folder(run: "Run") -> None:
    """Raise SettingsError if relative paths of a run's films now mean other files, or none."""
    folder = run.film_folder()
    relative = (path for _, path in run.paths() if not os.path.isabs(path))  # noqa: PTH117
    if folder != Path() and any((folder / path).exists() for path in relative):
        raise SettingsError(
            f"The films in {run.out} have paths relative to {folder}. Repeat the command there, or "
            "choose another folder for the results."
        )


def _remove_run(out: Path) -> None:
    """Remove the run in a folder: its database and the files that it made, and no others."""
    from kneematch.run.artifacts import possible_files
    from kneematch.run.database import Run
    from kneematch.run.outputs.write import RESULT_FILES
    from kneematch.run.sqlite import UnreadableRun

    names: list[str] = []
    if (out / RUN_DATABASE).exists():
        with suppress(UnreadableRun), Run(out) as run:
            names = run.names()
    files = [
        f"{kind}/{file}"
        for kind in FOLDERS
        for each in names
        for file in possible_files(kind, each)
    ]
    databases = (RUN_DATABASE, THUMBNAILS)
    for name in (*RESULT_FILES, *files, *databases, *(f"{each}-journal" for each in databases)):
        (out / name).unlink(missing_ok=True)


def _compare(
    run: "Run", paths: Sequence[str], versions: Sequence[FileVersion | None], visit: "Visit"
) -> tuple[list["FilmRecord"], dict[str, int]]:
    """Add the named films to a run; return those to visit, and how many are which.

    Films that are no longer there keep their rows, and are marked.
    """
    from kneematch.run.film_record import UNREADABLE

    named = dict(zip(run.add(paths), versions, strict=True))
    before = run.versions()
    done = [k for k in named if k in before]
    # One that is gone cannot be searched again.
    changed = [k for k in done if named[k] is not None and named[k] != before[k]]
    others = [(k, path) for k, path in run.paths() if k in before and k not in named]
    found = file_versions([path for _, path in others])
    present = named | dict(zip((k for k, _ in others), found, strict=True))
    gone = [k for k, now in present.items() if now is None and before.get(k) is not None]
    run.mark_gone(gone)
    unreadable = run.query("SELECT id FROM films WHERE status = ?", UNREADABLE)
    again = ({k for (k,) in unreadable} & {*done}) - {*changed, *gone}
    if done or gone:
        logger.info(
            "%s films: %s done before, %s new%s%s%s",
            f"{len(named):,}",
            f"{len(done) - len(again):,}",
            f"{len(named) - len(done):,}",
            f", {len(gone):,} gone (kept in the table, marked)" if gone else "",
            f", {len(changed):,} changed" if changed else "",
            f", {len(again):,} tried again" if again else "",
        )
    search = {*named} - {*done} | {*changed} | again
    unmeasured = run.unmeasured() if visit.config.measure else []
    decided = {*run.decided(), *(k for k in unmeasured if present.get(k, True) is not None)}
    visited = search | decided
    outdated = {
        k: kinds
        for k, kinds in run.outdated(visit.artifacts).items()
        if (k in named or present.get(k) is not None) and k not in visited
    }
    run.forget_made(outdated)
    todo = []
    for film in run.to_visit(visited | {*outdated}):
        if film.id in changed:
            film = film.without_corrections()
        new = replace(film, to_make=outdated.get(film.id))
        if film.id in search:
            new = replace(film, version=named[film.id], status="", reason="", found=(), knees=())
        todo.append(new)
    return todo, {"gone": len(gone), "changed": len(changed), "tried_again": len(again)}


def save_visits(
    run: "Run",
    visited: "Generator[list[FilmRecord]]",
    progress: Progress,
    count: int,
    done: int = 0,
) -> list[str]:
    """Write films to the database of a run as their visits end; return what could not be made."""
    missing: list[str] = []
    waiting: list[FilmRecord] = []
    last = monotonic()
    with progress("detecting", count, done) as advance, closing(visited) as batches:
        for films in batches:
            waiting += films
            if monotonic() - last > COMMIT_S:
                run.save(waiting)
                waiting, last = [], monotonic()
            for film in films:
                missing += film.missing
                advance("")
    run.save(waiting)
    return missing


def finish_run(
    run: "Run",
    config: DetectConfig,
    facts: dict[str, Any],
    missing: Sequence[str],
    *,
    progress: Progress,
    **others: int,
) -> DetectResult:
    """Write tables, report and run.json (`facts`, with the counts); return the outcome.

    `others` are more counts of the outcome.
    """
    from kneematch.run.film_record import FAILED, UNREADABLE
    from kneematch.run.outputs.write import write_outputs

    run.flag_outliers()
    counts = write_outputs(run, config, facts, progress=progress)
    failed = run.query(
        "SELECT reason FROM films WHERE status IN (?, ?) ORDER BY id LIMIT ?",
        *(FAILED, UNREADABLE, LISTED_REASONS),
    )
    return DetectResult(
        run.out,
        **counts,
        reasons=tuple(reason for (reason,) in failed),
        missing=len(missing),
        missing_reasons=tuple(missing[:LISTED_REASONS]),
        noun=run.noun,
        **others,
    )
