"""detect_folder: detect on many films, in a run that survives bad files and power cuts."""

import logging
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from kneematch.batch.changes import Work, compare_films
from kneematch.batch.config import DetectConfig, DetectorSource
from kneematch.batch.fingerprint import Fingerprint, fingerprint
from kneematch.errors import SettingsError
from kneematch.io.discovery import select_films
from kneematch.io.files import file_versions, make_out_folder, refuse_existing, remove_leftovers
from kneematch.io.read import is_uncompressed
from kneematch.io.run_folder import FOLDERS, JOURNAL, OLD_JOURNAL
from kneematch.memory import keep_memory, release_memory
from kneematch.parallel import choose_workers, start_early
from kneematch.progress import Progress, no_progress

if TYPE_CHECKING:
    from kneematch.batch.journal import Journal
    from kneematch.batch.ray_engine import Cluster
    from kneematch.batch.row import Row
    from kneematch.detection.detector import Detector
    from kneematch.export.run_file import Counts, Run

logger = logging.getLogger("kneematch")

LISTED_REASONS: Final = 10  # kept in the result; failures.csv has all


@dataclass(frozen=True, slots=True)
class DetectResult:
    """The outcome of a run."""

    out: Path
    films: int  # with detections
    knees: int
    review: int  # knees that a person should look at
    no_knee: int  # films without a frontal knee
    failed: int  # films that could not be used
    reasons: tuple[str, ...]  # of the first films that could not be used
    unmade: int  # films of which a picture, a crop, an export or measures could not be made
    unmade_reasons: tuple[str, ...]  # the first ones
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
    config, folder = config or DetectConfig(), Path(out)
    found = select_films(
        films,
        series=config.series,
        limit=config.limit,
        part=(config.part_id, config.num_parts),
        leave_out=[folder, *(folder / name for name in FOLDERS)],
    )
    return detect_files(found, folder, config, progress=progress)


