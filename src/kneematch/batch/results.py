"""What a run writes when all films are done, in the order of the list, straight from the ledger."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from kneematch.batch.artifacts import distinct_names, draw_films
from kneematch.batch.config import Settings
from kneematch.batch.journal import Ledger
from kneematch.batch.products import CROPS, crop_size, save_picture
from kneematch.detection.detection import Detection
from kneematch.export.run_file import Counts, Run, write_run
from kneematch.export.tables import (
    TABLES,
    crop_name,
    write_crops,
    write_failures,
    write_tables,
)

FAILURES: Final = "failures.csv"
COCO: Final = "coco.json"
CROP_TABLE: Final = "crops.csv"
RUN: Final = "run.json"
REPORT: Final = "report.html"
WRITTEN: Final = (*TABLES, FAILURES, COCO, CROP_TABLE, RUN, REPORT)

MOST_REASONS: Final = 10  # that are kept for the terminal; failures.csv has all
SHEET_COLUMNS, SHEET_ROWS = 4, 12  # at most
# Films in the report: a twentieth, so that a short run does not spend its time on drawing them.
SHARE_DRAWN, FEWEST_DRAWN, MOST_DRAWN = 0.05, 10, 48


@dataclass(slots=True)
class Tally:
    """Counted while the tables are written."""

    films: int = 0
    knees: int = 0
    failed: int = 0
    review: int = 0
    reasons: tuple[str, ...] = ()  # of the first failures

    def counts(self) -> Counts:
        """For the report."""
        return Counts(self.films, self.knees, self.failed, self.review)


def write_all_tables(settings: Settings, ledger: Ledger, landmarks: Sequence[str]) -> Tally:
    """detections.*, failures.csv and, where asked for, coco.json."""
    tally = Tally()

    def rows() -> Iterator[tuple[str, Detection]]:
        for film, knee in _rows(ledger):
            tally.knees += 1
            tally.review += knee.needs_review
            yield film, knee

    def failures() -> Iterator[tuple[str, str]]:
        for film, reason in _failures(ledger):
            tally.failed += 1
            tally.reasons = (*tally.reasons, reason)[:MOST_REASONS]
            yield film, reason

    write_tables(rows(), settings.out, landmarks=landmarks)
    write_failures(failures(), settings.out / FAILURES)
    tally.films = ledger.done() - tally.failed
    if "coco" in settings.export:
        from kneematch.export.coco import write_coco

        films = (
            (record.film, record.size, record.detections)
            for record in ledger.records()
            if record.size is not None
        )
        write_coco(films, settings.out / COCO, landmarks=landmarks)
    return tally


def write_crop_table(settings: Settings, films: Sequence[str], ledger: Ledger) -> None:
    """crops.csv, of the crops that could be made."""
    names, folder = distinct_names(films), settings.out / CROPS

    def rows() -> Iterator[tuple[str, Detection, str]]:
        for record in ledger.records():
            for knee in record.detections:
                file = crop_name(names[record.index], knee.side)
                if (folder / file).exists():
                    yield record.film, knee, file

    write_crops(rows(), settings.out / CROP_TABLE, crop_size(settings))


def draw_sheet(ledger: Ledger, path: Path, *, workers: int) -> None:
    """The first films with detections side by side; none is no sheet."""
    from kneematch.export.contact_sheet import CELL_PX, contact_sheet

    good = ((record.film, record.detections) for record in ledger.records() if record.detections)
    first = list(islice(good, SHEET_COLUMNS * SHEET_ROWS))
    drawn = draw_films(first, longest_px=CELL_PX, workers=workers)
    pictures = [picture for picture in drawn if picture is not None]
    if pictures:
        # As many as leave the fewest gaps in the last row.
        columns = min(range(SHEET_COLUMNS, 1, -1), key=lambda c: -len(pictures) % c)
        save_picture(contact_sheet(pictures, columns), path)


def write_run_and_report(out: Path, ledger: Ledger, workers: int, ended: Callable[[], Run]) -> None:
    """report.html, its films drawn first, and run.json."""
    from kneematch.export.report import PICTURE_PX, summarise, write_report

    most = min(max(int(SHARE_DRAWN * ledger.count), FEWEST_DRAWN), MOST_DRAWN)
    summary = summarise(_rows(ledger), _failures(ledger), most_films=most)
    films = [(worst.film, worst.knees) for worst in summary.worst]
    pictures = draw_films(films, longest_px=PICTURE_PX, workers=workers)
    run = ended()
    write_report(out / REPORT, run, summary, pictures)
    write_run(run, out / RUN)


def _rows(ledger: Ledger) -> Iterator[tuple[str, Detection]]:
    for record in ledger.records():
        yield from ((record.film, knee) for knee in record.detections)


def _failures(ledger: Ledger) -> Iterator[tuple[str, str]]:
    for record in ledger.records():
        if record.failure is not None:
            yield record.film, record.failure
