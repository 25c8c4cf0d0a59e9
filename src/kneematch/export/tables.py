"""The tables of a run: detections as CSV, Parquet and JSON, a row a knee; failures.csv.

Rows are written as they come, so that a table may be larger than the memory.
"""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from kneematch.detection.detection import Detection
from kneematch.io.atomic import write_aside

# Decimals: of a pixel, of an angle, of an energy, of a spacing.
PIXEL, DEGREE, ENERGY, SPACING = 3, 4, 6, 6
CORNERS: Final = [f"{axis}{corner}_px" for corner in range(4) for axis in "xy"]
COLUMNS: Final[dict[str, int | None]] = {  # and their decimals; None: text
    "film": None,
    "side": None,
    "laterality": None,
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
    **dict.fromkeys(CORNERS, PIXEL),
    "mm_per_px": SPACING,
    "review": None,
    "reason": None,
}
FAILURE_COLUMNS: Final[dict[str, int | None]] = {"film": None, "reason": None}
TABLES: Final = ("detections.csv", "detections.parquet", "detections.json")
ROWS_AT_ONCE: Final = 10_000  # of a Parquet file: what is held in memory

Value = str | float | None
Add = Callable[[Sequence[Value]], None]
Rows = Iterable[tuple[str, Detection]]
Columns = dict[str, int | None]


def write_tables(
    rows: Rows, folder: str | os.PathLike[str], *, landmarks: Sequence[str] = ()
) -> None:
    """Write detections, each with the name of its film, in all three formats, in one pass.

    Args:
        rows: any number; they are not kept.
        folder: where detections.csv, .parquet and .json appear.
        landmarks: names of those that have columns, behind the fixed ones.
    """
    columns = _columns(landmarks)
    with ExitStack() as stack:
        tables = [stack.enter_context(_table(Path(folder) / name, columns)) for name in TABLES]
        for film, found in rows:
            values = _values(film, found, landmarks)
            for add in tables:
                add(values)


def write_detections(
    rows: Rows, path: str | os.PathLike[str], *, landmarks: Sequence[str] | None = None
) -> None:
    """Write one table, of the format that its suffix names: .csv, .parquet or .json.

    Without names of landmarks, those of all rows are meant, which are held in memory then.
    """
    if landmarks is None:
        rows = list(rows)
        landmarks = list(dict.fromkeys(name for _, found in rows for name in found.landmarks))
    with _table(Path(path), _columns(landmarks)) as add:
        for film, found in rows:
            add(_values(film, found, landmarks))


def write_failures(rows: Iterable[tuple[str, str]], path: str | os.PathLike[str]) -> None:
    """Write films without detections, and why."""
    with _csv(Path(path), FAILURE_COLUMNS) as add:
        for row in rows:
            add(row)


def _columns(landmarks: Sequence[str]) -> Columns:
    return COLUMNS | {f"{name}_{axis}_px": PIXEL for name in landmarks for axis in "xy"}


def _values(film: str, found: Detection, landmarks: Sequence[str]) -> list[Value]:
    places = [found.landmarks.get(name, (None, None)) for name in landmarks]
    values: list[Value] = [
        film,
        found.side,
        found.laterality,
        found.status,
        found.energy,
        found.loss,
        found.polarity,
        found.method,
        *found.centre,
        found.width_px,
        found.height_px,
        found.rotation_deg,
        *found.corners.flatten().tolist(),
        found.mm_per_px,
        found.review,
        found.reason,
        *(value for place in places for value in place),
    ]
    decimals = [*COLUMNS.values(), *[PIXEL] * 2 * len(places)]
    return [_rounded(value, places) for value, places in zip(values, decimals, strict=True)]


def _rounded(value: Value, decimals: int | None) -> Value:
    if value is None or isinstance(value, str) or decimals is None:
        return value
    return round(float(value), decimals) + 0.0  # which turns a negative zero into plain zero


@contextmanager
def _table(path: Path, columns: Columns) -> Iterator[Add]:
    """What adds a row to a file that appears when all are there."""
    kinds = {".csv": _csv, ".parquet": _parquet, ".json": _json}
    with kinds[path.suffix](path, columns) as add:
        yield add


@contextmanager
def _csv(path: Path, columns: Columns) -> Iterator[Add]:
    def text(value: Value, decimals: int | None) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        return f"{value:.{decimals}f}"

    # surrogateescape writes names that are not UTF-8 as the bytes they are.
    with (
        write_aside(path) as aside,
        aside.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        yield lambda row: table.writerow(map(text, row, columns.values()))


@contextmanager
def _json(path: Path, columns: Columns) -> Iterator[Add]:
    """A list of objects, one a line."""
    with write_aside(path) as aside, aside.open("w", encoding="ascii", newline="\n") as file:
        before = "[\n"

        def add(row: Sequence[Value]) -> None:
            nonlocal before
            file.write(before + json.dumps(dict(zip(columns, row, strict=True))))
            before = ",\n"

        yield add
        file.write("\n]\n" if before == ",\n" else "[]\n")


@contextmanager
def _parquet(path: Path, columns: Columns) -> Iterator[Add]:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {name: pa.string() if d is None else pa.float64() for name, d in columns.items()}
    schema = pa.schema(list(kinds.items()))
    waiting: list[Sequence[Any]] = []

    def flush() -> None:
        across = zip(*waiting, strict=True)
        arrays = [
            pa.array(map(_utf8, values), kind)
            for values, kind in zip(across, kinds.values(), strict=True)
        ]
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        waiting.clear()

    def add(row: Sequence[Value]) -> None:
        waiting.append(row)
        if len(waiting) >= ROWS_AT_ONCE:
            flush()

    with write_aside(path) as aside, parquet.ParquetWriter(aside, schema) as writer:
        yield add
        if waiting:
            flush()


def _utf8(value: Value) -> Value:
    """A name that is not UTF-8 has its odd bytes written out; Parquet has no other way."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
