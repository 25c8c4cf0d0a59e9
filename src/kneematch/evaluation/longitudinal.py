"""Longitudinal comparison: changes of the measures of the same knees between visits."""

import csv
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from kneematch.errors import SettingsError
from kneematch.films.csv_text import Cell, read_csv
from kneematch.films.files import check_suffix, refuse_existing
from kneematch.knee.measure import PERCENT, UNITS
from kneematch.run.outputs.measurements import MEASUREMENTS, MM
from kneematch.run.outputs.tables import Columns, open_table
from kneematch.settings import as_path, check_type

BEFORE, AFTER = "before", "after"
POWERS: Final = {"mm": 1, "mm2": 2}  # powers of the plateau's width that measures contain
VALUES: Final = {  # columns of measures, their units, and the columns of their deviations
    f"{name}_{kind}": (kind, f"{name}_{unit}_sd")
    for name, unit in UNITS.items()
    for kind in (unit, MM.get(unit))
    if kind
}
SIDE, LATERALITY = "image_side", "laterality"  # columns, and values of `paired_by`
PARTS: Final = (BEFORE, AFTER, "change", "change_sd", "sdc")
PAIRED: Final = ("visit", "film", SIDE)  # columns that both visits have
DECIMALS: Final = 4
COLUMNS: Final[Columns] = {
    **dict.fromkeys(("patient", LATERALITY, "paired_by")),
    **dict.fromkeys(f"{name}_{visit}" for name in PAIRED for visit in (BEFORE, AFTER)),
    **{f"{name}_{part}": DECIMALS for name in VALUES for part in PARTS},
}
CONFIDENCE: Final = 1.96  # standard deviations of a change that 95 % of mere errors stay below

KneeRow = Mapping[str, str]  # a row of measurements.csv, with its visit
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class LongitudinalComparison:
    """What `compare_runs` found."""

    knees: int  # rows of the table
    skipped: list[str]  # films and patients without a knee to compare, and why


def compare_runs(
    runs: Paths,
    out: str | os.PathLike[str],
    *,
    visits: str | os.PathLike[str],
    force: bool = False,
) -> LongitudinalComparison:
    """Write how every measure of every knee has changed since its first visit.

    Knees are paired by the patient's side, or by the half of the picture where a visit does not
    know the patient's side. Visits are in the order of their numbers, or else of their texts.

    Args:
        runs: folder of a measured run, or several of different films.
        out: table to write, NAME.csv.
        visits: CSV with a row per film and the columns `film` (as in the run, or the file's name),
            `patient` and `visit`.
        force: replace a file of this name.

    Raises:
        SettingsError: the file exists, a table is missing or cannot be used, or no knee can be
            compared.
    """
    check_type("runs", runs, str | os.PathLike[str] | Iterable)
    named = [runs] if isinstance(runs, str | os.PathLike) else runs
    folders, out = [as_path("runs", run) for run in named], as_path("out", out)
    table = as_path("visits", visits)
    check_suffix(out, ".csv", "a table")
    if os.path.lexists(out) and not force:
        refuse_existing(out)
    inputs = [table, *(folder / MEASUREMENTS for folder in folders)]
    if out.exists() and any(path.exists() and path.samefile(out) for path in inputs):
        raise SettingsError(f"{out} is one of the tables to compare. Choose another name.")
    patients, skipped = _knees_by_patient(folders, table)
    stated = {knee["visit"] for knees in patients.values() for knee in knees}
    order = sorted(stated, key=lambda visit: (_number(visit) is None, _number(visit) or 0, visit))
    rows: list[dict[str, Cell]] = []
    for patient, knees in patients.items():
        compared = [row | {"patient": patient} for row in _compare_visits(knees, order)]
        rows += compared
        if not compared:
            films = ", ".join(sorted({knee["film"] for knee in knees}))
            skipped.append(f"{films}: no knee at two visits")
    if not rows:
        why = "".join(f": {reason}" for reason in skipped[:1])
        raise SettingsError(f"No knee was measured at two visits{why}.")
    with open_table(out, COLUMNS) as add:
        for row in rows:
            add(row)
    return LongitudinalComparison(len(rows), skipped)


