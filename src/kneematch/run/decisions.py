"""review.csv: the decisions of a review, appended one line at a time."""

import csv
import json
import logging
import math
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from kneematch.errors import SettingsError
from kneematch.films.csv_text import csv_line, restore
from kneematch.films.files import lock, write_file
from kneematch.films.radiograph import LATERALITIES
from kneematch.knee.detection import DEGREE, PIXEL
from kneematch.knee.outlines import Outlines
from kneematch.paper.split import SIDES

FILE_NAME: Final = "review.csv"
ACCEPTED, REJECTED, CORRECTED = DECISIONS = ("accepted", "rejected", "corrected")
UNDONE: Final = "undone"
UNKNOWN: Final = "unknown"  # in the file: the reviewer says that the patient's side is not known
AREA_COLUMNS: Final = ("centre_x_px", "centre_y_px", "width_px", "rotation_deg")
OLD_COLUMNS: Final = ("time", "film", "side", "decision", *AREA_COLUMNS, "loss")  # of version 0.1
COLUMNS: Final = (*OLD_COLUMNS, "laterality", "landmarks", "height_px", "outlines")
HEADERS: Final = (COLUMNS, COLUMNS[:-1], OLD_COLUMNS)  # that are read
SMALLEST_PX, LARGEST_PX = 4, 1e6  # width of an area; distance from the film's corner
# Entries start with a time; a film's name may contain line breaks, so not every line is an entry.
ENTRY_START: Final = re.compile(rb"(?<=\n)(?=\d{4}-\d\d-\d\dT)")

logger = logging.getLogger("kneematch")

KneeKey = tuple[str, str]  # film, and half of the picture
Landmarks = Mapping[str, tuple[float, float]]  # points (x, y) by name


@dataclass(frozen=True, slots=True)
class Area:
    """Position of an area in film pixels; its shape is the template's."""

    centre_x_px: float
    centre_y_px: float
    width_px: float
    rotation_deg: float  # clockwise

    def __post_init__(self) -> None:
        """Raise SettingsError unless an area could lie there."""
        near = all(abs(value) < LARGEST_PX for value in astuple(self)[:3])  # false for NaN
        if not (near and self.width_px >= SMALLEST_PX and abs(self.rotation_deg) <= 360):
            raise SettingsError(f"{self}; expected an area on a film; move it there")


@dataclass(frozen=True, slots=True)
class Decision:
    """What a reviewer decided about the knee in one half of a film."""

    film: str
    side: str
    state: str  # one of DECISIONS
    area: Area  # where it was found, or the corrected one
    loss: float | None = None  # at that area; None if it is not known
    laterality: str | None = None  # of a correction, "" for unknown; None keeps the one found
    landmarks: Landmarks | None = None  # of a correction; None moves them with the area
    height_px: float | None = None  # of a knee that was not found, but added
    outlines: Outlines | None = None  # of a correction; None leaves them to the outline network

    def __post_init__(self) -> None:
        """Raise SettingsError for values that no reviewer can have meant."""
        points = [value for point in (self.landmarks or {}).values() for value in point]
        points += [] if self.height_px is None else [self.height_px]
        if (
            self.side not in SIDES
            or self.state not in DECISIONS
            or self.laterality not in (None, "", *LATERALITIES)
            or not all(abs(value) < LARGEST_PX for value in points)
        ):
            raise SettingsError(f"{self}; expected a decision about a knee; decide again")
        if self.outlines is not None:
            check_outlines(self.outlines)

    @property
    def knee(self) -> KneeKey:
        """The knee that it is about."""
        return self.film, self.side


def check_outlines(outlines: Outlines) -> None:
    """Raise SettingsError unless outlines could lie on a film."""
    farthest = max(abs(line).max() for line in (outlines.femur, outlines.tibia))
    if farthest >= LARGEST_PX or outlines.width_px < SMALLEST_PX:
        raise SettingsError(
            f"outlines up to {farthest:.0f} px from the film's corner, of a plateau of "
            f"{outlines.width_px:.1f} px; expected borders on a film; draw them there"
        )


class ReviewLog:
    """The decisions of a review, in memory and in review.csv."""

    def __init__(self, path: Path) -> None:
        """Open the file of earlier sessions, or create one.

        Lines that cannot be read are removed after the file was copied; `warning` and the log say
        so.

        Raises:
            SettingsError: another review has the file open, or it is not a review.csv.
        """
        self._writing = threading.Lock()
        self._file, self._made, self.warning = _open_log(path)
        if self.warning:
            logger.warning("%s", self.warning)
        self.decisions = _latest(self._made)  # those that hold, by knee

    def close(self) -> None:
        """Close the file, so that another review can open it."""
        self._file.close()

    @property
    def last(self) -> Decision | None:
        """The last decision that still counts."""
        return self._made[-1] if self._made else None

    def add(self, decision: Decision) -> None:
        """Record a decision; it is on disk when this returns."""
        with self._writing:
            _append_line(self._file, _cells(decision, decision.state))
            self._made.append(decision)
            self.decisions[decision.knee] = decision

    def undo(self) -> Decision | None:
        """Revoke the last decision and return it, or None if there is none."""
        with self._writing:
            if (last := self.last) is not None:
                _append_line(self._file, _cells(last, UNDONE))
                self._made.pop()
                self.decisions = _latest(self._made)
            return last