def detect_files(
    films: Sequence[str], out: Path, config: DetectConfig, *, progress: Progress = no_progress
) -> DetectResult:
    """Detect on files that were found already; see `detect_folder`."""
    clock = _Clock()
    versions = file_versions(films, hashed=config.hash_films)
    if not any(versions):
        others = f", nor is any of the {len(films) - 1} others" if len(films) > 1 else ""
        raise SettingsError(f"{films[0]}: not there{others}; expected films; check the path")
    _start_workers_early(films, config)
    from kneematch.batch.results import remove_artifacts

    connection: AbstractContextManager[Cluster | None] = nullcontext()
    if config.engine == "ray":
        from kneematch.batch.ray_engine import connect

        connection = connect(config.ray_address)
    with connection as cluster:
        plan = _plan(films, out, config, cluster)
        if plan.workers:
            release_memory()  # what loading has freed
        with _open_journal(plan) as journal:
            work = compare_films(journal, films, versions)
            remove_artifacts(out, [journal.names[k] for k in work.changed])
            clock.end("start")
            _detect(plan, journal, work, cluster, progress)
            clock.end("search")
            return _write(plan, journal, work, clock, progress)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Everything that is settled before the first film."""

    films: Sequence[str]
    out: Path
    config: DetectConfig
    detector: "Detector"
    source: DetectorSource
    device_name: str
    workers: int
    hashes: dict[str, str]
    fingerprint: Fingerprint


class _Clock:
    """The time that the parts of a run take."""

    def __init__(self) -> None:
        self.started, self._last = datetime.now(UTC), monotonic()
        self.seconds: dict[str, float] = {}

    def end(self, part: str) -> None:
        now = monotonic()
        self.seconds[part], self._last = now - self._last, now


def _start_workers_early(films: Sequence[str], config: DetectConfig) -> None:
    """Have another process import what workers need while this one imports and loads the same."""
    keep_memory()
    if config.engine != "local":
        return
    if choose_workers(config.workers, len(films)) == 0:
        if not is_uncompressed(films[0]):  # which a child process will decode
            start_early("kneematch.io.read")
    elif config.device == "cpu" or (config.device == "auto" and not Path("/dev/nvidia0").exists()):
        preload = replace(config.source(), device="cpu").preload()
        start_early("kneematch.batch.local_engine", preload)
    else:
        start_early("kneematch.batch.gpu_engine")


def _plan(
    films: Sequence[str], out: Path, config: DetectConfig, cluster: "Cluster | None"
) -> _Plan:
    from kneematch.batch.artifacts import crop_size
    from kneematch.export.run_file import device_name

    if config.crops:
        crop_size(config)  # or it would be refused only when the films are done
    if config.sheet is not None:
        from kneematch.io.write import check_picture_path

        check_picture_path(config.sheet, films, out=out)
    source = config.source()
    if cluster is None:
        detector = source.load()
        device, name = detector.device, device_name(detector.device)
    else:
        # The cluster's devices are not this machine's, which only checks the settings.
        detector = replace(source, device="cpu").load()
        device, name = cluster.device(source.device), cluster.name
    source = replace(source, device=device)
    hashes = source.hashes()
    if config.measure:
        from kneematch.batch.measure_rows import outline_hash  # imports SciPy, which is slow

        hashes |= outline_hash(config.outlines)
    workers = choose_workers(config.workers, len(films))
    logger.debug(
        "%d films; method %s, model %s, template %s, device %s, %d workers",
        len(films),
        detector.method,
        config.model or "built in",
        config.template or "the model's own",
        name,
        workers,
    )
    settings = fingerprint(config, detector.method, device, hashes)
    return _Plan(films, out, config, detector, source, name, workers, hashes, settings)


@contextmanager
def _open_journal(plan: _Plan) -> "Iterator[Journal]":
    """Yield the journal of the run in the folder, or a new one.

    Raises:
        SettingsError: the folder holds a run of version 0.1 or one with other settings.
    """
    from kneematch.batch.journal import Journal
    from kneematch.batch.results import remove_results
    from kneematch.batch.row import row_reviser

    out, force = plan.out, plan.config.force
    old = out / OLD_JOURNAL
    if old.exists() and not force:
        refuse_existing(old, "a run of version 0.1")
    make_out_folder(out)
    with Journal(out / JOURNAL, row_reviser(out), create=True) as journal:
        if force:
            remove_results(out, journal)
            old.unlink(missing_ok=True)
        if force or journal.settings is None:
            journal.begin(plan.fingerprint)
        journal.check(plan.fingerprint)
        remove_leftovers(out, *(out / name for name in FOLDERS))
        yield journal


def _detect(
    plan: _Plan, journal: "Journal", work: Work, cluster: "Cluster | None", progress: Progress
) -> None:
    """Search the films that are left; write rows down as they come."""
    from kneematch.devices import one_thread

    films = [(index, journal.films[index]) for index in work.search]
    found: Generator[list[Row]]
    if cluster is None:
        from kneematch.batch.local_engine import detect_rows

        found = detect_rows(plan.detector, plan.source, films, workers=plan.workers)
    else:
        found = cluster.detect_rows(plan.source, films)
    if plan.config.measure:
        from kneematch.batch.measure_rows import measure_rows

        found = measure_rows(found, plan.config.outlines, workers=plan.workers)
    with (
        progress("detecting", len(plan.films), len(plan.films) - len(films)) as advance,
        one_thread(),
        closing(found) as batches,
    ):
        for rows in batches:
            journal.append(replace(row, version=work.versions[row.index]) for row in rows)
            for _ in rows:
                advance("")


def _write(
    plan: _Plan, journal: "Journal", work: Work, clock: _Clock, progress: Progress
) -> DetectResult:
    """Write tables, pictures and the report."""
    from kneematch.batch.results import (
        failures,
        measure_corrections,
        write_artifacts,
        write_results,
        write_run_and_report,
    )
    from kneematch.review.log import FILE_NAME

    out, workers = plan.out, plan.workers
    reasons = measure_corrections(plan.config, journal, workers=workers, progress=progress)
    counts = write_results(plan.config, out, journal, list(plan.detector.template.landmarks))
    if counts.accepted or counts.rejected or counts.corrected:
        logger.info("decisions of %s applied: %s", out / FILE_NAME, counts.decisions)
    clock.end("tables")
    reasons += write_artifacts(plan.config, out, journal, workers=workers, progress=progress)
    clock.end("pictures")
    write_run_and_report(out, journal, partial(_run_file, plan, counts, clock), workers=workers)
    reasons_of_failed = (row.failure or "" for row in failures(journal) if not row.no_knee)
    return DetectResult(
        out,
        counts.films,
        counts.knees,
        counts.review,
        counts.no_knee,
        counts.failed,
        reasons=tuple(islice(reasons_of_failed, LISTED_REASONS)),
        unmade=len(reasons),
        unmade_reasons=tuple(reasons[:LISTED_REASONS]),
        gone=len(journal.gone),
        changed=len(work.changed),
    )


def _run_file(plan: _Plan, counts: "Counts", clock: _Clock) -> "Run":
    from kneematch.export.run_file import Run

    return Run(
        started=clock.started,
        ended=datetime.now(UTC),
        counts=counts,
        settings={"out": plan.out, **asdict(plan.config)},
        command=tuple(sys.argv),
        device=plan.device_name,
        hashes=plan.hashes,
        timings_s=clock.seconds,
    )
