"""detect_folder: detect on many films, in a run that survives bad files and power cuts."""

import hashlib
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

from kneematch import __version__
from kneematch.batch.config import DetectConfig, DetectorSource
from kneematch.errors import SettingsError
from kneematch.io.discovery import select_films
from kneematch.io.read import is_uncompressed
from kneematch.io.run_folder import FOLDERS, JOURNAL, OLD_JOURNAL
from kneematch.parallel import default_workers, keep_memory, start_early
from kneematch.progress import Progress, no_progress

if TYPE_CHECKING:
    from kneematch.batch.journal import Fingerprint, Journal, Row
    from kneematch.batch.ray_engine import Cluster
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
    unmade: int  # films of which an overlay, a crop or an export could not be made
    unmade_reasons: tuple[str, ...]  # the first ones


def detect_folder(
    films: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    config: DetectConfig | None = None,
    *,
    progress: Progress = no_progress,
) -> DetectResult:
    """Detect the knee joint areas of films, and write tables, a report and pictures.

    An interrupted run leaves its journal, from which `resume` continues.

    Args:
        films: files, folders, patterns, lists (`@list.txt`, a CSV with a column of paths), or
            several of these.
        out: folder for the results.
        config: settings; default: the built-in model on the fastest device.
        progress: shows progress.

    Raises:
        SettingsError: the settings contradict each other, or those of the run to resume.
    """
    config, folder = config or DetectConfig(), Path(out)
    named = [films] if isinstance(films, str | os.PathLike) else list(films)
    ours = [folder, *(folder / name for name in FOLDERS)]
    found = select_films(
        [os.fspath(name) for name in named],
        series=config.series,
        limit=config.limit,
        part=(config.part_id, config.num_parts),
        leave_out=ours,
    )
    return detect_files(found, folder, config, progress=progress)


def detect_files(
    films: Sequence[str],
    out: Path,
    config: DetectConfig,
    *,
    progress: Progress = no_progress,
) -> DetectResult:
    """Detect on files that were found already; see `detect_folder`."""
    clock = _Clock()
    _start_workers_early(films, config)
    with _connect(config) as cluster:
        plan = _plan(films, out, config, cluster)
        with _open_journal(plan) as journal:
            clock.end("start")
            _detect(plan, journal, cluster, progress)
            clock.end("search")
            return _write(plan, journal, clock, progress)


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
    fingerprint: "Fingerprint"


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
    if _workers(films, config) == 0:
        if not is_uncompressed(films[0]):  # which a child process will decode
            start_early("kneematch.io.read")
    elif config.device == "cpu" or (config.device == "auto" and not Path("/dev/nvidia0").exists()):
        start_early("kneematch.batch.workers", replace(config.source(), device="cpu").preload())
    else:
        start_early("kneematch.batch.gpu_engine")


def _workers(films: Sequence[str], config: DetectConfig) -> int:
    return default_workers(len(films)) if config.workers is None else config.workers


def _connect(config: DetectConfig) -> "AbstractContextManager[Cluster | None]":
    """Return a Ray cluster, or None for this machine."""
    if config.engine != "ray":
        return nullcontext()
    from kneematch.batch.ray_engine import connect

    return connect(config.ray_address)


def _plan(
    films: Sequence[str], out: Path, config: DetectConfig, cluster: "Cluster | None"
) -> _Plan:
    from kneematch.batch.artifacts import crop_size
    from kneematch.batch.measuring import outline_hash
    from kneematch.export.run_file import device_name

    if config.crops:
        crop_size(config)  # or it would be refused only when the films are done
    if config.sheet is not None:
        from kneematch.io.write import check_picture_path

        check_picture_path(config.sheet, films)
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
        hashes |= outline_hash(config.outlines)
    fingerprint: dict[str, str | int | bool] = {
        "version": __version__,
        **hashes,
        "method": detector.method,
        "paper": config.paper,
        "paper_settings": " ".join(map(str, config.paper_settings)),
        "left_is": config.left_is or "",
        "device": device.split(":")[0],
        "films": hashlib.sha256(b"\0".join(map(os.fsencode, films))).hexdigest(),
    }
    workers = _workers(films, config)
    logger.debug(
        "%d films; method %s, model %s, template %s, device %s, %d workers",
        len(films),
        detector.method,
        config.model or "built in",
        config.template or "the model's own",
        name,
        workers,
    )
    return _Plan(films, out, config, detector, source, name, workers, hashes, fingerprint)


