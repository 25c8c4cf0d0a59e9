"""The tables of a run as CSV: detections, one row per knee, and crops; and lists in JSON files.

Rows are written as they come, so a table may be larger than the memory.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Final, TextIO

from kneematch.films.csv_text import Cell, write_csv
from kneematch.films.files import CROPS, atomic_write
from kneematch.knee.crop import CropSize, assumed_spacing, place
from kneematch.knee.detection import DEGREE, PIXEL, Detection
from kneematch.run.artifacts import crop_names
from kneematch.run.film_record import FILES, OK, FilmRecord

Columns = dict[str, int | None]  # names and decimals, None for text
AddRow = Callable[[Mapping[str, Cell]], None]

ENERGY, SPACING, MATRIX = 6, 6, 6  # decimals of an energy, a pixel spacing and a crop's matrix
CORNER_COLUMNS: Final = [f"{axis}{corner}_px" for corner in range(4) for axis in "xy"]
COLUMNS: Final[Columns] = {
    "film": None,
    "image_side": None,
    "laterality": None,
    "laterality_source": None,
    "status": None,
    "energy": ENERGY,
    "loss": ENERGY,
    "polarity": None,
    "method": None,
    "centre_x_px": PIXEL,
    "centre_y_px": PIXEL,
    "width_px": PIXEL,
    "height_px": PIXEL,
    "rotation_deg": DEGREE,
    **dict.fromkeys(CORNER_COLUMNS, PIXEL),
    "mm_per_px": SPACING,
    "expected_error_px": PIXEL,
    "review": None,
    "reason": None,
    "decision": None,
}
FIELDS: Final = (  # columns that hold a property of the same name
    *("laterality", "laterality_source", "energy", "loss", "polarity", "method"),
    *("width_px", "height_px", "rotation_deg", "mm_per_px", "expected_error_px", "decision"),
    *("template", "match_back"),
)
# film_x = xx * crop_x + xy * crop_y + x0 and film_y = yx * crop_x + yy * crop_y + y0. Both count
# from the top left corner of their image, so the centre of the first pixel is (0.5, 0.5).
CROP_COLUMNS: Final[Columns] = {
    **dict.fromkeys(("film", "image_side", "laterality", "file")),
    "mm_per_px": SPACING,
    "polarity": None,
    **dict.fromkeys(("xx", "xy", "x0", "yx", "yy", "y0"), MATRIX),
}
ORIGINAL: Final = "detections.original.csv"  # as found, where detections.csv has reviewed rows
GONE: Final = "gone"  # status of a row whose film is no longer there; others are OK


def detection_columns(landmarks: Mapping[str, Sequence[str]]) -> Columns:
    """Return the columns of the table of detections, those of landmarks last.

    `landmarks` are by template, "" for knees; other parts of the body have more columns.
    """
    parts = any(landmarks)
    axes = ("x", "y", "sd") if parts else ("x", "y")
    columns = COLUMNS | ({"template": None, "match_back": ENERGY} if parts else {})
    names = dict.fromkeys(chain(*landmarks.values()))
    return columns | {f"{name}_{axis}_px": PIXEL for name in names for axis in axes}


def detection_rows(film: FilmRecord, knees: Iterable[Detection]) -> Iterator[dict[str, Cell]]:
    """Yield the values of knees of a film by column; those of landmarks they lack are missing."""
    for knee in knees:
        points = {**knee.landmarks, "centre": knee.centre}
        yield {  # a column of our own counts before a landmark of the same name
            **{f"{name}_x_px": x for name, (x, _) in points.items()},
            **{f"{name}_y_px": y for name, (_, y) in points.items()},
            **{f"{name}_sd_px": sd for name, sd in knee.landmark_sd_px.items()},
            "film": film.path,
            "image_side": knee.side,
            "status": GONE if film.gone else OK,
            "review": review_text(knee),
            "reason": "; ".join(knee.reasons),
            **{name: getattr(knee, name) for name in FIELDS},
            **dict(zip(CORNER_COLUMNS, knee.corners.flatten().tolist(), strict=True)),
        }


def review_text(knee: Detection) -> str:
    """Return the column `review`: "yes", or empty."""
    return "yes" if knee.needs_review else ""


def crop_rows(film: FilmRecord, size: CropSize) -> Iterator[dict[str, Cell]]:
    """Yield the rows of a film in crops.csv, which map its crops' pixels to those of the film."""
    if not (film.kept and film.made.get(CROPS, {}).get(FILES)):
        return
    assumed, names = assumed_spacing(film.kept), crop_names(film)
    for knee in film.kept:
        crop = place(knee, size, assumed)
        mm_per_px = None if knee.mm_per_px is None else knee.mm_per_px * crop.step_px
        about = film.path, knee.side, knee.laterality, names[knee.side]
        cells = *about, mm_per_px, knee.polarity, *crop.pixel_map.flatten().tolist()
        yield dict(zip(CROP_COLUMNS, cells, strict=True))


@contextmanager
def open_table(path: Path, columns: Columns) -> Iterator[AddRow]:
    """Yield a function that adds a row to a CSV file, which appears when the context ends.

    `columns` are names and decimals, None for text. Numbers are rounded, missing ones left empty.
    """
    with write_csv(path, columns) as add:
        yield lambda values: add(_cell(values.get(name), columns[name]) for name in columns)


def _cell(value: Cell, decimals: int | None) -> str:
    """Return the text of a cell; NaN is missing, and a negative zero becomes positive."""
    if decimals is None or value is None:
        return str(value or "")
    number = round(float(value), decimals) + 0.0
    return "" if math.isnan(number) else f"{number:.{decimals}f}"


@contextmanager
def open_json(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Yield a text file for JSON, which appears at a path when the context ends."""
    with atomic_write(path) as temp, temp.open("w", encoding="ascii", newline="\n") as file:
        yield file


def json_list(file: TextIO) -> Callable[[object], None]:
    """Return a function that writes the next item of a JSON list, each on a line of its own."""
    breaks = chain(["\n"], repeat(",\n"))

    def add(item: object) -> None:
        file.write(next(breaks) + json.dumps(item))

    return add
