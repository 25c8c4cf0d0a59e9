"""The tables of a run: detections as CSV, Parquet and JSON, one row per knee; failures and crops.

Rows are written as they come, so a table may be larger than the memory.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from io import BytesIO
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from kneematch.films.csv_text import Cell, write_csv
from kneematch.films.files import atomic_write
from kneematch.films.run_folder import DETECTIONS
from kneematch.knee.detection import DEGREE, PIXEL, Detection

if TYPE_CHECKING:
    from kneematch.knee.crop import CropSize

Columns = dict[str, int | None]  # names and decimals, None for text
AddValues = Callable[[Mapping[str, Cell]], None]

ENERGY, SPACING, MATRIX = 6, 6, 6  # decimals of an energy, a pixel spacing and a crop's matrix
CORNER_COLUMNS: Final = [f"{axis}{corner}_px" for corner in range(4) for axis in "xy"]
COLUMNS: Final[Columns] = {
    "film": None,
    "side": None,
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
# Since version 0.1, whose tables are still read.
ADDED_COLUMNS: Final = ("laterality_source", "expected_error_px", "decision")
FIELDS: Final = tuple(item.name for item in fields(Detection) if item.name in COLUMNS)
# film_x = xx * crop_x + xy * crop_y + x0 and film_y = yx * crop_x + yy * crop_y + y0. Both count
# from the top left corner of their image, so the centre of the first pixel is (0.5, 0.5).
CROP_COLUMNS: Final[Columns] = {
    **dict.fromkeys(("film", "side", "laterality", "file")),
    "mm_per_px": SPACING,
    "polarity": None,
    **dict.fromkeys(("xx", "xy", "x0", "yx", "yy", "y0"), MATRIX),
}
TABLES: Final = (DETECTIONS, "detections.parquet", "detections.json")
ORIGINAL: Final = "detections.original.csv"  # as found, where the others have reviewed rows
PARQUET_GROUP_ROWS: Final = 10_000  # rows held in memory for one row group


def write_tables(
    rows: Iterable[tuple[str, Detection]],
    folder: str | os.PathLike[str],
    *,
    landmarks: Sequence[str] = (),
    names: Sequence[str] = TABLES,
) -> None:
    """Write detections.csv, .parquet and .json in one pass.

    Args:
        rows: the film's name and the detection of each knee.
        folder: an existing folder for the files.
        landmarks: names of the landmarks, which get columns after the fixed ones.
        names: of the files, which end with .csv, .parquet or .json.
    """
    columns = COLUMNS | {f"{name}_{axis}_px": PIXEL for name in landmarks for axis in "xy"}
    values = (detection_values(film, found) for film, found in rows)
    write_rows(values, [Path(folder) / name for name in names], columns)


def write_rows(rows: Iterable[Mapping[str, Cell]], paths: Sequence[Path], columns: Columns) -> None:
    """Write rows to several tables in one pass; each one's suffix says its format.

    Args:
        rows: values by column; numbers are rounded, and missing ones are left empty.
        paths: files that end in .csv, .parquet or .json.
        columns: names and decimals, None for text.
    """
    kinds = {".csv": _csv, ".parquet": _parquet, ".json": _json}
    with ExitStack() as stack:
        tables = [stack.enter_context(kinds[path.suffix](path, columns)) for path in paths]
        for values in rows:
            row = _rounded(values, columns)
            for add in tables:
                add(row)


def write_failures(rows: Iterable[tuple[str, str, str]], path: str | os.PathLike[str]) -> None:
    """Write failures.csv: the films without detections, their status and the reasons.

    The status is "no_knee" for a film without a frontal knee, "failed" for one that could not be
    used.
    """
    with write_csv(path, ("film", "status", "reason")) as add:
        for row in rows:
            add(row)


def write_crops(
    rows: Iterable[tuple[str, Detection, str, float]],
    path: str | os.PathLike[str],
    size: "CropSize",
) -> None:
    """Write crops.csv, which maps the pixels of each crop to those of its film.

    Args:
        rows: the film's name, the detection, the crop's file name, and the mm per pixel to assume
            where the film has no spacing.
        path: the table.
        size: the size with which the crops were cut.
    """
    from kneematch.knee.crop import place

    with _csv(Path(path), CROP_COLUMNS) as add:
        for film, found, file, assumed_mm_per_px in rows:
            crop = place(found, size, assumed_mm_per_px)
            mm_per_px = None if found.mm_per_px is None else found.mm_per_px * crop.step_px
            knee = film, found.side, found.laterality, file, mm_per_px, found.polarity
            cells = *knee, *crop.pixel_map.flatten().tolist()
            add(_rounded(dict(zip(CROP_COLUMNS, cells, strict=True)), CROP_COLUMNS))


def detection_values(film: str, found: Detection) -> dict[str, Cell]:
    """Return the values of a knee by column; those of landmarks that it lacks are missing."""
    points = {"centre": found.centre, **found.landmarks}
    return {
        "film": film,
        **{name: getattr(found, name) for name in FIELDS},
        **dict(zip(CORNER_COLUMNS, found.corners.flatten().tolist(), strict=True)),
        **{f"{name}_x_px": x for name, (x, _) in points.items()},
        **{f"{name}_y_px": y for name, (_, y) in points.items()},
    }


def csv_text(cell: Cell, decimals: int | None) -> str:
    """Return a cell as the CSV tables have it."""
    return f"{cell:.{decimals}f}" if isinstance(cell, float) else cell or ""


def landmark_names(columns: Iterable[str]) -> list[str]:
    """Return the names of the landmarks that have columns."""
    names = (name for name in columns if name not in COLUMNS and name.endswith("_x_px"))
    return [name.removesuffix("_x_px") for name in names]


def crop_name(name: str, side: str) -> str:
    """Return the file name of a crop, given the name of its film among the run's artifacts."""
    return f"{name}-{side}.png"