def read_decisions(path: Path) -> Mapping[KneeKey, Decision]:
    """Return the decision that holds for each knee; none without a file.

    Raises:
        SettingsError: the file is not a review.csv.
    """
    if not path.exists():
        return {}
    content = path.read_bytes()
    _check_header(path, content)
    return _latest(_parse(content)[1])


def _latest(made: Sequence[Decision]) -> dict[KneeKey, Decision]:
    """Return the last decision about each knee."""
    return {decision.knee: decision for decision in made}


def _open_log(path: Path) -> tuple[BinaryIO, list[Decision], str]:
    """Open the file and lock it; repair it if necessary.

    Returns:
        The file, the decisions that count, and a warning if lines were removed.
    """
    file, warning = _open_locked(path), ""
    try:
        content = path.read_bytes()
        _check_header(path, content)
        lines, made, faulty = _parse(content)
        if faulty:
            warning = _back_up(path, content, faulty)
        if b"".join(lines) != content:
            write_file(path, b"".join(lines))
            file.close()
            file = _open_locked(path)
        if not any(lines):
            _append_line(file, COLUMNS)
    except BaseException:
        file.close()
        raise
    return file, made, warning


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
    headers = [",".join(columns).encode() for columns in HEADERS]
    torn = b"\n" not in content and headers[0].startswith(content)
    if first not in headers and not torn:
        found = ascii(first[:200].decode("utf-8", "replace"))[1:-1].replace(",", ", ")
        raise SettingsError(
            f"{path}: its columns are {found}; expected {', '.join(COLUMNS)}; move the file away"
        )


def _back_up(path: Path, content: bytes, faulty: Sequence[int]) -> str:
    """Copy the file before its unreadable lines are removed; return a warning."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    backup = path.with_name(f"{path.name}.{now}.bak")
    write_file(backup, content)
    shown = ", ".join(map(str, faulty[:5])) + (", ..." if len(faulty) > 5 else "")
    return (
        f"{path}: cannot read line {shown}; expected a decision on each line; all other lines are "
        f"kept, and {backup.name} is the file as it was"
    )


def _parse(content: bytes) -> tuple[list[bytes], list[Decision], list[int]]:
    """Return the readable lines, the decisions not undone, and the lines of unreadable text.

    The lines are those of this version: cells that earlier ones did not write are added.
    """
    kept: list[bytes] = []
    made: list[Decision] = []
    faulty: list[int] = []
    line_number = 1
    written = next((h for h in HEADERS if content.startswith(csv_line(h).encode())), COLUMNS)
    missing = len(COLUMNS) - len(written)
    for text in ENTRY_START.split(content):
        first_line = text[: text.find(b"\n") + 1]  # empty for a line torn by a crash
        readable = first_line if line_number == 1 else b""  # the header
        if readable:
            kept.append(csv_line(COLUMNS).encode())
        for candidate in (text, first_line):
            if not readable and (entry := _parse_entry(candidate, missing)):
                readable, (state, decision) = candidate, entry
                if state != UNDONE:
                    made.append(decision)
                elif made and made[-1].knee == decision.knee:
                    made.pop()
                kept.append(candidate[:-1] + b"," * missing + b"\n")
        if text[len(readable) :].strip():
            faulty.append(line_number + readable.count(b"\n"))
        line_number += text.count(b"\n")
    return kept, made, faulty


def _parse_entry(line: bytes, missing: int) -> tuple[str, Decision] | None:
    """Return state or UNDONE, and the decision; None if a line lacks more than `missing` cells."""
    try:
        (cells,) = csv.reader([line.decode("utf-8", "surrogateescape")], strict=True)
        _, film, side, state, *area, loss, laterality, points, height, outlines = (
            *cells,
            *[""] * missing,
        )
        x, y, width, rotation = map(float, area)
        decision = Decision(
            restore(film),
            side,
            CORRECTED if state == UNDONE else state,
            Area(x, y, width, rotation),
            float(loss) if loss else None,
            "" if laterality == UNKNOWN else laterality or None,
            {name: (float(x), float(y)) for name, (x, y) in dict(json.loads(points)).items()}
            if points
            else None,
            float(height) if height else None,
            Outlines.from_dict(json.loads(outlines)) if outlines else None,
        )
    except (
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        OverflowError,
        csv.Error,
        SettingsError,
    ):
        return None
    whole = line.endswith(b"\n") and math.isfinite(decision.loss or 0.0)
    return (state, decision) if whole else None


def _cells(decision: Decision, state: str) -> list[str]:
    time = datetime.now(UTC).isoformat(timespec="seconds")
    *position, rotation = astuple(decision.area)
    numbers = [*(f"{value:.{PIXEL}f}" for value in position), f"{rotation:.{DEGREE}f}"]
    loss = "" if decision.loss is None else f"{decision.loss:.6f}"
    laterality = UNKNOWN if decision.laterality == "" else decision.laterality or ""
    points = {
        name: [round(x, 3), round(y, 3)] for name, (x, y) in (decision.landmarks or {}).items()
    }
    landmarks = "" if decision.landmarks is None else json.dumps(points)
    height = "" if decision.height_px is None else f"{decision.height_px:.3f}"
    outlines = "" if decision.outlines is None else json.dumps(decision.outlines.to_dict())
    knee = time, decision.film, decision.side, state
    return [*knee, *numbers, loss, laterality, landmarks, height, outlines]


def _append_line(file: BinaryIO, cells: Sequence[str]) -> None:
    """Write a line and wait until it is on disk."""
    file.write(csv_line(cells).encode("utf-8", "surrogateescape"))
    file.flush()
    os.fsync(file.fileno())