def _knees_by_patient(
    folders: Sequence[Path], table: Path
) -> tuple[dict[str, list[KneeRow]], list[str]]:
    """Return the measured knees of each patient with their visits, and the films left out."""
    listed: dict[str, dict[str, str]] = {}
    for row in _read(table, ("film", "patient", "visit")):
        if listed.setdefault(row["film"], row) is not row:
            raise SettingsError(f"{table}: Several rows are about the film '{row['film']}'.")
    patients: dict[str, list[KneeRow]] = defaultdict(list)
    measured: dict[str, tuple[int, str]] = {}  # run and film by the name in the table
    for run, folder in enumerate(folders):
        for knee in _read(folder / MEASUREMENTS, ("film", SIDE, LATERALITY)):
            film = knee["film"]
            name = film if film in listed else PurePath(film).name
            if name not in listed:
                continue
            if measured.setdefault(name, (run, film)) != (run, film):
                raise SettingsError(
                    f"{table}: The runs have several films {name}. Name films by their paths, each "
                    "of them in one run only."
                )
            patient, visit = listed[name]["patient"], listed[name]["visit"]
            if patient and visit:
                patients[patient].append({**knee, "visit": visit})
    skipped = []
    for name, row in listed.items():
        if name not in measured:
            skipped.append(f"{name or 'an empty cell'}: no film with a measured knee")
        elif not (row["patient"] and row["visit"]):
            skipped.append(f"{name}: the table names no patient or no visit")
    return patients, skipped


def _compare_visits(knees: Sequence[KneeRow], order: Sequence[str]) -> Iterator[dict[str, Cell]]:
    """Yield the changes of a patient's knees from the first visit of each to every later one."""
    first: list[KneeRow] = []
    for visit in order:
        later = [knee for knee in knees if knee["visit"] == visit]
        pairs = list(_pair_knees(first, later))
        yield from (_changes(*pair) for pair in pairs)
        paired = {id(after) for _, after, _, _ in pairs}
        seen = {knee[LATERALITY] for knee in first}
        new = (knee for knee in later if id(knee) not in paired)
        first += [k for k in new if not seen or k[LATERALITY] not in {"", *seen}]


def _pair_knees(
    before: Sequence[KneeRow], after: Sequence[KneeRow]
) -> Iterator[tuple[KneeRow, KneeRow, str, str]]:
    """Yield the knees that two visits have in common, their laterality and how they were paired.

    Those of one film each may be paired by the half of the picture.
    """
    sides = [_distinct(knees, LATERALITY) for knees in (before, after)]
    halves = [_distinct(knees, SIDE) for knees in (before, after)]
    shared = set(sides[0]) & set(sides[1])
    for first, *one in zip(before, sides[0], halves[0], strict=True):
        for second, *other in zip(after, sides[1], halves[1], strict=True):
            known = one[0], other[0]
            if all(known):
                if known[0] == known[1]:
                    yield first, second, known[0], LATERALITY
            elif one[1] and one[1] == other[1] and not shared & set(filter(None, known)):
                yield first, second, "".join(known), SIDE


def _distinct(knees: Sequence[KneeRow], column: str) -> list[str]:
    """Return a column of the knees of a visit; empty where several have the same value."""
    counts = Counter(knee[column] for knee in knees)
    return [knee[column] if counts[knee[column]] == 1 else "" for knee in knees]


def _changes(before: KneeRow, after: KneeRow, laterality: str, paired_by: str) -> dict[str, Cell]:
    row: dict[str, Cell] = {LATERALITY: laterality, "paired_by": paired_by}
    for visit, knee in ((BEFORE, before), (AFTER, after)):
        row |= {f"{name}_{visit}": knee[name] for name in PAIRED}
    for name in VALUES:
        first, second = (_number(knee.get(name, "")) for knee in (before, after))
        row |= {f"{name}_{BEFORE}": first, f"{name}_{AFTER}": second}
        if first is None or second is None:
            continue
        row[f"{name}_change"] = second - first
        deviations = [_deviation(knee, name) for knee in (before, after)]
        if None not in deviations:
            row[f"{name}_change_sd"] = sd = math.hypot(*deviations)  # type: ignore[arg-type]
            row[f"{name}_sdc"] = CONFIDENCE * sd
    return row


def _deviation(knee: KneeRow, name: str) -> float | None:
    """Return the standard deviation of a measure; in mm, the spacing is taken to be exact."""
    unit, column = VALUES[name]
    sd, width_mm = _number(knee.get(column, "")), _number(knee.get("plateau_width_mm", ""))
    if sd is None or unit not in POWERS:
        return sd
    return None if width_mm is None else sd / PERCENT * width_mm ** POWERS[unit]


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table that has these columns, by column."""
    if not path.is_file():
        runs = " Runs to compare are made with --measure." if path.name == MEASUREMENTS else ""
        raise SettingsError(f"No such file: {path}.{runs}")
    try:
        header, rows = read_csv(path)
        if missing := [name for name in columns if name not in header]:
            raise ValueError(f"it lacks the columns {', '.join(missing)}")
        for number, row in enumerate(rows, start=2):
            if len(row) not in (0, len(header)):  # an empty line has no cells
                raise ValueError(f"row {number} has {len(row)} cells instead of {len(header)}")
        return [dict(zip(header, row, strict=True)) for row in rows if row]
    except (OSError, ValueError, csv.Error) as error:
        raise SettingsError(f"{path} cannot be read as a table: {error}.") from error


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
