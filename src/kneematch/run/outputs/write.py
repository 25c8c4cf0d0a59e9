"""Write the tables, exports and report of a run, in one pass over its database."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Any, Final

from kneematch.films.csv_text import Cell
from kneematch.films.files import DETECTIONS, DICOM, FAILURES, REPORT, RUN
from kneematch.knee.detection import DECISIONS
from kneematch.progress import Progress
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run
from kneematch.run.decisions import REVIEW, write_decisions
from kneematch.run.film_record import FAILED, FILES, NO_KNEE, UNREADABLE, FilmRecord
from kneematch.run.outputs.coco import open_coco
from kneematch.run.outputs.measurements import KNEES, MEASUREMENTS, OUTLINES, open_measurements
from kneematch.run.outputs.report import Summary, write_report
from kneematch.run.outputs.run_file import write_run
from kneematch.run.outputs.tables import (
    CROP_COLUMNS,
    ORIGINAL,
    Columns,
    crop_rows,
    detection_columns,
    detection_rows,
    open_table,
)

logger = logging.getLogger("kneematch")

Rows = Callable[[FilmRecord], Iterable[Mapping[str, Cell]]]

COCO: Final = "coco.json"
CROP_TABLE: Final = "crops.csv"
FAILURE_COLUMNS: Final[Columns] = dict.fromkeys(("film", "status", "reason"))
RESULT_FILES: Final = (
    *(DETECTIONS, ORIGINAL, MEASUREMENTS, KNEES, OUTLINES),
    *(FAILURES, COCO, CROP_TABLE, RUN, REPORT, REVIEW),
)
# Films shown in the report: a twentieth, so that the page of a short run stays short.
SHOWN_SHARE, FEWEST_SHOWN, MOST_SHOWN = 0.05, 10, 48


def write_outputs(
    run: Run, config: DetectConfig, facts: dict[str, Any], *, progress: Progress
) -> dict[str, int]:
    """Write all tables of a run, its report and run.json; return its counts.

    `facts` are those of `run_facts`; they are also kept in the database, for `apply`.
    """
    out, films, begun = run.out, run.count("status != ''"), monotonic()
    landmarks = run.landmarks
    counts: Counter[str] = Counter()
    summary = Summary(min(max(int(SHOWN_SHARE * films), FEWEST_SHOWN), MOST_SHOWN))
    with ExitStack() as stack:
        writers = [summary.add, *_open_writers(run, config, landmarks, stack)]
        advance = stack.enter_context(progress("writing tables", films))
        for film in run.records():
            film = film.magnified(config.magnification)
            _count(film, counts)
            for add in writers:
                add(film)
            advance("")
    if run.newest_decision() is None:
        (out / ORIGINAL).unlink(missing_ok=True)
    write_decisions(run.decisions(), out / REVIEW)
    _warn(run, counts)
    names = ("films", "knees", NO_KNEE, FAILED, "review", *DECISIONS)
    counted = {name: counts[name] for name in names}
    timings = {**facts.get("timings_s", {}), "tables": monotonic() - begun}
    facts = facts | {
        "counts": counted,
        "timings_s": {part: round(seconds, 3) for part, seconds in timings.items()},
    }
    write_report(out / REPORT, facts, summary, run.thumbnail, run.noun)
    run.store(run=facts)
    write_run(facts, out / RUN)
    return counted


def _open_writers(
    run: Run, config: DetectConfig, landmarks: Mapping[str, Sequence[str]], stack: ExitStack
) -> list[Callable[[FilmRecord], None]]:
    """Return functions that add a film to each table; the tables appear when the stack ends."""
    columns = detection_columns(landmarks)
    tables: list[tuple[str, Columns, Rows]] = [
        (DETECTIONS, columns, lambda film: detection_rows(film, film.knees)),
        (FAILURES, FAILURE_COLUMNS, _failure_rows),
    ]
    if run.newest_decision() is not None:
        tables.append((ORIGINAL, columns, lambda film: detection_rows(film, film.found)))
    if config.crops:
        tables.append((CROP_TABLE, CROP_COLUMNS, partial(crop_rows, size=config.crop_size())))
    opened = [
        (stack.enter_context(open_table(run.out / name, titles)), rows)
        for name, titles, rows in tables
    ]

    def add_rows(film: FilmRecord) -> None:
        for add_row, rows in opened:
            for row in rows(film):
                add_row(row)

    writers: list[Callable[[FilmRecord], None]] = [add_rows]
    if config.measure:
        writers.append(stack.enter_context(open_measurements(run.out, config)))
    if "coco" in config.export:
        writers.append(stack.enter_context(open_coco(run.out / COCO, landmarks)))
    return writers


def _failure_rows(film: FilmRecord) -> Iterator[Mapping[str, Cell]]:
    if film.has_failed:
        yield {"film": film.path, "status": film.status, "reason": film.reason}


def _count(film: FilmRecord, counts: Counter[str]) -> None:
    status = FAILED if film.status == UNREADABLE else film.status
    counts[status if film.has_failed else "films"] += 1
    counts["knees"] += len(film.kept)
    counts["review"] += sum(knee.needs_review for knee in film.knees)
    counts.update(knee.decision for knee in film.knees)
    if film.kept and DICOM in film.made:
        counts["exported" if film.made[DICOM][FILES] else "not exported"] += 1


def _warn(run: Run, counts: Counter[str]) -> None:
    """Say what a user may miss in the files that were written."""
    if others := counts["not exported"]:
        logger.warning(
            "Exported %d of %d films; the other %d are not DICOM.",
            counts["exported"],
            counts["exported"] + others,
            others,
        )
    if outdated := run.count_outdated_decisions():
        logger.warning(
            "%d of the decisions in %s %s about areas that have moved or are gone, and %s ignored. "
            "Review those again.",
            outdated,
            run.path,
            "is" if outdated == 1 else "are",
            "is" if outdated == 1 else "are",
        )
