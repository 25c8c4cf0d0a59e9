"""detect_folder: visit many films, in a run that survives bad files and power cuts.

Heavy modules are imported inside functions: the process that workers are forked from is started
first, and imports the same meanwhile.
"""

import logging
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from kneematch.errors import SettingsError, TemplateError
from kneematch.films.discovery import select_films
from kneematch.films.files import (
    FileVersion,
    file_versions,
    make_out_folder,
    remove_leftovers,
)
from kneematch.films.read import is_uncompressed
from kneematch.films.run_folder import FOLDERS, JOURNAL, REPORT, RUN, RUN_DATABASE, THUMBNAILS
from kneematch.memory import keep_memory, release_memory
from kneematch.parallel import choose_workers, start_early
from kneematch.progress import Progress, no_progress
from kneematch.run.config import DetectConfig, Fingerprint

if TYPE_CHECKING:
    from kneematch.knee.detector import Detector
    from kneematch.run.database import Run
    from kneematch.run.film_record import FilmRecord
    from kneematch.run.outputs.run_file import Clock
    from kneematch.run.ray import Cluster
    from kneematch.run.visit import Visit

logger = logging.getLogger("kneematch")

LISTED_REASONS: Final = 10  # kept in the result; failures.csv has all
COMMIT_FILMS, COMMIT_S = 64, 1.0  # films, or seconds, after which the database is written


@dataclass(frozen=True, slots=True)
class DetectResult:
    """The outcome of a run."""

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


def detect_folder(
    films: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    config: DetectConfig | None = None,
    *,
    progress: Progress = no_progress,
) -> DetectResult:
    """Detect the knee joint areas of films, and write tables, a report and pictures.

    The run in the folder is continued: films that it has are not searched again, unless their
    files have changed.

    Args:
        films: files, folders, patterns, lists (`@list.txt`, a CSV with a column of paths), or
            several of these.
        out: folder for the results.
        config: settings; default: the built-in model on the fastest device.
        progress: shows progress.

    Raises:
        SettingsError: the settings contradict each other, or those of the run in the folder.
    """
    config, out = config or DetectConfig(), Path(out)
    paths = select_films(
        films,
        series=config.series,
        limit=config.limit,
        part=(config.part_id, config.num_parts),
        leave_out=[out, *(out / name for name in FOLDERS)],
    )
    started = datetime.now(UTC), monotonic()
    versions = file_versions(paths, hashed=config.hash_films)
    if not any(versions):
        others = f" and {len(paths) - 1} others" if len(paths) > 1 else ""
        raise SettingsError(f"No such file or folder: {paths[0]}{others}")
    _start_workers_early(paths, config)
    from kneematch.devices import one_thread
    from kneematch.run.outputs.run_file import Clock

    clock = Clock(*started)
    connection: AbstractContextManager[Cluster | None] = nullcontext()
    if config.engine == "ray":
        from kneematch.run.ray import connect

        connection = connect(config.ray_address)
    with connection as cluster:
        plan = _make_plan(len(paths), out, config, cluster)
        if plan.config.sheet is not None:
            from kneematch.films.write import check_picture_path

            check_picture_path(plan.config.sheet, paths, out=out)
        with _open_run(plan) as run, one_thread():
            work = _compare(run, paths, versions, plan.visit)
            clock.end("start")
            missing = _visit_films(plan, run, work, cluster, progress)
            clock.end("visits")
            return _finish(plan, run, work, missing, clock, progress)


