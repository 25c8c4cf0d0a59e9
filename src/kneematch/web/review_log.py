"""review.csv: the decisions of a review, appended one line at a time."""

import csv
import logging
import math
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import numpy as np
from pydantic import Field

from kneematch.errors import SettingsError
from kneematch.geometry.split import SIDES
from kneematch.io.atomic import lock, write_private
from kneematch.io.csv_text import csv_line, restore
from kneematch.web.detections_table import STATES, UNDECIDED, DetectionsTable, States

FILE_NAME: Final = "review.csv"
UNDONE: Final = "undone"
CORRECTED: Final = "corrected"
AREA_COLUMNS: Final = ("centre_x_px", "centre_y_px", "width_px", "rotation_deg")
COLUMNS: Final = ("time", "film", "side", "decision", *AREA_COLUMNS, "loss")
# Entries start with a time; a film's name may contain line breaks, so not every line is an entry.
ENTRY_START: Final = re.compile(rb"(?<=\n)(?=\d{4}-\d\d-\d\dT)")

log = logging.getLogger("kneematch")

Entry = tuple[str, str, str, "Area", float | None]  # film, side, state or UNDONE, area, loss
Length = Annotated[float, Field(gt=-1e6, lt=1e6, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Area:
    """Position of an area in film pixels; its shape is the template's."""

    centre_x_px: Length
    centre_y_px: Length
    width_px: Annotated[float, Field(ge=4, lt=1e6, allow_inf_nan=False)]
    rotation_deg: Annotated[float, Field(ge=-360, le=360, allow_inf_nan=False)]  # clockwise


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one row: accepted or rejected as detected, or corrected."""

    row: int
    state: str
    area: Area
    loss: float | None


class ReviewLog:
    """The decisions about the rows of a table, in memory and in review.csv."""

    def __init__(self, path: Path, table: DetectionsTable) -> None:
        """Open the file of earlier sessions, or create one.

        Lines that cannot be read are removed after the file was copied; `warning` and the log say
        so. Decisions about areas that are no longer in the table, after another run, are ignored.

        Raises:
            SettingsError: Another review has the file open, or it is not a review.csv.
        """
        self.states: States = np.zeros(len(table), np.int8)
        self._table = table
        self._latest: dict[int, Decision | None] = {}  # by row
        # Without the undone ones: each decision, and the one before it about the same row.
        self._history: list[tuple[Decision, Decision | None]] = []
        self._writing = threading.Lock()
        self._file, entries, self.warning = _open_log(path)
        if self.warning:
            log.warning("%s", self.warning)
        self._replay(entries)

    def close(self) -> None:
        """Close the file, so that another review can open it."""
        self._file.close()

    @property
    def last(self) -> int | None:
        """The row of the last decision."""
        return self._history[-1][0].row if self._history else None

    def get(self, row: int) -> Decision | None:
        """Return the decision that holds for a row."""
        return None if self.states[row] == UNDECIDED else self._latest[row]

    def add(self, decision: Decision) -> None:
        """Record a decision; it is on disk when this returns."""
        with self._writing:
            self._append(decision, decision.state)
            self._apply(decision)

    def undo(self) -> int | None:
        """Revoke the last decision; return its row, or None if there is none."""
        with self._writing:
            if (row := self.last) is not None:
                self._append(self._history[-1][0], UNDONE)
                self._revoke_last()
            return row

    def counts(self) -> dict[str, int]:
        """Return the number of rows in each state."""
        counts = np.bincount(self.states, minlength=len(STATES)).tolist()
        return dict(zip(STATES, counts, strict=True))

    def _apply(self, decision: Decision) -> None:
        self._history.append((decision, self._latest.get(decision.row)))
        self._set_latest(decision.row, decision)

    def _revoke_last(self) -> None:
        last, before = self._history.pop()
        self._set_latest(last.row, before)

    def _set_latest(self, row: int, decision: Decision | None) -> None:
        """Set the decision about a row; it counts if the table has its area, or is corrected."""
        self._latest[row], self.states[row] = decision, UNDECIDED
        if decision is not None and (
            decision.state == CORRECTED or decision.area == area_of_row(self._table, row)
        ):
            self.states[row] = STATES.index(decision.state)

    def _append(self, decision: Decision, state: str) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        film, side = (self._table.text[name][decision.row] for name in ("film", "side"))
        *position, rotation = astuple(decision.area)
        numbers = [*(f"{value:.3f}" for value in position), f"{rotation:.4f}"]
        loss = "" if decision.loss is None else f"{decision.loss:.6f}"
        _append_line(self._file, [time, film, side, state, *numbers, loss])

    def _replay(self, entries: Sequence[Entry]) -> None:
        knees = zip(self._table.text["film"], self._table.text["side"], strict=True)
        rows = {knee: row for row, knee in enumerate(knees)}
        for film, side, state, area, loss in entries:
            row = rows.get((film, side))
            if row is not None and state != UNDONE:
                self._apply(Decision(row, state, area, loss))
            elif row is not None and self.last == row:
                self._revoke_last()


def area_of_row(table: DetectionsTable, row: int) -> Area:
    """Return where the area of a row was detected."""
    return Area(*(float(table.numbers[name][row]) for name in AREA_COLUMNS))


def _open_log(path: Path) -> tuple[BinaryIO, list[Entry], str]:
    """Open the file and lock it; repair it if necessary.

    Returns:
        The file, its entries, and a warning if lines were removed.
    """
    file, warning = _open_locked(path), ""
    try:
        content = path.read_bytes()
        _check_header(path, content)
        lines, entries, faulty = _parse(content)
        if faulty:
            warning = _repair(path, content, lines, faulty)
            file.close()
            file = _open_locked(path)
        if not any(lines):
            _append_line(file, COLUMNS)
    except BaseException:
        file.close()
        raise
    return file, entries, warning


def _open_locked(path: Path) -> BinaryIO:
    while True:
        path.touch(mode=0o600)
        file = path.open("a+b")
        if not lock(file):
            file.close()
            raise SettingsError(
                f"{path}: another review is writing to it; expected to be the only one; end it "
                "first"
            )
        # Another review may have repaired, and so replaced, the file before it was locked here.
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()


def _check_header(path: Path, content: bytes) -> None:
    first = content.split(b"\n", 1)[0].rstrip(b"\r")
    header = ",".join(COLUMNS).encode()
    if first != header and not (b"\n" not in content and header.startswith(content)):
        found = ascii(first[:200].decode("utf-8", "replace"))[1:-1].replace(",", ", ")
        raise SettingsError(
            f"{path}: its columns are {found}; expected {', '.join(COLUMNS)}; move the file away"
        )


def _repair(path: Path, content: bytes, lines: Sequence[bytes], faulty: Sequence[int]) -> str:
    """Copy the file, and replace it by its readable lines; return a warning."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    backup = path.with_name(f"{path.name}.{now}.bak")
    write_private(backup, content)
    write_private(path, b"".join(lines))
    shown = ", ".join(map(str, faulty[:5])) + (", ..." if len(faulty) > 5 else "")
    return (
        f"{path}: cannot read line {shown}; expected a decision on each line; all other lines are "
        f"kept, and {backup.name} is the file as it was"
    )


def _parse(content: bytes) -> tuple[list[bytes], list[Entry], list[int]]:
    """Return the readable lines, their entries, and the line numbers of unreadable text."""
    kept: list[bytes] = []
    entries: list[Entry] = []
    faulty: list[int] = []
    line_number = 1
    for text in ENTRY_START.split(content):
        first_line = text[: text.find(b"\n") + 1]  # empty for a line torn by a crash
        readable = first_line if line_number == 1 else b""  # the header
        for candidate in (text, first_line):
            if not readable and (entry := _parse_entry(candidate)):
                readable = candidate
                entries.append(entry)
        kept.append(readable)
        if text[len(readable) :].strip():
            faulty.append(line_number + readable.count(b"\n"))
        line_number += text.count(b"\n")
    return kept, entries, faulty


def _parse_entry(line: bytes) -> Entry | None:
    """Return the content of a line, or None if it is not whole or not a decision."""
    try:
        (cells,) = csv.reader([line.decode("utf-8", "surrogateescape")], strict=True)
        _, film, side, state, x, y, width, rotation, loss_text = cells
        area = Area(float(x), float(y), float(width), float(rotation))
        loss = float(loss_text) if loss_text else math.nan
    except (ValueError, csv.Error):
        return None
    known = side in SIDES and state in (*STATES[1:], UNDONE)
    if not (line.endswith(b"\n") and known and all(map(math.isfinite, astuple(area)))):
        return None
    return restore(film), side, state, area, None if math.isnan(loss) else loss


def _append_line(file: BinaryIO, cells: Sequence[str]) -> None:
    """Write a line and wait until it is on disk."""
    file.write(csv_line(cells).encode("utf-8", "surrogateescape"))
    file.flush()
    os.fsync(file.fileno())
