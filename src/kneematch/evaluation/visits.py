"""Compare the measures of the same knees at two visits."""

import csv
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from kneematch.errors import SettingsError
from kneematch.evaluation.statistics import deviation
from kneematch.export.measurements import MEASUREMENTS, MM
from kneematch.export.tables import Cell, Columns, write_rows
from kneematch.io.csv_text import read_csv_file
from kneematch.io.files import check_suffix, refuse_existing
from kneematch.measures.measure import UNITS

BEFORE, AFTER = "before", "after"
DECIMALS: Final = 4
PARTS: Final = (BEFORE, AFTER, "change", "change_sd")
VALUES: Final = tuple(  # columns of measures, with their units
    f"{name}_{kind}" for name, unit in UNITS.items() for kind in (unit, MM.get(unit)) if kind
)

LARGEST: Final = 1e9  # of a measure; a larger one is damaged

Table = dict[tuple[str, str], Mapping[str, str]]  # rows by film and side


@dataclass(frozen=True, slots=True)
class Change:
    """The mean change of a measure over all knees."""

    measure: str  # name and unit
    knees: int
    mean: float
    sd: float  # of the changes between knees


def compare_visits(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    pairs: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
) -> list[Change]:
    """Write the change of every measure of every knee, and return the mean changes.

    Args:
        before: folder of the first visit's run, made with --measure.
        after: folder of the second visit's run.
        pairs: CSV with the columns `before` and `after`: the films of the same patient, named as
            in the runs or by their file names.
        out: table to write, NAME.csv, one row per knee.
        force: replace a file of that name.

    Raises:
        SettingsError: `out` exists, a table is missing or has no such columns, or a film is not in
            its run.
    """
    check_suffix(Path(out), ".csv", "a table")
    if os.path.lexists(out) and not force:
        refuse_existing(Path(out))
    inputs = [Path(pairs), *(Path(folder) / MEASUREMENTS[0] for folder in (before, after))]
    if Path(out).exists() and any(path.exists() and path.samefile(out) for path in inputs):
        raise SettingsError(
            f"{out}: one of the tables to compare; expected another name; choose one"
        )
    tables = [_measurements(Path(folder)) for folder in (before, after)]
    rows = []
    for films in _read(Path(pairs), (BEFORE, AFTER)):
        names = [
            _film(table, films[visit], Path(pairs))
            for table, visit in zip(tables, (BEFORE, AFTER), strict=True)
        ]
        for side in ("left", "right"):
            found = [table.get((name, side)) for table, name in zip(tables, names, strict=True)]
            if found[0] is not None and found[1] is not None:
                rows.append(_changes(names, side, found[0], found[1]))
    numbers = {f"{name}_{part}": DECIMALS for name in VALUES for part in PARTS}
    columns: Columns = {**dict.fromkeys(("film_before", "film_after", "side")), **numbers}
    write_rows(rows, [Path(out)], columns)
    return _summary(rows)


def _changes(
    names: Sequence[str], side: str, before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, Cell]:
    row: dict[str, Cell] = {"film_before": names[0], "film_after": names[1], "side": side}
    for name in VALUES:
        first, second = (_number(table.get(name, "")) for table in (before, after))
        row[f"{name}_{BEFORE}"], row[f"{name}_{AFTER}"] = first, second
        deviations = [_number(table.get(f"{name}_sd", "")) for table in (before, after)]
        if first is not None and second is not None:
            row[f"{name}_change"] = second - first
            if None not in deviations:
                row[f"{name}_change_sd"] = math.hypot(*deviations)  # type: ignore[arg-type]
    return row


def _summary(rows: Sequence[Mapping[str, Cell]]) -> list[Change]:
    summary = []
    for name in VALUES:
        values = [row[f"{name}_change"] for row in rows if f"{name}_change" in row]
        changes = [float(value) for value in values if value is not None]
        if changes:
            spread = deviation(changes) or 0.0
            summary.append(Change(name, len(changes), statistics.fmean(changes), spread))
    return summary


def _measurements(folder: Path) -> Table:
    rows = _read(folder / MEASUREMENTS[0], ("film", "side"))
    return {(row["film"], row["side"]): row for row in rows}


def _film(table: Table, name: str, pairs: Path) -> str:
    """Return the film of a run that has a name, or its file name."""
    films = {film for film, _ in table}
    if name in films:
        return name
    alike = [film for film in films if PurePath(film).name == PurePath(name).name]
    if len(alike) != 1:
        found = "several such films" if alike else "no such film"
        raise SettingsError(
            f"{pairs}: {name}: {found} in the run; expected one; name it as measurements.csv does"
        )
    return alike[0]


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    if not path.is_file():
        raise SettingsError(
            f"{path}: no such file; expected a table; make a run with --measure, or name another"
        )
    try:
        header, rows = read_csv_file(path)
    except (OSError, ValueError, csv.Error) as error:
        raise SettingsError(
            f"{path}: cannot be read ({error}); expected CSV; correct it"
        ) from error
    if not set(columns) <= set(header):
        raise SettingsError(
            f"{path}: columns {', '.join(header[:6])}; expected {' and '.join(columns)}; correct it"
        )
    for number, row in enumerate(rows, 2):
        if row and len(row) != len(header):
            raise SettingsError(
                f"{path}: row {number} has {len(row)} columns; expected {len(header)}; correct it"
            )
    return [dict(zip(header, row, strict=True)) for row in rows if row]  # not an empty line


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < LARGEST else None  # NaN is not
