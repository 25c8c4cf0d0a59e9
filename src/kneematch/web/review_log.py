"""review.csv: what was decided about each knee; lines are only ever added."""

import io
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import numpy as np
from pydantic import Field

from kneematch.errors import SettingsError
from kneematch.io.atomic import lock
from kneematch.io.csv_text import csv_line, read_csv
from kneematch.web.detections_table import STATES, UNDECIDED, Rows, States

NAME: Final = "review.csv"
UNDONE: Final = "undone"
CORRECTED: Final = "corrected"
AREA: Final = ("centre_x_px", "centre_y_px", "width_px", "rotation_deg")
COLUMNS: Final = ("time", "film", "side", "decision", *AREA, "loss")

Length = Annotated[float, Field(gt=-1e6, lt=1e6, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Area:
    """Where an area lies; its shape is the template's."""

    centre_x_px: Length
    centre_y_px: Length
    width_px: Annotated[float, Field(ge=4, lt=1e6, allow_inf_nan=False)]
    rotation_deg: Annotated[float, Field(ge=-360, le=360, allow_inf_nan=False)]  # clockwise


@dataclass(frozen=True, slots=True)
class Decision:
    """About one row: accepted or rejected as found, or corrected."""

    row: int
    what: str
    area: Area
    loss: float | None


class Decisions:
    """What is decided, in memory and on the disk."""

    def __init__(self, path: Path, rows: Rows) -> None:
        """Open the file of earlier sessions, or begin one.

        A last line that a crash has torn is cut off. What was decided about areas that are no
        longer there, since the run was made anew, does not count.
        """
        self.states: States = np.zeros(len(rows), np.int8)
        self._rows = rows
        self._made: list[int] = []  # rows, in order; what was undone is gone
        self._of_row: dict[int, list[Decision]] = {}
        self._one = threading.Lock()
        self._file: BinaryIO = path.open("a+b")
        try:
            if not lock(self._file):
                raise SettingsError(
                    f"{path}: another review is writing to it; expected to be the only one; end it "
                    "first"
                )
            self._begin(path)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    @property
    def last(self) -> int | None:
        """The row that was decided last."""
        return self._made[-1] if self._made else None

    def of(self, row: int) -> Decision | None:
        """What holds for a row."""
        return None if self.states[row] == UNDECIDED else self._of_row[row][-1]

    def add(self, decision: Decision) -> None:
        """Decide; on the disk before it returns."""
        with self._one:
            self._write(decision, decision.what)
            self._enter(decision)

    def undo(self) -> int | None:
        """Take back what was decided last; return its row, or None if nothing is left."""
        with self._one:
            if not self._made:
                return None
            row = self._made[-1]
            self._write(self._of_row[row][-1], UNDONE)
            self._take_back()
            return row

    def counts(self) -> dict[str, int]:
        """How many rows are in each state."""
        found = np.bincount(self.states, minlength=len(STATES)).tolist()
        return dict(zip(STATES, found, strict=True))

    def _enter(self, decision: Decision) -> None:
        self._made.append(decision.row)
        self._of_row.setdefault(decision.row, []).append(decision)
        self._set_state(decision.row)

    def _take_back(self) -> None:
        row = self._made.pop()
        self._of_row[row].pop()
        self._set_state(row)

    def _set_state(self, row: int) -> None:
        """That of the last decision, if it is about the area that is there now."""
        last = self._of_row[row][-1] if self._of_row[row] else None
        holds = last and (last.what == CORRECTED or last.area == area_of(self._rows, row))
        self.states[row] = STATES.index(last.what) if last and holds else UNDECIDED

    def _write(self, decision: Decision, what: str) -> None:
        area = decision.area
        now = datetime.now(UTC).isoformat(timespec="seconds")
        names = (self._rows.text(decision.row, name) for name in ("film", "side"))
        numbers = [f"{value:.3f}" for value in (area.centre_x_px, area.centre_y_px, area.width_px)]
        loss = "" if decision.loss is None else f"{decision.loss:.6f}"
        _append(self._file, [now, *names, what, *numbers, f"{area.rotation_deg:.4f}", loss])

    def _begin(self, path: Path) -> None:
        """Read what is there; make it end where its last whole line ends."""
        content = path.read_bytes()
        lines = list(_whole_lines(content))
        whole = sum(map(len, lines))
        if whole < len(content):
            self._file.truncate(whole)
        if not lines:
            _append(self._file, COLUMNS)
            return
        read = [row for line in lines for row in read_csv([_decoded(line)])]
        if tuple(read[0]) != COLUMNS:
            raise SettingsError(
                f"{path}: its columns are {', '.join(read[0])}; expected {', '.join(COLUMNS)}; "
                "move the file away"
            )
        self._replay(read[1:])

    def _replay(self, lines: Sequence[Sequence[str]]) -> None:
        numbers = {
            (self._rows.text(row, "film"), self._rows.text(row, "side")): row
            for row in range(len(self._rows))
        }
        for line in lines:
            told = dict(zip(COLUMNS, line, strict=False))
            row = numbers.get((told.get("film", ""), told.get("side", "")))
            if row is None or len(line) != len(COLUMNS):
                continue
            if told["decision"] == UNDONE and self.last == row:
                self._take_back()
            elif told["decision"] in STATES[1:] and (decision := _decision(row, told)):
                self._enter(decision)


def area_of(rows: Rows, row: int) -> Area:
    """Where a row's area was found."""
    return Area(*(rows.number(row, name) for name in AREA))


def _decision(row: int, told: dict[str, str]) -> Decision | None:
    try:
        area = Area(*(float(told[name]) for name in AREA))
        return Decision(row, told["decision"], area, float(told["loss"]) if told["loss"] else None)
    except ValueError:
        return None


def _whole_lines(content: bytes) -> Iterator[bytes]:
    """Lines with their end; a quoted name may hold ends of lines, too."""
    line = b""
    for part in io.BytesIO(content):
        line += part
        if line.endswith(b"\n") and line.count(b'"') % 2 == 0:
            yield line
            line = b""


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")


def _append(file: BinaryIO, cells: Sequence[str]) -> None:
    """Add a line, and wait until it is on the disk."""
    file.write(csv_line(cells).encode("utf-8", "surrogateescape"))
    file.flush()
    os.fsync(file.fileno())
