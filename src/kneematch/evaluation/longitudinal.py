"""Compare the measures of the same knees at two visits."""

import csv
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from kneematch.errors import SettingsError
from kneematch.evaluation.statistics import mean, standard_deviation
from kneematch.films.csv_text import Cell, read_csv_file
from kneematch.films.files import check_suffix, refuse_existing
from kneematch.films.run_folder import DETECTIONS, FAILURES
from kneematch.knee.measure import UNITS
from kneematch.run.outputs.measurements import MEASUREMENTS, MM
from kneematch.run.outputs.tables import Columns, write_rows

BEFORE, AFTER = "before", "after"
DECIMALS: Final = 4
PARTS: Final = (BEFORE, AFTER, "change", "change_sd")
VALUES: Final = tuple(  # columns of measures, with their units
    f"{name}_{kind}" for name, unit in UNITS.items() for kind in (unit, MM.get(unit)) if kind
)
SIDE, LATERALITY = "side", "laterality"  # columns of measurements.csv, and values of `paired_by`
KNEE: Final = (
    *("film_before", "film_after", "side_before", "side_after"),
    *("laterality", "paired_by"),
)

TABLES: Final = (MEASUREMENTS[0], DETECTIONS, FAILURES)  # of a run, that are read
LARGEST: Final = 1e9  # of a measure; a larger one is damaged

KneeRow = Mapping[str, str]  # a row of measurements.csv


@dataclass(frozen=True, slots=True)
class Change:
    """The mean change of a measure over all knees."""

    measure: str  # name and unit
    knees: int
    mean: float
    sd: float | None  # of the changes between knees; None for a single one


@dataclass(frozen=True, slots=True)
class VisitComparison:
    """What `compare_visits` found."""

    knees: int  # rows of the table
    changes: list[Change]
    skipped: list[str]  # pairs of films without a knee to compare, and why
    unknown: list[str]  # pairs with a film that is not in its run: that film, and what was found


@dataclass(frozen=True, slots=True)
class _Visit:
    """The films of a run."""

    folder: Path
    knees: Mapping[str, Sequence[KneeRow]]  # by film
    without: Mapping[str, str]  # why a film has no measured knee
    films: Mapping[str, Sequence[str]]  # by file name


