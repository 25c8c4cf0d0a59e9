"""The stages of a run: load the detector, compare films with the journal, search, write results."""

import logging
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kneematch.devices import most_workers, one_thread, resolve_device
from kneematch.errors import TemplateError
from kneematch.films.files import (
    FileVersion,
    file_versions,
    make_out_folder,
    refuse_existing,
    remove_leftovers,
)
from kneematch.films.run_folder import FOLDERS, JOURNAL, OLD_JOURNAL
from kneematch.knee.detector import GPU_BATCH, Detector
from kneematch.knee.methods import read_template
from kneematch.memory import release_memory
from kneematch.parallel import choose_workers
from kneematch.progress import Progress
from kneematch.run.artifacts import crop_size
from kneematch.run.config import DetectConfig, Fingerprint
from kneematch.run.decisions import FILE_NAME
from kneematch.run.journal import Journal
from kneematch.run.outputs.run_file import Clock, Counts, Run, device_name
from kneematch.run.results import (
    measure_corrections,
    remove_artifacts,
    remove_results,
    write_artifacts,
    write_results,
    write_run_and_report,
)
from kneematch.run.row import Row, row_reviser
from kneematch.run.workers import detect_rows
from kneematch.search.settings import AUTO, LOCATOR

if TYPE_CHECKING:
    from kneematch.run.ray import Cluster

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


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Everything that is settled before the first film."""

    films: Sequence[str]
    out: Path
    config: DetectConfig
    detector: Detector
    device: str  # on which films are searched
    device_name: str
    workers: int
    searchers: int  # those of them that fit into a GPU's memory
    hashes: dict[str, str]
    fingerprint: Fingerprint


def run_stages(
    films: Sequence[str],
    versions: Sequence[FileVersion | None],
    out: Path,
    config: DetectConfig,
    clock: Clock,
    progress: Progress,
) -> DetectResult:
    """Detect on films, given the versions of their files; see `detect_folder`."""
    connection: AbstractContextManager[Cluster | None] = nullcontext()
    if config.engine == "ray":
        from kneematch.run.ray import connect

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


def _plan(
    films: Sequence[str], out: Path, config: DetectConfig, cluster: "Cluster | None"
) -> _Plan:
    if config.crops:
        crop_size(config)  # or it would be refused only when the films are done
    if config.sheet is not None:
        from kneematch.films.write import check_picture_path

        check_picture_path(config.sheet, films, out=out)
    workers = searchers = choose_workers(config.workers, len(films))
    if cluster is None:
        device = resolve_device(config.device)
        name = device_name(device)
        searchers = min(workers, most_workers(device, config.batch_size or GPU_BATCH))
        if searchers < workers:
            logger.warning(
                "room for %d of %d workers in the memory of %s; free some of it, or choose a "
                "smaller --batch-size",
                searchers,
                workers,
                device,
            )
    else:
        device, name = cluster.device(config.device), cluster.name
    # Where others search, this process only checks the settings.
    searches = cluster is None and searchers == 0
    detector = replace(config, device=device if searches else "cpu").load_detector()
    hashes = config.file_hashes()
    if config.measure:
        from kneematch.run.measure_rows import outline_hash  # imports SciPy, which is slow

        hashes |= outline_hash(config.outlines)
    logger.debug(
        "%d films; method %s, model %s, template %s, device %s, %d workers",
        len(films),
        detector.method,
        config.model or "built in",
        config.template or "the model's own",
        name,
        searchers,
    )
    if config.template and config.method == AUTO and not config.paper:
        _warn_of_halves(config.template, detector.method)
    settings = config.fingerprint(detector.method, device, hashes)
    return _Plan(films, out, config, detector, device, name, workers, searchers, hashes, settings)


def _warn_of_halves(template: str, method: str) -> None:
    """Warn if `auto` could not choose the locator for a template, which changes what is found."""
    if method == LOCATOR:
        return
    reason = "the networks see no knee where it was drawn"
    try:
        read_template(template, located=True)
    except TemplateError as error:
        reason = str(error).split("; ")[0]
    logger.warning(
        "%s: not found by the method locator (%s); %s is used instead, which looks for two knees "
        "on every film; for films of one knee or none, draw a fine box around the whole joint",
        template,
        reason,
        method,
    )


@contextmanager
def _open_journal(plan: _Plan) -> Iterator[Journal]:
    """Yield the journal of the run in the folder, or a new one.

    Raises:
        SettingsError: the folder holds a run of version 0.1 or one with other settings.
    """
    out, force = plan.out, plan.config.force
    old = out / OLD_JOURNAL
    if old.exists() and not force:
        refuse_existing(old, "a run of version 0.1")
    make_out_folder(out)
    revise = row_reviser(out)
    with Journal(out / JOURNAL, create=True) as journal:
        journal.revise = revise
        if force:
            remove_results(out, journal)
            old.unlink(missing_ok=True)
        if force or journal.settings is None:
            journal.begin(plan.fingerprint)
        journal.check(plan.fingerprint)
        remove_leftovers(out, *(out / name for name in FOLDERS))
        yield journal


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What is left to do, by the indices of films in the journal."""

    versions: dict[int, FileVersion | None]  # of the files of all named films
    search: list[int]  # films without a row of their present version
    changed: list[int]  # those among them that have a row of another version


