"""Longitudinal comparison: changes of the measures of the same knees between visits."""

import csv
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from statistics import fmean, stdev
from typing import Final

from kneematch.errors import FilmError, SettingsError
from kneematch.evaluation.longitudinal_page import write_page
from kneematch.films.csv_text import Cell, read_csv_file
from kneematch.films.files import check_suffix, refuse_existing
from kneematch.films.radiograph import silent
from kneematch.films.read import read_header
from kneematch.knee.measure import PERCENT, UNITS
from kneematch.options import as_path, check_type
from kneematch.run.outputs.measurements import MEASUREMENTS, MM, hash_patient, read_key
from kneematch.run.outputs.tables import Columns, open_tables

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
class Change:
    """The mean change of a measure over all knees, from their first visit to a later one."""

    measure: str  # name and unit
    visit: str  # the later one
    knees: int
    mean: float
    sd: float | None  # standard deviation between knees; None for a single one
    sdc: float | None  # smallest detectable change; None where no deviation is known
    beyond: int  # knees with a change larger than that of their own


@dataclass(frozen=True, slots=True)
class LongitudinalComparison:
    """What `compare_runs` found."""

    knees: int  # rows of the table
    changes: list[Change]
    skipped: list[str]  # films and patients without a knee to compare, and why
    page: Path  # with the plots


