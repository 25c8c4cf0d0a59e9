"""Write the results of a run, in the order of the list of films, straight from the journal."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from kneematch.batch.artifacts import crop_size, distinct_names, draw_films
from kneematch.batch.config import DetectConfig
from kneematch.batch.journal import FAILED, NO_KNEE, Journal, Row
from kneematch.detection.crop import assumed_spacing
from kneematch.detection.detection import Detection
from kneematch.export.landmarks import EXPORTS as LANDMARKS
from kneematch.export.landmarks import write_landmarks
from kneematch.export.measurements import MEASUREMENTS, write_measurements
from kneematch.export.run_file import Counts, Run, write_run
from kneematch.export.tables import (
    ORIGINAL,
    TABLES,
    crop_name,
    write_crops,
    write_failures,
    write_tables,
)
from kneematch.io.run_folder import CROPS
from kneematch.io.run_folder import LANDMARKS as LANDMARK_FOLDER
from kneematch.measures.drawn_knees import OUTLINES
from kneematch.review.log import REJECTED

FAILURES: Final = "failures.csv"
COCO: Final = "coco.json"
CROP_TABLE: Final = "crops.csv"
RUN: Final = "run.json"
REPORT: Final = "report.html"
RESULT_FILES: Final = (
    *TABLES,
    ORIGINAL,
    *MEASUREMENTS,
    OUTLINES,
    FAILURES,
    COCO,
    CROP_TABLE,
    RUN,
    REPORT,
)

SHEET_COLUMNS, SHEET_ROWS = 4, 12  # at most
# Films drawn in the report: a twentieth, so that a short run does not spend its time on pictures.
DRAWN_SHARE, FEWEST_DRAWN, MOST_DRAWN = 0.05, 10, 48


def write_results(
    config: DetectConfig, out: Path, journal: Journal, landmarks: Sequence[str]
) -> Counts:
    """Write detections.*, failures.csv and, where asked for, measurements and exports."""
    counts: Counter[str] = Counter()

    def knees() -> Iterator[tuple[str, Detection]]:
        for film, knee in _detections(journal.rows()):
            counts["knees"] += knee.decision != REJECTED
            counts["review"] += knee.needs_review
            yield film, knee

    def failed() -> Iterator[tuple[str, str, str]]:
        for row in failures(journal):
            counts[row.status] += 1
            yield row.film, row.status, row.failure or ""

    if journal.revise is not None:
        found = _detections(journal.rows_as_found())
        write_tables(found, out, landmarks=landmarks, names=(ORIGINAL,))
    write_tables(knees(), out, landmarks=landmarks)
    if journal.revise is None:
        (out / ORIGINAL).unlink(missing_ok=True)
    write_failures(failed(), out / FAILURES)
    if config.measure:
        write_measurements(partial(_knees, journal), out, config.magnification)
    if "coco" in config.export:
        from kneematch.export.coco import write_coco

        rows = (row for row in journal.rows() if row.size is not None)
        films = ((row.film, row.size, row.knees) for row in rows)
        write_coco(films, out / COCO, landmarks=landmarks)  # type: ignore[arg-type]
    if kinds := set(LANDMARKS) & set(config.export):
        names = distinct_names([row.film for row in journal.rows()])
        named = zip(names, journal.rows(), strict=True)
        write_landmarks(
            ((name, knee) for name, row in named for knee in row.detections),
            out / LANDMARK_FOLDER,
            kinds,
        )
    return Counts(
        films=journal.done() - counts[NO_KNEE] - counts[FAILED],
        knees=counts["knees"],
        no_knee=counts[NO_KNEE],
        failed=counts[FAILED],
        review=counts["review"],
    )


def write_crop_table(
    config: DetectConfig, out: Path, films: Sequence[str], journal: Journal
) -> None:
    """Write crops.csv for the crops that could be made."""
    names = distinct_names(films)

    def rows() -> Iterator[tuple[str, Detection, str, float]]:
        for row in journal.rows():
            for knee in row.knees:
                file = crop_name(names[row.index], knee.side)
                if (out / CROPS / file).exists():
                    yield row.film, knee, file, assumed_spacing(row.knees)

    write_crops(rows(), out / CROP_TABLE, crop_size(config))


def draw_sheet(journal: Journal, path: Path, *, workers: int) -> None:
    """Draw the first films with detections side by side, if there are any."""
    from kneematch.export.contact_sheet import CELL_PX, contact_sheet
    from kneematch.io.write import save_picture

    good = ((row.film, row.knees) for row in journal.rows() if row.knees)
    first = list(islice(good, SHEET_COLUMNS * SHEET_ROWS))
    drawn = draw_films(first, longest_px=CELL_PX, reasons=True, workers=workers)
    pictures = [drawn[film] for film, _ in first if film in drawn]
    if pictures:
        # As many columns as leave the fewest gaps in the last row.
        columns = min(range(SHEET_COLUMNS, 1, -1), key=lambda c: -len(pictures) % c)
        save_picture(contact_sheet(pictures, columns), path)


def write_run_and_report(
    out: Path, journal: Journal, run: Callable[[], Run], *, workers: int
) -> None:
    """Write report.html and run.json; `run` is called when the report's films are drawn."""
    from kneematch.export.report import PICTURE_PX, summarise, write_report

    most = min(max(int(DRAWN_SHARE * journal.count), FEWEST_DRAWN), MOST_DRAWN)
    failed = ((row.film, row.failure or "") for row in failures(journal))
    summary = summarise(_knees(journal), failed, most_films=most)
    drawn = draw_films(summary.worst, longest_px=PICTURE_PX, reasons=False, workers=workers)
    ended = run()
    pictures = [drawn.get(film) for film, _ in summary.worst]
    write_report(out / REPORT, ended, summary, pictures)
    write_run(ended, out / RUN)


def failures(journal: Journal) -> Iterator[Row]:
    """Yield the rows of films without detections: without a knee, or that could not be used."""
    return (row for row in journal.rows() if row.failure is not None)


def _knees(journal: Journal) -> Iterator[tuple[str, Detection]]:
    """Yield the knees that were not rejected."""
    return ((row.film, knee) for row in journal.rows() for knee in row.knees)


def _detections(rows: Iterable[Row]) -> Iterator[tuple[str, Detection]]:
    for row in rows:
        yield from ((row.film, knee) for knee in row.detections)
