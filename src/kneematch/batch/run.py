"""The whole of a run: films are searched, entered in the ledger, and told of."""

import hashlib
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from kneematch.batch.artifacts import distinct_names, pay, visits_left
from kneematch.batch.clock import Clock
from kneematch.batch.config import Settings
from kneematch.batch.journal import NAME, Fingerprint, Ledger, check_ledger, start_ledger
from kneematch.batch.local_engine import enough_workers, search_batches
from kneematch.batch.products import crop_size, products_of
from kneematch.batch.results import (
    MOST_REASONS,
    WRITTEN,
    Tally,
    draw_sheet,
    write_all_tables,
    write_crop_table,
    write_run_and_report,
)
from kneematch.batch.row import Record
from kneematch.detection.detector import Detector
from kneematch.export.run_file import Run, device_name

if TYPE_CHECKING:
    from kneematch.batch.ray_engine import Cluster

Advance = Callable[[], None]
Progress = Callable[[int, int], AbstractContextManager[Advance]]  # of all films; of those done


def silent(total: int, done: int) -> AbstractContextManager[Advance]:
    """Progress that nobody sees."""
    return nullcontext(lambda: None)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run has come to."""

    films: int  # with detections
    knees: int
    failed: int
    reasons: tuple[str, ...]  # of the first failures
    undrawn: int  # films of which a picture, crop or the like could not be made
    why_undrawn: tuple[str, ...]  # the first ones


def run(
    settings: Settings,
    films: Sequence[str],
    progress: Progress = silent,
    command: Sequence[str] = (),
) -> Summary:
    """Search films and write what was found to `settings.out`.

    An interrupted run leaves its ledger, from which it is resumed.

    Args:
        settings: how.
        films: their paths, each once.
        progress: opened with the number of films and of those done; called after each.
        command: as it was typed, for run.json.

    Raises:
        SettingsError: the settings contradict each other, or those of the run to resume.
    """
    clock = Clock()
    with _cluster(settings) as cluster:
        plan = _plan(settings, films, cluster)
        with _opened(plan) as ledger:
            clock.tick("start")
            _enter(_search(plan, ledger, cluster), ledger, progress)
            clock.tick("search")
            tally = write_all_tables(settings, ledger, list(plan.detector.template.landmarks))
            clock.tick("tables")
            undrawn, why = _draw(plan, ledger, progress)
            clock.tick("pictures")
            ending = partial(_ending, plan, tally, clock, command)
            write_run_and_report(settings.out, ledger, plan.workers, ending)
    return Summary(tally.films, tally.knees, tally.failed, tally.reasons, undrawn, why)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """All that is settled before the first film."""

    settings: Settings
    films: Sequence[str]
    detector: Detector
    device: str
    device_name: str
    workers: int
    fingerprint: Fingerprint


def _cluster(settings: Settings) -> AbstractContextManager["Cluster | None"]:
    """A cluster, or None for this machine."""
    if settings.engine != "ray":
        return nullcontext()
    from kneematch.batch.ray_engine import connected

    return connected(settings.ray_address)


def _plan(settings: Settings, films: Sequence[str], cluster: "Cluster | None") -> _Plan:
    recipe = settings.recipe
    if settings.crops:
        crop_size(settings)  # or it would be refused when the films are done
    if cluster is None:
        detector = recipe.build()
        device, name = detector.device, device_name(detector.device)
    else:
        # Its devices are not this machine's, which only checks the settings.
        detector = replace(recipe, device="cpu").build()
        device, name = cluster.device(recipe.device), cluster.name
    fingerprint = recipe.fingerprint(detector.method, device) | {"films": _hash(films)}
    workers = enough_workers(len(films)) if settings.workers is None else settings.workers
    return _Plan(settings, films, detector, device, name, workers, fingerprint)


def _opened(plan: _Plan) -> Ledger:
    """The ledger of a run to continue, or a new one."""
    out, settings = plan.settings.out, plan.settings
    out.mkdir(parents=True, exist_ok=True)
    if settings.resume and (out / NAME).exists():
        check_ledger(out / NAME, plan.fingerprint)
    else:
        if settings.force and (out / NAME).exists():  # so these files are ours
            for name in WRITTEN:
                (out / name).unlink(missing_ok=True)
        start_ledger(out / NAME, plan.fingerprint, force=settings.force)
    return Ledger(out / NAME, len(plan.films), settings.recipe.batch_size)


def _search(plan: _Plan, ledger: Ledger, cluster: "Cluster | None") -> Generator[list[Record]]:
    """The records of what is not in the ledger yet."""
    left = [ledger.films(batch) for batch in ledger.left()]
    if cluster is None:
        return search_batches(plan.detector, plan.films, left, workers=plan.workers)
    room = plan.detector.room
    return cluster.search_batches(plan.settings.recipe, plan.films, left, room=room)


def _enter(searched: Generator[list[Record]], ledger: Ledger, progress: Progress) -> None:
    """Write batches down as they come."""
    with progress(ledger.count, ledger.done()) as advance, closing(searched) as batches:
        for records in batches:
            ledger.append(records)
            for _ in records:
                advance()


def _draw(plan: _Plan, ledger: Ledger, progress: Progress) -> tuple[int, tuple[str, ...]]:
    """Make what is not there; return how many films failed, and the first reasons."""
    settings, workers = plan.settings, plan.workers
    failed, reasons = 0, []
    products = products_of(settings)
    if products:
        names = distinct_names(plan.films)
        visits = visits_left(ledger.records(), names, products, since=ledger.started)
        with progress(ledger.count, 0) as advance:
            for reason in pay(visits, workers=workers, report=advance):
                failed += 1
                reasons.append(reason)
                del reasons[MOST_REASONS:]
    if settings.crops:
        write_crop_table(settings, plan.films, ledger)
    if settings.sheet is not None:
        draw_sheet(ledger, settings.sheet, workers=workers)
    return failed, tuple(reasons)


def _ending(plan: _Plan, tally: Tally, clock: Clock, command: Sequence[str]) -> Run:
    """What is told of the run as such."""
    settings = asdict(plan.settings)
    return Run(
        started=clock.started,
        ended=datetime.now(UTC),
        counts=tally.counts(),
        settings=settings.pop("recipe") | settings.pop("selection") | settings,
        command=tuple(command),
        device=plan.device_name,
        hashes=plan.settings.recipe.hashes(),
        timings_s=clock.parts(),
    )


def _hash(films: Sequence[str]) -> str:
    return hashlib.sha256(b"\0".join(map(os.fsencode, films))).hexdigest()
