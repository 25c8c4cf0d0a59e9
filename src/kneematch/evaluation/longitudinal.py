"""Longitudinal comparison: changes of the measures of the same knees between two visits."""

import csv
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from statistics import fmean, stdev
from typing import Final

from kneematch.errors import SettingsError
from kneematch.films.csv_text import Cell, read_csv_file
from kneematch.films.files import check_suffix, refuse_existing
from kneematch.films.run_folder import DETECTIONS, FAILURES
from kneematch.knee.measure import UNITS
from kneematch.run.outputs.measurements import MEASUREMENTS, MM
from kneematch.run.outputs.tables import Columns, open_tables

BEFORE, AFTER = "before", "after"
VALUES: Final = tuple(  # columns of measures, with their units
    f"{name}_{kind}" for name, unit in UNITS.items() for kind in (unit, MM.get(unit)) if kind
)
SIDE, LATERALITY = "image_side", "laterality"  # columns, and values of `paired_by`
PARTS: Final = (BEFORE, AFTER, "change", "change_sd")
DECIMALS: Final = 4
COLUMNS: Final[Columns] = {
    **dict.fromkeys(f"{name}_{visit}" for name in ("film", SIDE) for visit in (BEFORE, AFTER)),
    **dict.fromkeys((LATERALITY, "paired_by")),
    **{f"{name}_{part}": DECIMALS for name in VALUES for part in PARTS},
}

KneeRow = Mapping[str, str]  # a row of measurements.csv


@dataclass(frozen=True, slots=True)
class Change:
    """The mean change of a measure over all knees."""

    measure: str  # name and unit
    knees: int
    mean: float
    sd: float | None  # standard deviation between knees; None for a single one


@dataclass(frozen=True, slots=True)
class LongitudinalComparison:
    """What `compare_runs` found."""

    knees: int  # rows of the table
    changes: list[Change]
    skipped: list[str]  # pairs of films without a knee to compare, and why


def compare_runs(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    pairs: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
) -> LongitudinalComparison:
    """Write the change of every measure of every knee, and return the mean changes.

    Knees are paired by the patient's side, or by the half of the picture where a visit does not
    know the patient's side. Pairs of films without a measured knee in common are skipped.

    Args:
        before: folder of the first visit's run, made with --measure.
        after: folder of the second visit's run.
        pairs: CSV with the columns `before` and `after`: the films of the same patient, named as
            in the runs or by their file names.
        out: table to write, NAME.csv, one row per knee.
        force: replace a file of that name.

    Raises:
        SettingsError: `out` exists, a table is missing or has no such columns, or there is no knee
            to compare.
    """
    _check_out(Path(out), Path(pairs), (Path(before), Path(after)), force=force)
    find = {BEFORE: _measured_knees(Path(before)), AFTER: _measured_knees(Path(after))}
    rows: list[dict[str, Cell]] = []
    skipped: list[str] = []
    for films in _read(Path(pairs), (BEFORE, AFTER)):
        try:
            knees = [find[visit](films[visit]) for visit in (BEFORE, AFTER)]
        except LookupError as error:
            skipped.append(str(error))
            continue
        found = [_changes(*pair) for pair in _pair_knees(*knees)]
        rows += found
        if not found:
            skipped.append(f"{films[BEFORE]}, {films[AFTER]}: no knee in common")
    if not rows:
        why = "".join(f": {reason}" for reason in skipped[:1])
        raise SettingsError(f"{pairs} names no knee that was measured at both visits{why}.")
    with open_tables([Path(out)], COLUMNS) as add:
        for row in rows:
            add(row)
    return LongitudinalComparison(len(rows), list(_summary(rows)), skipped)


def _check_out(out: Path, pairs: Path, runs: Sequence[Path], *, force: bool) -> None:
    """Raise SettingsError if the table would replace one that is read, or another without force."""
    check_suffix(out, ".csv", "a table")
    if os.path.lexists(out) and not force:
        refuse_existing(out)
    read = (MEASUREMENTS[0], DETECTIONS, FAILURES)
    inputs = [pairs, *(run / name for run in runs for name in read)]
    if out.exists() and any(path.exists() and path.samefile(out) for path in inputs):
        raise SettingsError(f"{out} is one of the tables to compare. Choose another name.")


