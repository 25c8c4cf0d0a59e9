"""Write the results of a run, in the order of the list of films, straight from the journal."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from kneematch.films.csv_text import write_csv
from kneematch.films.run_folder import CROPS, DICOM, FAILURES, LANDMARKS, REPORT, RUN
from kneematch.knee.crop import assumed_spacing
from kneematch.knee.detection import Detection
from kneematch.progress import Progress
from kneematch.run.artifacts import (
    FILES,
    count_other_files,
    crop_size,
    draw_films,
    requested_artifacts,
    update_artifacts,
)
from kneematch.run.config import DetectConfig
from kneematch.run.correction import is_current, needs_knee, outdated_warning
from kneematch.run.decisions import DECISIONS, FILE_NAME, REJECTED, read_decisions
from kneematch.run.journal import Journal
from kneematch.run.outputs.annotations import LANDMARK_EXPORTS, write_coco, write_landmarks
from kneematch.run.outputs.measurements import MEASUREMENTS, write_measurements
from kneematch.run.outputs.run_file import Counts, Run, write_run
from kneematch.run.outputs.tables import (
    ORIGINAL,
    TABLES,
    crop_name,
    write_crops,
    write_failures,
    write_tables,
)
from kneematch.run.row import FAILED, NO_KNEE, Row
from kneematch.training.drawn_knees import OUTLINES

logger = logging.getLogger("kneematch")

COCO: Final = "coco.json"
CROP_TABLE: Final = "crops.csv"
ARTIFACTS: Final = "artifacts.csv"
GONE: Final = "gone"  # status of knees whose film is no longer there
RESULT_FILES: Final = (
    *TABLES,
    ORIGINAL,
    *MEASUREMENTS,
    OUTLINES,
    FAILURES,
    COCO,
    CROP_TABLE,
    ARTIFACTS,
    RUN,
    REPORT,
)

SHEET_COLUMNS, SHEET_ROWS = 4, 12  # at most
# Films drawn in the report: a twentieth, so that a short run does not spend its time on pictures.
DRAWN_SHARE, FEWEST_DRAWN, MOST_DRAWN = 0.05, 10, 48


def measure_corrections(
    config: DetectConfig, journal: Journal, *, workers: int, progress: Progress
) -> list[str]:
    """Measure the knees that a reviewer corrected or added, in a run that measures.

    Returns:
        Why some could not be measured.
    """
    if not config.measure or journal.revise is None:
        return []
    from kneematch.run.measure_rows import measure_reviewed  # imports SciPy, which is slow

    return measure_reviewed(journal, config.outlines, workers=workers, progress=progress)


def write_results(
    config: DetectConfig,
    out: Path,
    journal: Journal,
    landmarks: Sequence[str],
    *,
    progress: Progress,
) -> Counts:
    """Write detections.*, failures.csv and, where asked for, measurements and exports."""
    counts: Counter[str] = Counter()

    def rows() -> Iterator[Row]:
        with progress("writing tables", journal.done()) as advance:
            for row in journal.rows():
                yield row
                advance("")

    def knees() -> Iterator[tuple[str, Detection]]:
        for film, knee in _detections(rows(), journal.gone):
            counts["knees"] += knee.decision != REJECTED
            counts["review"] += knee.needs_review
            counts[knee.decision] += 1
            yield film, knee

    def failed() -> Iterator[tuple[str, str, str]]:
        for row in journal.failures():
            counts[row.status] += 1
            yield row.film, row.status, row.failure or ""

    if journal.revise is not None:
        _write_as_found(out, journal, landmarks)
    write_tables(knees(), out, landmarks=landmarks)
    if journal.revise is None:
        (out / ORIGINAL).unlink(missing_ok=True)
    write_failures(failed(), out / FAILURES)
    if config.measure:
        write_measurements(partial(_knees, journal), out, config.magnification)
    if "coco" in config.export:
        sized = (row for row in journal.rows() if row.size is not None)
        films = ((row.film, row.size, row.knees) for row in sized)
        write_coco(films, out / COCO, landmarks=landmarks)  # type: ignore[arg-type]
    if kinds := set(LANDMARK_EXPORTS) & set(config.export):
        named = ((journal.names[row.index], row.knees) for row in journal.rows())
        write_landmarks(named, out / LANDMARKS, kinds)
        if not landmarks:
            logger.warning(
                "--export %s: files without points, since the template has no landmarks; expected "
                "some; add them to the template, or use --export coco",
                " and ".join(sorted(kinds)),
            )
    return Counts(
        films=journal.done() - counts[NO_KNEE] - counts[FAILED],
        knees=counts["knees"],
        no_knee=counts[NO_KNEE],
        failed=counts[FAILED],
        review=counts["review"],
        **{name: counts[name] for name in DECISIONS},
    )


def _write_as_found(out: Path, journal: Journal, landmarks: Sequence[str]) -> None:
    """Write the rows as they were found; warn of decisions that do not apply to them."""
    decisions = dict(read_decisions(out / FILE_NAME))
    moved = 0

    def found() -> Iterator[tuple[str, Detection]]:
        nonlocal moved
        for film, knee in _detections(journal.rows_as_found(), journal.gone):
            if decision := decisions.pop((film, knee.side), None):
                moved += not is_current(decision, knee)
            yield film, knee

    write_tables(found(), out, landmarks=landmarks, names=(ORIGINAL,))
    outdated = moved + sum(map(needs_knee, decisions.values()))
    if warning := outdated_warning(out / FILE_NAME, outdated):
        logger.warning("%s", warning)


def _warn_of_other_files(others: int, films: int) -> None:
    if others:
        logger.warning(
            "--export dicom: %d of %d films with knees are not DICOM, so that there is nothing to "
            "export; expected films with a patient and a study to add to; use --export coco",
            others,
            films,
        )


def write_artifacts(
    config: DetectConfig, out: Path, journal: Journal, *, workers: int, progress: Progress
) -> list[str]:
    """Bring overlays, crops, DICOM objects, their tables and the contact sheet up to date.

    Returns:
        Why some could not be made.
    """
    artifacts = requested_artifacts(config, out)
    reasons = update_artifacts(journal, artifacts, workers=workers, progress=progress)
    if "dicom" in config.export:
        _warn_of_other_files(*count_other_files(journal, out / DICOM))
    if config.crops:
        write_crop_table(config, out, journal)
    write_artifact_table(out, journal)
    if config.sheet is not None:
        draw_sheet(journal, config.sheet, workers=workers)
    return reasons


def write_artifact_table(out: Path, journal: Journal) -> None:
    """Write artifacts.csv, if there are any: the film and the side of every file made of a film."""
    kinds = {kind: files for kind, files in FILES.items() if (out / kind).exists()}
    if not kinds:
        return
    with write_csv(out / ARTIFACTS, ("file", "film", "side")) as add:
        for row in journal.rows():
            for kind, files in kinds.items() if row.knees else ():
                for file, side in files(journal.names[row.index]).items():
                    if (out / kind / file).exists():
                        add((f"{kind}/{file}", row.film, side))


def write_crop_table(config: DetectConfig, out: Path, journal: Journal) -> None:
    """Write crops.csv for the crops that could be made."""

    def rows() -> Iterator[tuple[str, Detection, str, float]]:
        for row in journal.rows():
            if journal.made(CROPS, row.index):
                name, assumed = journal.names[row.index], assumed_spacing(row.knees)
                for knee in row.knees:
                    yield row.film, knee, crop_name(name, knee.side), assumed

    write_crops(rows(), out / CROP_TABLE, crop_size(config))


def draw_sheet(journal: Journal, path: Path, *, workers: int) -> None:
    """Draw the first films with detections side by side, if there are any."""
    from kneematch.films.write import save_picture
    from kneematch.run.outputs.contact_sheet import CELL_PX, contact_sheet

    good = ((row.film, row.knees) for row in journal.rows() if row.knees)
    first = list(islice(good, SHEET_COLUMNS * SHEET_ROWS))
    drawn = draw_films(first, root=journal.root, longest_px=CELL_PX, reasons=True, workers=workers)
    pictures = [drawn[film] for film, _ in first if film in drawn]
    if pictures:
        # As many columns as leave the fewest gaps in the last row.
        columns = min(range(SHEET_COLUMNS, 1, -1), key=lambda c: -len(pictures) % c)
        save_picture(contact_sheet(pictures, columns), path)


def write_run_and_report(
    out: Path, journal: Journal, run: Callable[[], Run], *, workers: int
) -> None:
    """Write report.html and run.json; `run` is called when the report's films are drawn."""
    from kneematch.run.outputs.report import PICTURE_PX, summarise, write_report

    most = min(max(int(DRAWN_SHARE * journal.count), FEWEST_DRAWN), MOST_DRAWN)
    failed = ((row.film, row.failure or "") for row in journal.failures())
    summary = summarise(_knees(journal), failed, most_films=most)
    drawn = draw_films(
        summary.worst, root=journal.root, longest_px=PICTURE_PX, reasons=False, workers=workers
    )
    ended = run()
    pictures = [drawn.get(film) for film, _ in summary.worst]
    write_report(out / REPORT, ended, summary, pictures)
    write_run(ended, out / RUN)


def _knees(journal: Journal) -> Iterator[tuple[str, Detection]]:
    """Yield the knees that were not rejected."""
    return ((row.film, knee) for row in journal.rows() for knee in row.knees)


def _detections(rows: Iterable[Row], gone: Collection[int]) -> Iterator[tuple[str, Detection]]:
    """Yield all detections; those on films that are no longer there have the status GONE."""
    for row in rows:
        for knee in row.detections:
            yield row.film, replace(knee, status=GONE) if row.index in gone else knee


def remove_results(out: Path, journal: Journal) -> None:
    """Remove the files of a run, and no others, from its folder."""
    for name in RESULT_FILES:
        (out / name).unlink(missing_ok=True)
    remove_artifacts(out, journal.names)


def remove_artifacts(out: Path, names: Iterable[str]) -> None:
    """Remove all files that were made of films, by the films' names among the artifacts."""
    for name in names:
        for folder, files in FILES.items():
            for file in files(name):
                (out / folder / file).unlink(missing_ok=True)