def _open_journal(plan: _Plan) -> "Journal":
    """Open the journal of a run to continue, or of a new one.

    Raises:
        SettingsError: the folder holds a run that is neither to be resumed nor replaced.
    """
    from kneematch.batch.journal import Journal, check_journal, start_journal
    from kneematch.batch.results import RESULT_FILES
    from kneematch.batch.reviewed_rows import row_reviser

    out, config = plan.out, plan.config
    path, old = out / JOURNAL, out / OLD_JOURNAL
    if config.resume and path.exists():
        check_journal(path, plan.fingerprint)
        return Journal(path, len(plan.films), row_reviser(out))
    if (path.exists() or old.exists()) and not config.force:
        raise SettingsError(
            f"{path if path.exists() else old}: there is a run in this folder already; expected a "
            "new folder; continue it with --resume, start over with --force, or name another folder"
        )
    if path.exists() or old.exists():  # so these files are ours
        for name in (*RESULT_FILES, OLD_JOURNAL):
            (out / name).unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    start_journal(path, plan.fingerprint)
    return Journal(path, len(plan.films), row_reviser(out))


def _detect(plan: _Plan, journal: "Journal", cluster: "Cluster | None", progress: Progress) -> None:
    """Search the films that have no row yet; write rows down as they come."""
    films = [(index, plan.films[index]) for index in journal.remaining()]
    found: Generator[list[Row]]
    if cluster is None:
        from kneematch.batch.local_engine import detect_rows

        found = detect_rows(plan.detector, plan.source, films, workers=plan.workers)
    else:
        found = cluster.detect_rows(plan.source, films)
    if plan.config.measure:
        from kneematch.batch.measuring import measure_rows

        found = measure_rows(found, plan.config.outlines, workers=plan.workers)
    with (
        progress("detecting", journal.count, journal.done()) as advance,
        one_thread(),
        closing(found) as batches,
    ):
        for rows in batches:
            journal.append(rows)
            for _ in rows:
                advance("")


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, so that the last digits do not depend on the number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write(plan: _Plan, journal: "Journal", clock: _Clock, progress: Progress) -> DetectResult:
    """Write tables, pictures and the report."""
    from kneematch.batch.results import failures, write_results, write_run_and_report

    out = plan.out
    counts = write_results(plan.config, out, journal, list(plan.detector.template.landmarks))
    clock.end("tables")
    reasons = _make_artifacts(plan, journal, progress)
    clock.end("pictures")
    ended = partial(_run_file, plan, counts, clock)
    write_run_and_report(out, journal, ended, workers=plan.workers)
    reasons_of_failed = (row.failure or "" for row in failures(journal) if not row.no_knee)
    return DetectResult(
        out,
        counts.films,
        counts.knees,
        counts.review,
        counts.no_knee,
        counts.failed,
        tuple(islice(reasons_of_failed, LISTED_REASONS)),
        len(reasons),
        tuple(reasons[:LISTED_REASONS]),
    )


def _make_artifacts(plan: _Plan, journal: "Journal", progress: Progress) -> list[str]:
    """Make overlays, crops and exports that are missing; return why some could not be made."""
    from kneematch.batch.artifacts import (
        distinct_names,
        make_artifacts,
        missing_artifacts,
        requested_artifacts,
    )
    from kneematch.batch.results import draw_sheet, write_crop_table

    config, workers = plan.config, plan.workers
    failed = []
    artifacts = requested_artifacts(config, plan.out)
    if artifacts:
        names = distinct_names(plan.films)
        films = missing_artifacts(journal.rows(), names, artifacts, since=journal.started)
        with progress("writing pictures", journal.count) as advance:
            for reason in make_artifacts(films, workers=workers):
                failed += [] if reason is None else [reason]
                advance("")
    if config.crops:
        write_crop_table(config, plan.out, plan.films, journal)
    if config.sheet is not None:
        draw_sheet(journal, config.sheet, workers=workers)
    return failed


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