def compare_films(
    journal: Journal, films: Sequence[str], versions: Sequence[FileVersion | None]
) -> Work:
    """Add the named films to a run, and find out which are to be searched.

    Films that are no longer there keep their rows, and those with detections are marked. `versions`
    are those of the named files, None where there is none.
    """
    named = dict(zip(journal.add(films), versions, strict=True))
    done = [k for k in named if journal.is_done(k)]
    changed = [k for k in done if not _is_same(journal.version(k), named[k])]
    others = [k for k in range(journal.count) if k not in named and journal.is_done(k)]
    found = file_versions([journal.films[k] for k in others])
    present = named | dict(zip(others, found, strict=True))
    gone = [k for k, version in present.items() if version is None and journal.version(k)]
    journal.mark_gone(gone)
    if done or gone:
        logger.info(
            "%s films: %s done before, %s new%s%s",
            f"{len(named):,}",
            f"{len(done):,}",
            f"{len(named) - len(done):,}",
            f", {len(gone):,} gone (kept in the table, marked)" if gone else "",
            f", {len(changed):,} changed" if changed else "",
        )
    return Work(named, sorted({*named} - {*done} | {*changed}), changed)


def _is_same(before: FileVersion | None, now: FileVersion | None) -> bool:
    """Return whether a film need not be searched again; one that is gone cannot be."""
    return now is None or (before is not None and before.is_same(now))


def _detect(
    plan: _Plan, journal: Journal, work: Work, cluster: "Cluster | None", progress: Progress
) -> None:
    """Search the films that are left; write rows down as they come."""
    films = [(index, journal.films[index]) for index in work.search]
    config = replace(plan.config, device=plan.device)
    if config.device != "cpu":  # its arithmetic might choose another method than the journal names
        config = replace(config, method=plan.detector.method)
    found: Generator[list[Row]]
    if cluster is None:
        found = detect_rows(plan.detector, config, films, workers=plan.searchers)
    else:
        found = cluster.detect_rows(config, films)
    if config.measure:
        from kneematch.run.measure_rows import measure_rows

        found = measure_rows(found, config.outlines, workers=plan.workers)
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
    plan: _Plan, journal: Journal, work: Work, clock: Clock, progress: Progress
) -> DetectResult:
    """Write tables, pictures and the report."""
    out, workers = plan.out, plan.workers
    reasons = measure_corrections(plan.config, journal, workers=workers, progress=progress)
    landmarks = list(plan.detector.template.landmarks)
    counts = write_results(plan.config, out, journal, landmarks, progress=progress)
    if counts.accepted or counts.rejected or counts.corrected:
        logger.info("decisions of %s applied: %s", out / FILE_NAME, counts.decisions)
    clock.end("tables")
    reasons += write_artifacts(plan.config, out, journal, workers=workers, progress=progress)
    clock.end("pictures")
    write_run_and_report(out, journal, partial(_run_file, plan, counts, clock), workers=workers)
    reasons_of_failed = (row.failure or "" for row in journal.failures() if not row.no_knee)
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


def _run_file(plan: _Plan, counts: Counts, clock: Clock) -> Run:
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
