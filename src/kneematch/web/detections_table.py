"""The rows of a run's detections.csv, which the review page filters and sorts."""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kneematch.errors import SettingsError
from kneematch.films.csv_text import read_csv_file
from kneematch.films.run_folder import DETECTIONS, FAILURES
from kneematch.knee.detection import Detection, split_reasons
from kneematch.paper.split import SIDES
from kneematch.run.decisions import DECISIONS
from kneematch.run.outputs.tables import (
    ADDED_COLUMNS,
    COLUMNS,
    CORNER_COLUMNS,
    FIELDS,
    ORIGINAL,
    landmark_names,
)

POSITION: Final = ("centre_x_px", "centre_y_px", "rotation_deg", *CORNER_COLUMNS)  # finite numbers
LENGTHS: Final = ("width_px", "height_px")  # positive numbers
STATES: Final = ("undecided", *DECISIONS)
UNDECIDED: Final = STATES.index("undecided")

States = NDArray[np.int8]  # (rows,), indices of STATES
RowNumbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowQuery:
    """Which rows to show, in which order: the parameters of a request."""

    sort: Literal["doubtful", "loss", "energy", "film"] = "doubtful"
    shown: Literal[
        "all", "undecided", "decided", "accepted", "rejected", "corrected", "no_knee"
    ] = "all"
    side: Literal["left", "right"] | None = None
    reason: Annotated[str, Field(max_length=400)] | None = None
    low: Annotated[float, Field(allow_inf_nan=False)] | None = None  # smallest loss
    high: Annotated[float, Field(allow_inf_nan=False)] | None = None  # largest loss
    film: Annotated[str, Field(max_length=400)] | None = None  # part of its name


@dataclass(frozen=True, eq=False)
class DetectionsTable:
    """A table with one row per knee, column by column."""

    text: Mapping[str, Sequence[str]]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.text["film"])

    @cached_property
    def numbers(self) -> Mapping[str, NDArray[np.float64]]:
        """The columns with numbers (rows,), NaN where a cell is none."""
        return {
            name: np.array([_to_number(cell) for cell in cells], np.float64)
            for name, cells in self.text.items()
            if COLUMNS.get(name, 0) is not None
        }

    @cached_property
    def reasons(self) -> list[tuple[str, ...]]:
        """Reasons to review each row; empty for rows that need no review."""
        return list(map(split_reasons, self.text["review"], self.text["reason"]))

    @property
    def reason_counts(self) -> list[tuple[str, int]]:
        """All reasons and their counts, the most frequent first."""
        return Counter(reason for row in self.reasons for reason in row).most_common()

    def detection(self, row: int) -> Detection:
        """Return the detection of a row, with the landmarks that it has."""
        numbers = {name: float(values[row]) for name, values in self.numbers.items()}
        values: dict[str, Any] = {name: numbers.get(name, self.text[name][row]) for name in FIELDS}
        for name in ("mm_per_px", "expected_error_px"):
            if np.isnan(values[name]):
                values[name] = None
        points = {
            name: (numbers[f"{name}_x_px"], numbers[f"{name}_y_px"])
            for name in ("centre", *landmark_names(self.text))
        }
        return Detection(
            **values,
            corners=np.array([numbers[name] for name in CORNER_COLUMNS]).reshape(4, 2),
            centre=points.pop("centre"),
            landmarks={name: point for name, point in points.items() if np.isfinite(point).all()},
        )

    def select(self, query: RowQuery, states: States) -> RowNumbers:
        """Return the row numbers that match a query, sorted; ties keep the table's order."""
        chosen: RowNumbers = np.flatnonzero(self._matches(query, states))
        if query.sort == "film":
            return chosen
        values = self.numbers["energy" if query.sort == "energy" else "loss"]
        keys = [-np.nan_to_num(values, nan=9.0)[chosen]]  # the worst first
        if query.sort == "doubtful":  # the last key has priority
            keys.append(np.array([not self.reasons[row] for row in chosen], np.float64))
        return chosen[np.lexsort(keys)]

    def _matches(self, query: RowQuery, states: States) -> NDArray[np.bool_]:
        keep, loss = np.ones(len(self), bool), self.numbers["loss"]
        if query.shown == "decided":
            keep &= states != UNDECIDED
        elif query.shown in STATES:
            keep &= states == STATES.index(query.shown)
        if query.side is not None:
            keep &= np.array(self.text["side"], str) == query.side
        if query.low is not None:
            keep &= loss >= query.low
        if query.high is not None:
            keep &= loss <= query.high
        if query.reason is not None:
            keep &= np.array([query.reason in reasons for reasons in self.reasons], bool)
        if query.film:
            part = query.film.casefold()
            keep &= np.array([part in film.casefold() for film in self.text["film"]], bool)
        return keep


def read_detections_table(out: Path) -> DetectionsTable:
    """Read the table of a run, with its areas as they were found.

    Raises:
        SettingsError: There is none, or it was not written by this version of kneematch.
    """
    path = out / ORIGINAL if (out / ORIGINAL).exists() else out / DETECTIONS
    try:
        columns, rows = read_csv_file(path)
    except (OSError, ValueError, csv.Error) as error:
        raise SettingsError(
            f"{path}: cannot be read ({error}); expected the table of a run that has ended; name "
            "the folder that `kneematch detect` has filled"
        ) from error
    by_column = list(zip(*rows, strict=False)) or [()] * len(columns)
    added = dict.fromkeys(ADDED_COLUMNS, ("",) * len(rows))
    table = DetectionsTable(added | dict(zip(columns, by_column, strict=False)))
    for problem in _problems(columns, rows, table):
        raise SettingsError(
            f"{path}: {problem}; expected a table of this version of kneematch; run the films again"
        )
    return table


def read_films_without_knee(out: Path) -> list[str]:
    """Return the films of a run that can be read and on which no knee was found."""
    try:
        columns, rows = read_csv_file(out / FAILURES)
    except (OSError, ValueError, csv.Error):  # a run of version 0.1, or without failures
        return []
    cells = (dict(zip(columns, row, strict=False)) for row in rows)
    return [row["film"] for row in cells if row.get("status") == "no_knee" and "film" in row]


def _problems(
    columns: Sequence[str], rows: Sequence[Sequence[str]], table: DetectionsTable
) -> Iterator[str]:
    """Yield what is wrong with a table; an empty energy, loss or landmark is fine."""
    for name in (*COLUMNS, *(f"{landmark}_y_px" for landmark in landmark_names(columns))):
        if name not in table.text:
            yield f"no column {name!r}"
    for name, count in Counter(columns).items():
        if count > 1:
            yield f"column {name!r} occurs twice"
    for number, cells in enumerate(rows, 1):
        if len(cells) != len(columns):
            yield f"row {number} has {len(cells)} cells and the header {len(columns)}"
    wrong = {"side": np.array([side not in SIDES for side in table.text["side"]], bool)}
    for name in (*POSITION, *LENGTHS):
        values = table.numbers[name]
        wrong[name] = ~np.isfinite(values) | ((name in LENGTHS) & (values <= 0))
    for name, faulty in wrong.items():
        for row in np.flatnonzero(faulty).tolist():
            yield f"row {row + 1}: {name} is {table.text[name][row]!r}"


def _to_number(text: str) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")
