"""Write the tables, exports and report of a run, in one pass over its database."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Any, Final

from kneematch.films.csv_text import write_csv
from kneematch.films.run_folder import CROPS, DICOM, FAILURES, REPORT, RUN
from kneematch.knee.detection import DECISIONS
from kneematch.progress import Progress
from kneematch.run.artifacts import LANDMARK_SUFFIXES, shown_side
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
    GONE,
    OK,
    ORIGINAL,
    TABLES,
    crop_rows,
    detection_columns,
    detection_row,
    open_tables,
)

logger = logging.getLogger("kneematch")

COCO: Final = "coco.json"
CROP_TABLE: Final = "crops.csv"
ARTIFACTS: Final = "artifacts.csv"
RESULT_FILES: Final = (
    *TABLES,
    ORIGINAL,
    *MEASUREMENTS,
    *(KNEES, OUTLINES, FAILURES, COCO, CROP_TABLE, ARTIFACTS, RUN, REPORT, REVIEW),
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
    landmarks = run.setting("landmarks")
    counts: Counter[str] = Counter()
    summary = Summary(min(max(int(SHOWN_SHARE * films), FEWEST_SHOWN), MOST_SHOWN))
    with ExitStack() as stack:
        writers = [summary.add, *_open_writers(run, config, landmarks, stack)]
        advance = stack.enter_context(progress("writing tables", films))
        for film in run.records():
            _count(film, counts)
            for add in writers:
                add(film)
            advance("")
    if run.newest_decision() is None:
        (out / ORIGINAL).unlink(missing_ok=True)
    write_decisions(run.decisions(), out / REVIEW)
    _warn(run, config, landmarks, counts)
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
    out, columns = run.out, detection_columns(landmarks)
    add_row = stack.enter_context(open_tables([out / name for name in TABLES], columns))
    add_failure = stack.enter_context(write_csv(out / FAILURES, ("film", "status", "reason")))

    def add_detections(film: FilmRecord) -> None:
        for knee in film.knees:
            add_row(detection_row(film.path, knee, GONE if film.gone else OK))
        if film.has_failed:
            add_failure((film.path, film.status, film.reason))

    writers: list[Callable[[FilmRecord], None]] = [add_detections]
    if run.newest_decision() is not None:
        add_found = stack.enter_context(open_tables([out / ORIGINAL], columns))

        def add_original(film: FilmRecord) -> None:
            for knee in film.found:
                add_found(detection_row(film.path, knee, GONE if film.gone else OK))

        writers.append(add_original)
    if config.measure:
        add_knee = stack.enter_context(open_measurements(out, config.magnification))

        def add_measurements(film: FilmRecord) -> None:
            for knee in film.kept:
                if not knee.template:
                    add_knee(film.path, knee)

        writers.append(add_measurements)
    if "coco" in config.export:
        add_image = stack.enter_context(open_coco(out / COCO, landmarks))

        def add_coco(film: FilmRecord) -> None:
            if film.size is not None and not film.has_failed:
                add_image(film.path, film.size, film.kept)

        writers.append(add_coco)
    if config.crops:
        size = config.crop_size()
        add_crop = stack.enter_context(open_tables([out / CROP_TABLE], CROP_COLUMNS))

        def add_crops(film: FilmRecord) -> None:
            for row in crop_rows(film, size) if film.made.get(CROPS, {}).get(FILES) else ():
                add_crop(row)

        writers.append(add_crops)
    if run.count("made != '{}'"):
        add_file = stack.enter_context(write_csv(out / ARTIFACTS, ("file", "film", "image_side")))

        def add_files(film: FilmRecord) -> None:
            for kind, made in film.made.items():
                for file in made[FILES]:
                    add_file((f"{kind}/{file}", film.path, shown_side(file, film)))

        writers.append(add_files)
    return writers


def _count(film: FilmRecord, counts: Counter[str]) -> None:
    status = FAILED if film.status == UNREADABLE else film.status
    counts[status if film.has_failed else "films"] += 1
    counts["knees"] += len(film.kept)
    counts["review"] += sum(knee.needs_review for knee in film.knees)
    counts.update(knee.decision for knee in film.knees)
    if film.kept and DICOM in film.made:
        counts["exported" if film.made[DICOM][FILES] else "not exported"] += 1


def _warn(
    run: Run, config: DetectConfig, landmarks: Mapping[str, Sequence[str]], counts: Counter[str]
) -> None:
    """Say what a user may miss in the files that were written."""
    if others := counts["not exported"]:
        logger.warning(
            "Exported %d of %d films; the other %d are not DICOM.",
            counts["exported"],
            counts["exported"] + others,
            others,
        )
    if not any(landmarks.values()) and set(LANDMARK_SUFFIXES) & set(config.export):
        logger.warning("The landmark files have no points, since the template has no landmarks.")
    if outdated := run.count_outdated_decisions():
        logger.warning(
            "%d of the decisions in %s %s about areas that have moved or are gone, and %s ignored. "
            "Review those again.",
            outdated,
            run.path,
            "is" if outdated == 1 else "are",
            "is" if outdated == 1 else "are",
        )