def compare_visits(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    pairs: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
) -> VisitComparison:
    """Write the change of every measure of every knee, and return the mean changes.

    Knees are paired by the patient's side, or by the half of the picture where a visit does not
    know the patient's side. Pairs of films without a knee in common are skipped, as are those with
    a film that is not in its run.

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
    visits = [_read_visit(Path(folder)) for folder in (before, after)]
    rows: list[dict[str, Cell]] = []
    skipped: list[str] = []
    unknown: list[str] = []
    for films in _read(Path(pairs), (BEFORE, AFTER)):
        try:
            names = [_film(visits[0], films[BEFORE]), _film(visits[1], films[AFTER])]
        except LookupError as error:
            unknown.append(str(error))
            continue
        knees = [visit.knees.get(name, ()) for visit, name in zip(visits, names, strict=True)]
        found = [_changes(*pair) for pair in _pair_knees(*knees)]
        rows += found
        if not found:
            skipped.append(_why_skipped(visits, names))
    if not rows:
        why = "".join(f" ({reason})" for reason in (skipped + unknown)[:1])
        raise SettingsError(
            f"{pairs}: no knees to compare{why}; expected a knee that was measured at both visits; "
            "name other films, as measurements.csv does"
        )
    numbers = {f"{name}_{part}": DECIMALS for name in VALUES for part in PARTS}
    columns: Columns = {**dict.fromkeys(KNEE), **numbers}
    write_rows(rows, [Path(out)], columns)
    return VisitComparison(len(rows), _summary(rows), skipped, unknown)


def _check_out(out: Path, pairs: Path, runs: Sequence[Path], *, force: bool) -> None:
    """Raise SettingsError if the table would replace one that is read, or another without force."""
    check_suffix(out, ".csv", "a table")
    if os.path.lexists(out) and not force:
        refuse_existing(out)
    inputs = [pairs, *(run / name for run in runs for name in TABLES)]
    if out.exists() and any(path.exists() and path.samefile(out) for path in inputs):
        raise SettingsError(
            f"{out}: one of the tables to compare; expected another name; choose one"
        )


def _why_skipped(visits: Sequence[_Visit], names: Sequence[str]) -> str:
    """Say why two films have no knee to compare."""
    lacking = [
        f"{name}: {visit.without[name]}"
        for visit, name in zip(visits, names, strict=True)
        if name in visit.without
    ]
    return f"{'; '.join(lacking) or f'{names[0]}, {names[1]}: no knee in common'}; pair skipped"


def _pair_knees(
    before: Sequence[KneeRow], after: Sequence[KneeRow]
) -> Iterator[tuple[KneeRow, KneeRow, str, str]]:
    """Yield the knees that two films have in common, their laterality and how they were paired."""
    sides = [_lateralities(knees) for knees in (before, after)]
    for first in before:
        for second in after:
            known = sides[0][first[SIDE]], sides[1][second[SIDE]]
            if all(known):
                if known[0] == known[1]:
                    yield first, second, known[0], LATERALITY
            elif first[SIDE] == second[SIDE] and not _has_partner(known, sides):
                yield first, second, "".join(known), SIDE


def _has_partner(known: tuple[str, str], sides: Sequence[Mapping[str, str]]) -> bool:
    """Return whether one of two knees is paired by its laterality with another knee."""
    return any(
        side and side in other.values() for side, other in zip(known, reversed(sides), strict=True)
    )


def _lateralities(knees: Sequence[KneeRow]) -> dict[str, str]:
    """Return the lateralities of a film's knees by side; empty if not known or not distinct."""
    counts = Counter(knee.get(LATERALITY, "") for knee in knees)
    return {
        knee[SIDE]: side if counts[side := knee.get(LATERALITY, "")] == 1 else "" for knee in knees
    }


def _changes(before: KneeRow, after: KneeRow, laterality: str, paired_by: str) -> dict[str, Cell]:
    row: dict[str, Cell] = {LATERALITY: laterality, "paired_by": paired_by}
    for visit, knee in ((BEFORE, before), (AFTER, after)):
        row |= {f"film_{visit}": knee["film"], f"side_{visit}": knee[SIDE]}
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
        values = (row.get(f"{name}_change") for row in rows)
        changes = [float(value) for value in values if value is not None]
        mean_change = mean(changes)
        if mean_change is not None:
            spread = standard_deviation(changes)
            summary.append(Change(name, len(changes), mean_change, spread))
    return summary


def _read_visit(folder: Path) -> _Visit:
    knees: dict[str, list[KneeRow]] = defaultdict(list)
    for row in _read(folder / MEASUREMENTS[0], ("film", SIDE)):
        knees[row["film"]].append(row)
    without = {}
    if (folder / DETECTIONS).exists():
        films = {row["film"] for row in _read(folder / DETECTIONS, ("film",))}
        without = dict.fromkeys(films - knees.keys(), "no knee that was accepted")
    if (folder / FAILURES).exists():
        for row in _read(folder / FAILURES, ("film", "status", "reason")):
            reason = row["reason"].removeprefix(f"{row['film']}: ").split("; ")[0]
            without[row["film"]] = reason or row["status"]
    names: dict[str, list[str]] = defaultdict(list)
    for film in (*knees, *without):
        names[PurePath(film).name].append(film)
    return _Visit(folder, dict(knees), without, names)


def _film(visit: _Visit, name: str) -> str:
    """Return the film of a run that has a name, or its file name.

    Raises:
        LookupError: there is none, or there are several.
    """
    if name in visit.knees or name in visit.without:
        return name
    alike = visit.films.get(PurePath(name).name, ())
    if len(alike) != 1:
        found = "several such films" if alike else "no such film"
        raise LookupError(f"{name or 'an empty cell'}: {found} in {visit.folder}")
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
