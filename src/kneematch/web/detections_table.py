"""The rows of a run's detections.csv, which the review page filters and sorts."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kneematch.detection.detection import Detection, split_reasons
from kneematch.errors import SettingsError
from kneematch.export.tables import COLUMNS, CORNERS
from kneematch.geometry.split import SIDES
from kneematch.io.csv_text import read_csv

FILE_NAME: Final = "detections.csv"
POSITION: Final = ("centre_x_px", "centre_y_px", "rotation_deg", *CORNERS)  # finite numbers
LENGTHS: Final = ("width_px", "height_px")  # positive numbers
TEXT_FIELDS: Final = ("side", "laterality", "polarity", "method", "status", "review", "reason")
NUMBER_FIELDS: Final = ("energy", "loss", "width_px", "height_px", "rotation_deg")
STATES: Final = ("undecided", "accepted", "rejected", "corrected")
UNDECIDED: Final = STATES.index("undecided")

States = NDArray[np.int8]  # (rows,), indices of STATES
RowNumbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowQuery:
    """Which rows to show, in which order: the parameters of a request."""

    sort: Literal["doubtful", "loss", "energy", "film"] = "doubtful"
    shown: Literal["all", "undecided", "decided", "accepted", "rejected", "corrected"] = "all"
    side: Literal["left", "right"] | None = None
    reason: Annotated[str, Field(max_length=400)] | None = None
    low: Annotated[float, Field(allow_inf_nan=False)] | None = None  # smallest loss
    high: Annotated[float, Field(allow_inf_nan=False)] | None = None  # largest loss
    film: Annotated[str, Field(max_length=400)] | None = None  # part of its name


@dataclass(frozen=True, eq=False)
class DetectionsTable:
    """A table of text, with the columns that rows are selected by as arrays."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __len__(self) -> int:
        """Return the number of rows; each is a knee."""
        return len(self.rows)

    def text(self, row: int, column: str) -> str:
        """Return one cell."""
        return self.rows[row][self._index[column]]

    def number(self, row: int, column: str) -> float:
        """Return one cell as a number, NaN if it is none."""
        return _to_number(self.text(row, column))

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Return a column as numbers (rows,), NaN where a cell is none."""
        place = self._index[column]
        return np.array([_to_number(cells[place]) for cells in self.rows], np.float64)

    @cached_property
    def landmarks(self) -> tuple[str, ...]:
        """Names of the landmarks."""
        names = (name for name in self.columns if name not in COLUMNS and name.endswith("_x_px"))
        return tuple(name.removesuffix("_x_px") for name in names)

    @cached_property
    def reasons(self) -> list[tuple[str, ...]]:
        """Reasons to review each row; empty for rows that need no review."""
        review, reason = self._index["review"], self._index["reason"]
        return [split_reasons(cells[review], cells[reason]) for cells in self.rows]

    @cached_property
    def reason_counts(self) -> list[tuple[str, int]]:
        """All reasons and their counts, the most frequent first."""
        return Counter(reason for row in self.reasons for reason in row).most_common()

    @cached_property
    def rows_by_film(self) -> Mapping[str, list[int]]:
        """Row numbers of each film."""
        found: dict[str, list[int]] = {}
        for row in range(len(self)):
            found.setdefault(self.text(row, "film"), []).append(row)
        return found

    @cached_property
    def loss(self) -> NDArray[np.float64]:
        """Loss of every row."""
        return self.numbers("loss")

    def detection(self, row: int) -> Detection:
        """Return the detection of a row."""

        def point(name: str) -> tuple[float, float]:
            return self.number(row, f"{name}_x_px"), self.number(row, f"{name}_y_px")

        values: dict[str, Any] = {name: self.text(row, name) for name in TEXT_FIELDS}
        values |= {name: self.number(row, name) for name in NUMBER_FIELDS}
        spacing = self.number(row, "mm_per_px")
        return Detection(
            **values,
            corners=np.array([self.number(row, name) for name in CORNERS]).reshape(4, 2),
            centre=point("centre"),
            mm_per_px=None if np.isnan(spacing) else spacing,
            landmarks={name: point(name) for name in self.landmarks},
        )

    def select(self, query: RowQuery, states: States) -> RowNumbers:
        """Return the row numbers that match a query, sorted; ties keep the table's order."""
        chosen: RowNumbers = np.flatnonzero(self._matches(query, states))
        if query.sort == "film":
            return chosen
        values = self._energy if query.sort == "energy" else self.loss
        keys = [-np.nan_to_num(values, nan=9.0)[chosen]]  # the worst first
        if query.sort == "doubtful":  # the last key has priority
            keys.append(np.array([not self.reasons[row] for row in chosen], np.float64))
        return chosen[np.lexsort(keys)]

    def _matches(self, query: RowQuery, states: States) -> NDArray[np.bool_]:
        keep = np.ones(len(self), bool)
        if query.shown == "decided":
            keep &= states != UNDECIDED
        elif query.shown != "all":
            keep &= states == STATES.index(query.shown)
        if query.side is not None:
            side = self._index["side"]
            keep &= np.array([cells[side] == query.side for cells in self.rows], bool)
        if query.low is not None:
            keep &= self.loss >= query.low
        if query.high is not None:
            keep &= self.loss <= query.high
        if query.reason is not None:
            keep &= np.array([query.reason in reasons for reasons in self.reasons], bool)
        if query.film:
            part, film = query.film.casefold(), self._index["film"]
            keep &= np.array([part in cells[film].casefold() for cells in self.rows], bool)
        return keep

    @cached_property
    def _energy(self) -> NDArray[np.float64]:
        return self.numbers("energy")

    @cached_property
    def _index(self) -> Mapping[str, int]:
        return {name: k for k, name in enumerate(self.columns)}


def read_detections_table(out: Path) -> DetectionsTable:
    """Read the table of a run.

    Raises:
        SettingsError: There is none, or it was not written by this version of kneematch.
    """
    path = out / FILE_NAME
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            columns, *rows = read_csv(file)
    except (OSError, ValueError, csv.Error) as error:
        raise SettingsError(
            f"{path}: cannot be read ({error}); expected the table of a run that has ended; name "
            "the folder that `kneematch detect` has filled"
        ) from error
    table = DetectionsTable(columns, rows)
    if problem := _header_problem(table) or _row_problem(table):
        raise SettingsError(
            f"{path}: {problem}; expected a table of this version of kneematch; run the films again"
        )
    return table


def _header_problem(table: DetectionsTable) -> str | None:
    columns = table.columns
    for name in (*COLUMNS, *(f"{landmark}_y_px" for landmark in table.landmarks)):
        if name not in columns:
            return f"no column {name!r}"
    repeated = [name for name, count in Counter(columns).items() if count > 1]
    return f"column {repeated[0]!r} occurs twice" if repeated else None


def _row_problem(table: DetectionsTable) -> str | None:
    """Return what is wrong with the first faulty row; an empty energy, loss or landmark is fine."""
    for number, cells in enumerate(table.rows, 1):
        if len(cells) != len(table.columns):
            return f"row {number} has {len(cells)} cells and the header {len(table.columns)}"
        if table.text(number - 1, "side") not in SIDES:
            return f"row {number}: side is {table.text(number - 1, 'side')!r}"
    for name in (*POSITION, *LENGTHS):
        values = table.numbers(name)
        faulty = np.flatnonzero(~np.isfinite(values) | ((name in LENGTHS) & (values <= 0)))
        if faulty.size:
            return f"row {faulty[0] + 1}: {name} is {table.text(int(faulty[0]), name)!r}"
    return None


def _to_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
