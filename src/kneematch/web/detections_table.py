"""The rows of a run's detections.csv: found, filtered and sorted."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kneematch.detection.detection import Detection
from kneematch.errors import SettingsError
from kneematch.export.tables import COLUMNS, CORNERS
from kneematch.io.csv_text import read_csv

TABLE: Final = "detections.csv"
CALM: Final = ("", "no")  # what `review` says of a knee that nobody need look at
UNSTATED: Final = "not stated"
STATES: Final = ("undecided", "accepted", "rejected", "corrected")  # by number
UNDECIDED: Final = 0

Sort = Literal["doubtful", "loss", "energy", "film"]
Shown = Literal["all", "undecided", "decided", "accepted", "rejected", "corrected"]
States = NDArray[np.int8]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Query:
    """Which rows, in which order, as the page asks for them."""

    sort: Sort = "doubtful"
    shown: Shown = "all"
    side: Literal["left", "right"] | None = None
    reason: Annotated[str, Field(max_length=400)] | None = None
    low: Annotated[float, Field(allow_inf_nan=False)] | None = None  # of the loss
    high: Annotated[float, Field(allow_inf_nan=False)] | None = None
    film: Annotated[str, Field(max_length=400)] | None = None  # a part of its name


@dataclass(frozen=True, eq=False)
class Rows:
    """A table as text, and what is sorted by as numbers."""

    columns: Sequence[str]
    cells: Sequence[Sequence[str]]

    def __len__(self) -> int:
        """How many knees."""
        return len(self.cells)

    def text(self, row: int, column: str) -> str:
        """One cell."""
        return self.cells[row][self._place[column]]

    def number(self, row: int, column: str) -> float:
        """One cell; nothing is NaN."""
        return _number(self.text(row, column))

    @cached_property
    def landmarks(self) -> tuple[str, ...]:
        """Their names."""
        named = [name for name in self.columns if name not in COLUMNS and name.endswith("_x_px")]
        return tuple(name.removesuffix("_x_px") for name in named)

    @cached_property
    def reasons(self) -> list[tuple[str, ...]]:
        """Why to look at each row; nothing where nobody need."""
        return [self._reasons(row) for row in range(len(self))]

    @cached_property
    def frequent_reasons(self) -> list[tuple[str, int]]:
        """All reasons, the most frequent first."""
        return Counter(reason for row in self.reasons for reason in row).most_common()

    @cached_property
    def by_film(self) -> Mapping[str, list[int]]:
        """The rows of each film."""
        found: dict[str, list[int]] = {}
        for row, cells in enumerate(self.cells):
            found.setdefault(cells[self._place["film"]], []).append(row)
        return found

    def detection(self, row: int) -> Detection:
        """The knee of a row."""
        corners = [self.number(row, name) for name in CORNERS]
        spacing = self.number(row, "mm_per_px")
        return Detection(
            side=self.text(row, "side"),
            laterality=self.text(row, "laterality"),
            energy=self.number(row, "energy"),
            loss=self.number(row, "loss"),
            polarity=self.text(row, "polarity"),
            method=self.text(row, "method"),
            corners=np.array(corners).reshape(4, 2),
            centre=(self.number(row, "centre_x_px"), self.number(row, "centre_y_px")),
            width_px=self.number(row, "width_px"),
            height_px=self.number(row, "height_px"),
            rotation_deg=self.number(row, "rotation_deg"),
            mm_per_px=None if np.isnan(spacing) else spacing,
            landmarks={
                name: (self.number(row, f"{name}_x_px"), self.number(row, f"{name}_y_px"))
                for name in self.landmarks
            },
        )

    def ordered(self, query: Query, states: States) -> Numbers:
        """The rows that are asked for, sorted; equals keep the order of the table."""
        chosen: Numbers = np.flatnonzero(self._chosen(query, states))
        if query.sort == "film":
            return chosen
        worst_first = -np.nan_to_num(self._energy if query.sort == "energy" else self.loss, nan=9.0)
        keys = [worst_first[chosen]]
        if query.sort == "doubtful":  # the last key leads
            keys.append(-self._doubtful[chosen].astype(np.float64))
        return chosen[np.lexsort(keys)]

    def _chosen(self, query: Query, states: States) -> NDArray[np.bool_]:
        keep = np.ones(len(self), bool)
        if query.shown == "decided":
            keep &= states != UNDECIDED
        elif query.shown != "all":
            keep &= states == STATES.index(query.shown)
        if query.side is not None:
            keep &= self._sides == query.side
        if query.low is not None:
            keep &= self.loss >= query.low
        if query.high is not None:
            keep &= self.loss <= query.high
        if query.reason is not None:
            keep &= np.array([query.reason in reasons for reasons in self.reasons], bool)
        if query.film:
            part, place = query.film.casefold(), self._place["film"]
            keep &= np.array([part in cells[place].casefold() for cells in self.cells], bool)
        return keep

    @cached_property
    def loss(self) -> NDArray[np.float64]:
        """Of every row."""
        return self._column("loss")

    @cached_property
    def _energy(self) -> NDArray[np.float64]:
        return self._column("energy")

    @cached_property
    def _doubtful(self) -> NDArray[np.bool_]:
        return np.array([bool(reasons) for reasons in self.reasons], bool)

    @cached_property
    def _sides(self) -> NDArray[np.str_]:
        return np.array([cells[self._place["side"]] for cells in self.cells], np.str_)

    @cached_property
    def _place(self) -> Mapping[str, int]:
        return {name: k for k, name in enumerate(self.columns)}

    def _column(self, name: str) -> NDArray[np.float64]:
        return np.array([_number(cells[self._place[name]]) for cells in self.cells], np.float64)

    def _reasons(self, row: int) -> tuple[str, ...]:
        if self.text(row, "review") in CALM:
            return ()
        parts = (part.strip() for part in self.text(row, "reason").split(";"))
        return tuple(part for part in parts if part) or (UNSTATED,)


def load_rows(out: Path) -> Rows:
    """Read the table of a run.

    Raises:
        SettingsError: there is none, or it is not one of kneematch.
    """
    path = out / TABLE
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            columns, *cells = read_csv(file)
    except (OSError, ValueError, csv.Error) as error:
        raise SettingsError(
            f"{path}: cannot be read ({error}); expected the table of a run that has ended; name "
            "the folder that `kneematch detect` has filled"
        ) from error
    missing = [name for name in COLUMNS if name not in columns]
    uneven = any(len(row) != len(columns) for row in cells)
    if missing or uneven:
        found = f"no column {missing[0]}" if missing else "rows of different lengths"
        raise SettingsError(
            f"{path}: {found}; expected a table of this version of kneematch; run the films again"
        )
    return Rows(columns, cells)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