def compare_runs(
    runs: Paths,
    out: str | os.PathLike[str],
    *,
    on: str | os.PathLike[str] | None = None,
    salt: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> LongitudinalComparison:
    """Write how every measure of every knee has changed since its first visit, and plots of it.

    Knees are paired by the patient's side, or by the half of the picture where a visit does not
    know the patient's side.

    Args:
        runs: folder of a measured run; or several, one for each visit, the first visit first.
        out: table to write, NAME.csv; the page with plots is NAME.html.
        on: CSV with the columns `film` (as in the runs, or the file's name), `patient` (not needed
            with a salt) and, unless each run is a visit, `visit`; knees.csv may be one.
        salt: file with a secret text; patients are then known by the PatientID of their films'
            headers, of which only the hash with this text is written.
        force: replace files of these names.

    Raises:
        SettingsError: a file exists, is missing or has no such columns, or no knee can be compared.
    """
    check_type("runs", runs, str | os.PathLike[str] | Iterable)
    named = [runs] if isinstance(runs, str | os.PathLike) else runs
    folders, out = [as_path("runs", run) for run in named], as_path("out", out)
    table = None if on is None else as_path("on", on)
    if table is None and (salt is None or len(folders) < 2):
        raise SettingsError("Name a table of patients (--on), or --salt and a run for each visit.")
    page = out.with_suffix(".html")
    _check_out(out, page, [*folders, *([table] if table else [])], force=force)
    films = _Films(folders, table, None if salt is None else as_path("salt", salt))
    rows: list[dict[str, Cell]] = []
    for patient, knees in films.patients().items():
        found = [row | {"patient": patient} for row in _compare_visits(knees, films.visits)]
        rows += found
        if not found:
            unpaired = ", ".join(sorted({knee["film"] for knee in knees}))
            films.skipped.append(f"{unpaired}: no knee at two visits")
    if not rows:
        why = "".join(f": {reason}" for reason in films.skipped[:1])
        raise SettingsError(f"No knee was measured at two visits{why}.")
    with open_tables([out], COLUMNS) as add:
        for row in rows:
            add(row)
    changes = list(_summary(rows, films.visits))
    write_page(page, rows, changes, films.visits)
    return LongitudinalComparison(len(rows), changes, films.skipped, page)


def _check_out(out: Path, page: Path, inputs: Sequence[Path], *, force: bool) -> None:
    """Raise SettingsError if a file would replace one that is read, or another without force."""
    check_suffix(out, ".csv", "a table")
    for path in (out, page):
        if os.path.lexists(path) and not force:
            refuse_existing(path)
    read = [path / MEASUREMENTS[0] if path.is_dir() else path for path in inputs]
    if out.exists() and any(path.exists() and path.samefile(out) for path in read):
        raise SettingsError(f"{out} is one of the tables to compare. Choose another name.")


class _Films:
    """The measured films of runs, with the patient and the visit of each."""

    def __init__(self, folders: Sequence[Path], table: Path | None, salt: Path | None) -> None:
        self.skipped: list[str] = []
        self.secret = None if salt is None else read_key(salt, "--salt")
        needed = {"film": True, "patient": salt is None, "visit": len(folders) < 2}
        rows = _read(table, [name for name in needed if needed[name]]) if table else ()
        once = {tuple(map(row.get, needed)): row for row in rows}  # knees.csv repeats films
        self.listed = list(once.values()) if table else None
        self.runs = {str(folder): _knees_by_film(folder) for folder in folders}
        stated = {row["visit"] for row in self.listed or () if "visit" in row}
        ordered = sorted(stated, key=lambda v: (_number(v) is None, _number(v) or 0, v))
        self.visits = ordered or list(self.runs)

    def patients(self) -> dict[str, list[KneeRow]]:
        """Return the knees of each patient; those that cannot be used are added to `skipped`."""
        patients: dict[str, list[KneeRow]] = defaultdict(list)
        for run, film, row in self._named():
            visit = row.get("visit", run)
            try:
                patient = row["patient"] if self.secret is None else self._hashed_patient(film)
                if not (patient and visit):
                    raise LookupError("the table names no patient or no visit")
            except LookupError as error:
                self.skipped.append(f"{film}: {error.args[0]}")
            else:
                patients[patient] += [{**knee, "visit": visit} for knee in self.runs[run][film]]
        return patients

    def _named(self) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        """Yield runs and films, each with its row in the table, empty where there is none."""
        if self.listed is None:
            yield from ((run, film, {}) for run, knees in self.runs.items() for film in knees)
            return
        names: dict[tuple[str, str], list[str]] = defaultdict(list)
        for run, film in ((run, film) for run, knees in self.runs.items() for film in knees):
            names[run, PurePath(film).name].append(film)
        for row in self.listed:
            name = row["film"]
            found = [
                (run, film)
                for run, knees in self.runs.items()
                for film in ([name] if name in knees else names[run, PurePath(name).name])
            ]
            if len({run for run, _ in found}) == len(found) > 0:
                yield from ((run, film, row) for run, film in found)
            else:
                why = "several films of this name" if found else "no film with a measured knee"
                self.skipped.append(f"{name or 'an empty cell'}: {why}")

    def _hashed_patient(self, film: str) -> str:
        """Return the hash of a film's PatientID, which leaves the header in no other form."""
        from kneematch.films.dicom import header_text  # importing pydicom takes 0.1 s

        try:
            header = read_header(film)
        except FilmError as error:
            raise LookupError("its header cannot be read") from error
        with silent():
            number = None if header is None else header_text(header, "PatientID")
        if not number or self.secret is None:
            raise LookupError("its header has no PatientID")
        return hash_patient(number, self.secret)


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


def _summary(rows: Sequence[Mapping[str, Cell]], visits: Sequence[str]) -> Iterator[Change]:
    for name in VALUES:
        for visit in visits:
            chosen = [row for row in rows if row["visit_after"] == visit]
            found = [row for row in chosen if row.get(f"{name}_change") is not None]
            if not found:
                continue
            changes = [float(row[f"{name}_change"] or 0) for row in found]
            limits = [row.get(f"{name}_sdc") for row in found]
            known = [float(limit) for limit in limits if limit is not None]
            pairs = zip(changes, limits, strict=True)
            yield Change(
                name,
                visit,
                len(changes),
                fmean(changes),
                stdev(changes) if len(changes) > 1 else None,
                math.sqrt(fmean(limit**2 for limit in known)) if known else None,
                sum(limit is not None and abs(change) > float(limit) for change, limit in pairs),
            )


def _knees_by_film(folder: Path) -> dict[str, list[KneeRow]]:
    """Return the measured knees of a run by film."""
    knees: dict[str, list[KneeRow]] = defaultdict(list)
    for row in _read(folder / MEASUREMENTS[0], ("film", SIDE, LATERALITY)):
        knees[row["film"]].append(row)
    return knees


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a table that has these columns, by column."""
    if not path.is_file():
        runs = " Runs to compare are made with --measure." if path.name in MEASUREMENTS else ""
        raise SettingsError(f"No such file: {path}.{runs}")
    try:
        header, rows = read_csv_file(path)
        if not set(columns) <= set(header):
            raise ValueError(f"it lacks the columns {' and '.join(columns)}")
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