def _pair_knees(
    before: Sequence[KneeRow], after: Sequence[KneeRow]
) -> Iterator[tuple[KneeRow, KneeRow, str, str]]:
    """Yield the knees that two films have in common, their laterality and how they were paired."""
    sides = [_lateralities(knees) for knees in (before, after)]
    shared = set(sides[0].values()) & set(sides[1].values())
    for first in before:
        for second in after:
            known = sides[0][first[SIDE]], sides[1][second[SIDE]]
            if all(known):
                if known[0] == known[1]:
                    yield first, second, known[0], LATERALITY
            elif first[SIDE] == second[SIDE] and not shared & set(filter(None, known)):
                yield first, second, "".join(known), SIDE


def _lateralities(knees: Sequence[KneeRow]) -> dict[str, str]:
    """Return the lateralities of a film's knees by side; empty if not known or not distinct."""
    counts = Counter(knee.get(LATERALITY, "") for knee in knees)
    return {
        knee[SIDE]: side if counts[side := knee.get(LATERALITY, "")] == 1 else "" for knee in knees
    }


def _changes(before: KneeRow, after: KneeRow, laterality: str, paired_by: str) -> dict[str, Cell]:
    row: dict[str, Cell] = {LATERALITY: laterality, "paired_by": paired_by}
    for visit, knee in ((BEFORE, before), (AFTER, after)):
        row |= {f"film_{visit}": knee["film"], f"{SIDE}_{visit}": knee[SIDE]}
    for name in VALUES:
        first, second = (_number(knee.get(name, "")) for knee in (before, after))
        deviations = [_number(knee.get(f"{name}_sd", "")) for knee in (before, after)]
        row |= {f"{name}_{BEFORE}": first, f"{name}_{AFTER}": second}
        if first is not None and second is not None:
            row[f"{name}_change"] = second - first
            if None not in deviations:
                row[f"{name}_change_sd"] = math.hypot(*deviations)  # type: ignore[arg-type]
    return row


def _summary(rows: Sequence[Mapping[str, Cell]]) -> Iterator[Change]:
    for name in VALUES:
        values = (row.get(f"{name}_change") for row in rows)
        changes = [float(value) for value in values if value is not None]
        if changes:
            spread = stdev(changes) if len(changes) > 1 else None
            yield Change(name, len(changes), fmean(changes), spread)


def _measured_knees(folder: Path) -> Callable[[str], Sequence[KneeRow]]:
    """Return a function that finds the knees of a run by the film's name or file name.

    It raises LookupError where no film of that name has a measured knee, or several have.
    """
    knees, films = defaultdict[str, list[KneeRow]](list), defaultdict[str, set[str]](set)
    for row in _read(folder / MEASUREMENTS[0], ("film", SIDE)):
        knees[row["film"]].append(row)
        films[PurePath(row["film"]).name].add(row["film"])

    def find(name: str) -> Sequence[KneeRow]:
        named = {name} & knees.keys() or films.get(PurePath(name).name, set())
        if len(named) != 1:
            found = "several films of this name" if named else "no film with a measured knee"
            raise LookupError(f"{name or 'an empty cell'}: {found} in {folder}")
        return knees[min(named)]

    return find


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table that has these columns, by column."""
    if not path.is_file():
        raise SettingsError(f"No such file: {path}. Runs to compare are made with --measure.")
    try:
        header, rows = read_csv_file(path)
        if not set(columns) <= set(header):
            raise ValueError(f"it lacks the columns {' and '.join(columns)}")
        return [dict(zip(header, row, strict=True)) for row in rows if row]  # not an empty line
    except (OSError, ValueError, csv.Error) as error:
        raise SettingsError(f"{path} cannot be read as a table: {error}.") from error


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