def _rounded(values: Mapping[str, Cell], columns: Columns) -> dict[str, Cell]:
    """Return a row in the order of its columns, with the numbers rounded to their decimals."""
    row = {}
    for name, decimals in columns.items():
        cell = values.get(name)
        if decimals is not None and cell is not None:
            # An unknown number is missing; adding 0.0 makes a negative zero positive.
            cell = None if math.isnan(float(cell)) else round(float(cell), decimals) + 0.0
        row[name] = cell
    return row


def json_list(file: TextIO) -> Callable[[object], None]:
    """Return a function that writes the next item of a JSON list, each on a line of its own."""
    breaks = chain(["\n"], repeat(",\n"))

    def add(item: object) -> None:
        file.write(next(breaks) + json.dumps(item))

    return add


@contextmanager
def _csv(path: Path, columns: Columns) -> Iterator[AddValues]:
    with write_csv(path, columns) as add:
        yield lambda row: add(map(csv_text, row.values(), columns.values()))


@contextmanager
def _json(path: Path, columns: Columns) -> Iterator[AddValues]:
    """Write a list of objects, one per line."""
    with atomic_write(path) as temp, temp.open("w", encoding="ascii", newline="\n") as file:
        file.write("[")
        yield json_list(file)
        file.write("\n]\n" if file.tell() > 1 else "]\n")


@contextmanager
def _parquet(path: Path, columns: Columns) -> Iterator[AddValues]:
    import pyarrow as pa
    from pyarrow import parquet
    from pyarrow.json import ParseOptions, read_json

    types = [(name, pa.string() if d is None else pa.float64()) for name, d in columns.items()]
    schema = pa.schema(types)
    group: list[bytes] = []

    def flush() -> None:
        # By way of JSON, since pa.array would import pandas where it is installed, for 0.3 s.
        table = read_json(BytesIO(b"\n".join(group)), parse_options=ParseOptions(schema))
        writer.write_table(table)
        group.clear()

    def add(row: Mapping[str, Cell]) -> None:
        group.append(json.dumps({name: _utf8(cell) for name, cell in row.items()}).encode("ascii"))
        if len(group) >= PARQUET_GROUP_ROWS:
            flush()

    # An open file, since pyarrow reads some paths as addresses, and refuses names not in UTF-8.
    with (
        atomic_write(path) as temp,
        temp.open("wb") as file,
        parquet.ParquetWriter(file, schema) as writer,
    ):
        yield add
        if group:
            flush()


def _utf8(cell: Cell) -> Cell:
    """Write out the bytes of a name that is not UTF-8, which Parquet cannot hold."""
    return cell.encode("utf-8", "backslashreplace").decode() if isinstance(cell, str) else cell