def _start_workers_early(paths: Sequence[str], config: DetectConfig) -> None:
    """Have another process import what workers need while this one imports the same."""
    keep_memory()
    if config.engine != "local":
        return
    if choose_workers(config.workers, len(paths)):
        start_early("kneematch.run.workers")
    elif not is_uncompressed(paths[0]):  # which a child process will decode
        start_early("kneematch.films.read")


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Everything that is settled before the first film."""

    config: DetectConfig  # with the device and the method that were chosen
    visit: "Visit"
    detector: "Detector"
    device_name: str
    workers: int
    hashes: dict[str, str]
    fingerprint: Fingerprint


def _make_plan(films: int, out: Path, config: DetectConfig, cluster: "Cluster | None") -> _Plan:
    from kneematch.devices import most_workers, resolve_device
    from kneematch.knee.detector import GPU_BATCH
    from kneematch.run.outputs.run_file import device_name
    from kneematch.run.visit import Visit

    if config.crops:
        config.crop_size()  # or it would be refused only with the first film
    workers = choose_workers(config.workers, films)
    if cluster is None:
        device = resolve_device(config.device)
        name = device_name(device)
        room = most_workers(device, config.batch_size or GPU_BATCH)
        if room < workers:
            logger.warning(
                "The memory of %s has room for %d of %d workers. Free some of it, or choose a "
                "smaller --batch-size.",
                device,
                room,
                workers,
            )
        workers = min(workers, room)
    else:
        device, name = cluster.device(config.device), cluster.name
    # Where others search, this process only checks the settings.
    searches = cluster is None and workers == 0
    detector = replace(config, device=device if searches else "cpu").load_detector()
    hashes = config.file_hashes()
    chosen = replace(config, device=device)
    if device != "cpu":  # its arithmetic might choose another method than this process has
        chosen = replace(chosen, method=detector.method)
    visit = Visit(chosen, out)
    if searches:
        visit.__dict__["detector"] = detector
    if config.measure:
        hashes |= config.outline_hash()
    logger.debug(
        "%d films; method %s, model %s, template %s, device %s, %d workers",
        films,
        detector.method,
        config.model or "built in",
        config.template or "the model's own",
        name,
        workers,
    )
    if config.template and config.method == "auto" and not config.paper:
        _warn_of_halves(config.template, detector.method)
    fingerprint = config.fingerprint(detector.method, device, hashes)
    return _Plan(config, visit, detector, name, workers, hashes, fingerprint)


def _warn_of_halves(template: str, method: str) -> None:
    """Warn if `auto` could not choose the locator for a template, which changes what is found."""
    from kneematch.knee.methods import read_template

    if method == "locator":
        return
    reason = "the networks see no knee where it was drawn"
    try:
        read_template(template, located=True)
    except TemplateError as error:
        reason = str(error)[:120]
    logger.warning(
        "%s cannot be found by the method locator (%s). The method %s is used instead, which looks "
        "for two knees on every film. For films of one knee or none, draw a fine box around the "
        "whole joint.",
        template,
        reason,
        method,
    )


@contextmanager
def _open_run(plan: _Plan) -> Iterator["Run"]:
    """Yield the run in the output folder, or a new one.

    Raises:
        SettingsError: the folder holds a run with other settings, or of an earlier version.
    """
    from kneematch.run.database import Run

    out, config = plan.visit.out, plan.config
    make_out_folder(out)
    if config.force:
        _remove_run(out)
    elif (out / JOURNAL).exists() and not (out / RUN_DATABASE).exists():
        raise SettingsError(
            f"{out} holds a run of kneematch 0.2. Name another folder, or replace it with --force."
        )
    with Run(out, create=True) as run:
        if run.setting("fingerprint") is None:
            run.store(fingerprint=dict(plan.fingerprint))
        run.check(plan.fingerprint)
        landmarks = list(plan.detector.template.landmarks)
        run.store(config=asdict(config), out=str(out), landmarks=landmarks)
        remove_leftovers(out, *(out / name for name in FOLDERS))
        yield run


def _remove_run(out: Path) -> None:
    """Remove the run in a folder: its database and the files that it made, and no others."""
    from kneematch.run.database import Run
    from kneematch.run.outputs.write import remove_results
    from kneematch.run.sqlite import DamagedRun

    names: list[str] = []
    if (out / RUN_DATABASE).exists():
        with suppress(DamagedRun), Run(out) as run:
            names = [name for (name,) in run.query("SELECT name FROM films")]
    remove_results(out, names)
    for name in (RUN_DATABASE, THUMBNAILS, JOURNAL):
        for ending in ("", "-journal"):
            (out / f"{name}{ending}").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """What is to be done, by the ids of films."""

    versions: dict[int, FileVersion | None]  # versions of the files of all named films
    visit: list[int]
    search: set[int]  # the films among these without detections of their present version
    outdated: dict[int, frozenset[str]]  # films with outdated files, and the kinds of these
    changed: list[int]  # the films among these that have detections of another version
    gone: list[int]  # films with detections that are no longer there


def _compare(
    run: "Run", paths: Sequence[str], versions: Sequence[FileVersion | None], visit: "Visit"
) -> _Work:
    """Add the named films to a run, and find out which are to be visited.

    Films that are no longer there keep their rows, and are marked.
    """
    named = dict(zip(run.add(paths), versions, strict=True))
    before = run.versions()
    done = [k for k in named if k in before]
    changed = [k for k in done if not _is_same(before[k], named[k])]
    others = [(k, path) for k, path in run.paths() if k in before and k not in named]
    found = file_versions([path for _, path in others])
    present = named | dict(zip((k for k, _ in others), found, strict=True))
    gone = [k for k, now in present.items() if now is None and before.get(k) is not None]
    run.mark_gone(gone)
    if done or gone:
        logger.info(
            "%s films: %s done before, %s new%s%s",
            f"{len(named):,}",
            f"{len(done):,}",
            f"{len(named) - len(done):,}",
            f", {len(gone):,} gone (kept in the table, marked)" if gone else "",
            f", {len(changed):,} changed" if changed else "",
        )
    search = {*named} - {*done} | {*changed}
    decided = {*run.decided()}
    outdated = {
        k: kinds
        for k, kinds in run.outdated(visit.artifacts).items()
        if (k in named or present.get(k) is not None) and k not in search | decided
    }
    run.forget_made(outdated)
    films = sorted(search | decided | {*outdated})
    return _Work(named, films, search, outdated, changed, gone)


def _is_same(before: FileVersion | None, now: FileVersion | None) -> bool:
    """Return whether a film need not be searched again; one that is gone cannot be."""
    return now is None or (before is not None and before.is_same(now))


def _visit_films(
    plan: _Plan, run: "Run", work: _Work, cluster: "Cluster | None", progress: Progress
) -> list[str]:
    """Visit films and write down what was found as it comes; return what could not be made."""
    from kneematch.run.workers import map_visits

    films = [
        _unsearched(film, work.versions[film.id])
        if film.id in work.search
        else replace(film, to_make=work.outdated.get(film.id))
        for film in run.to_visit(work.visit)
    ]
    if plan.workers:
        release_memory()  # what loading has freed
    visited: Generator[list[FilmRecord]]
    if cluster is None:
        visited = map_visits(plan.visit, films, workers=plan.workers)
    else:
        visited = cluster.map_visits(plan.visit, films)
    count = max(len(work.versions), len(films))
    return save_visits(run, visited, progress, count, count - len(films))


def _unsearched(film: "FilmRecord", version: FileVersion | None) -> "FilmRecord":
    """Return a film as if it had never been searched."""
    return replace(film, version=version, status="", reason="", found=(), knees=())


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
            if len(waiting) >= COMMIT_FILMS or monotonic() - last > COMMIT_S:
                run.save(waiting)
                waiting, last = [], monotonic()
            for film in films:
                missing += film.missing
                advance("")
    run.save(waiting)
    return missing


def _finish(
    plan: _Plan, run: "Run", work: _Work, missing: list[str], clock: "Clock", progress: Progress
) -> DetectResult:
    """Write tables and the report."""
    from kneematch.run.outputs.report import write_report
    from kneematch.run.outputs.run_file import RunInfo, write_run
    from kneematch.run.outputs.write import write_outputs

    landmarks = list(plan.detector.template.landmarks)
    counts, summary = write_outputs(run, plan.config, landmarks, progress=progress)
    if counts.accepted or counts.rejected or counts.corrected:
        logger.info("Decisions of the review were applied: %s", counts.decisions)
    clock.end("tables")
    info = RunInfo(
        started=clock.started,
        ended=datetime.now(UTC),
        counts=counts,
        settings={"out": run.out, **asdict(plan.config)},
        command=tuple(sys.argv),
        device=plan.device_name,
        hashes=plan.hashes,
        timings_s=clock.seconds,
    )
    write_report(run.out / REPORT, info, summary, run.thumbnail)
    run.store(run=info.to_dict())
    write_run(info, run.out / RUN)
    failed = run.query(
        "SELECT reason FROM films WHERE status = 'failed' ORDER BY id LIMIT ?", LISTED_REASONS
    )
    return DetectResult(
        run.out,
        counts.films,
        counts.knees,
        counts.review,
        counts.no_knee,
        counts.failed,
        reasons=tuple(reason for (reason,) in failed),
        missing=len(missing),
        missing_reasons=tuple(missing[:LISTED_REASONS]),
        gone=len(work.gone),
        changed=len(work.changed),
    )
