"""The journal of a run: a line for every film, on disk as soon as its batch is done.

JSON lines that are only appended survive a power cut and work on network disks, where databases
with locks do not.
"""

import json
import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from kneematch.detection.detection import Detection
from kneematch.errors import SettingsError
from kneematch.io.atomic import lock, write_aside
from kneematch.review.log import REJECTED

FORMAT: Final = "kneematch-journal/1"
NOT_DONE: Final = -1
OK, NO_KNEE, FAILED = "ok", "no_knee", "failed"  # status of a film

Fingerprint = Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The detections on one film of a run, or why there are none."""

    index: int  # in the list of films
    film: str
    size: tuple[int, int] | None = None  # (height, width) in pixels
    detections: tuple[Detection, ...] = ()
    failure: str | None = None
    no_knee: bool = False  # the film could be read, and `failure` says that it shows no knee

    @property
    def status(self) -> str:
        """OK, NO_KNEE or FAILED."""
        return OK if self.failure is None else NO_KNEE if self.no_knee else FAILED

    @property
    def knees(self) -> tuple[Detection, ...]:
        """The detections that a reviewer did not reject."""
        return tuple(knee for knee in self.detections if knee.decision != REJECTED)

    def to_line(self) -> bytes:
        """Return one line of ASCII: numbers exact, names that are not UTF-8 escaped."""
        plain: dict[str, object] = {"index": self.index, "film": self.film, "status": self.status}
        if self.failure is not None:
            plain["failure"] = self.failure
        else:
            plain["size"] = self.size
            plain["knees"] = [found.to_dict() for found in self.detections]
        return json.dumps(plain).encode("ascii") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "Row":
        """Return the row of a line.

        Raises:
            ValueError: the line is damaged.
        """
        try:
            plain = json.loads(line)
            if "failure" in plain:
                no_knee = plain.get("status") == NO_KNEE
                return cls(
                    int(plain["index"]),
                    plain["film"],
                    failure=str(plain["failure"]),
                    no_knee=no_knee,
                )
            height, width = plain["size"]
            knees = tuple(Detection.from_dict(found) for found in plain["knees"])
            return cls(int(plain["index"]), plain["film"], (height, width), knees)
        except (KeyError, TypeError, SettingsError, RecursionError, OverflowError) as error:
            raise ValueError(f"a damaged line of a journal ({error})") from error


class Journal:
    """An append-only file; its first line holds the settings of the run."""

    def __init__(self, path: Path, count: int, revise: Callable[[Row], Row] | None = None) -> None:
        """Open the journal of a run of `count` films; damaged lines are done again.

        Args:
            path: the journal.
            count: number of films.
            revise: returns a row as a reviewer left it; None where nothing was reviewed.

        Raises:
            SettingsError: another run has it open.
        """
        self.path, self.count, self.revise = path, count, revise
        self._offsets = array("q", [NOT_DONE]) * count  # of each film's line
        self._file: BinaryIO = path.open("r+b")
        try:
            if not lock(self._file):
                raise SettingsError(
                    f"{path}: another run is writing to it; expected to be the only one; wait for "
                    "it, or name another folder"
                )
            self.started = float(json.loads(self._file.readline())["started"])
            self._file.truncate(self._scan())
            self._file.seek(0, os.SEEK_END)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def remaining(self) -> list[int]:
        """Return the indices of the films that have no line."""
        return [k for k, offset in enumerate(self._offsets) if offset == NOT_DONE]

    def done(self) -> int:
        """Return how many films have a line."""
        return self.count - self._offsets.count(NOT_DONE)

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows, and wait until they are on disk."""
        start, text = self._file.seek(0, os.SEEK_END), bytearray()
        for row in rows:
            self._offsets[row.index] = start + len(text)
            text += row.to_line()
        self._file.write(text)
        self._file.flush()
        os.fsync(self._file.fileno())

    def rows(self) -> Iterator[Row]:
        """Yield the rows so far as reviewed, in the order of the list of films."""
        rows = self.rows_as_found()
        return rows if self.revise is None else map(self.revise, rows)

    def rows_as_found(self) -> Iterator[Row]:
        """Yield the rows so far as they were found, in the order of the list of films."""
        with self.path.open("rb") as file:  # its own position in the file
            for offset in self._offsets:
                if offset != NOT_DONE:
                    if offset != file.tell():
                        file.seek(offset)
                    yield Row.from_line(file.readline())

    def _scan(self) -> int:
        """Note where each film's line is; return where the last whole line ends."""
        end = offset = self._file.tell()
        for line in self._file:
            offset += len(line)
            if not line.endswith(b"\n"):  # cut off by a kill
                break
            try:
                index = Row.from_line(line).index
            except ValueError:
                index = NOT_DONE
            if 0 <= index < self.count:
                self._offsets[index] = end
            end = offset
        return end


def start_journal(path: Path, settings: Fingerprint) -> None:
    """Create the journal of a new run."""
    # In whole seconds, as some file systems store the times of files.
    first = {"format": FORMAT, "started": int(time.time()), "settings": dict(settings)}
    with write_aside(path) as aside:
        aside.write_bytes(json.dumps(first).encode("ascii") + b"\n")


def check_journal(path: Path, settings: Fingerprint) -> None:
    """Raise SettingsError unless a journal belongs to a run with these settings."""
    with path.open("rb") as file:
        line = file.readline()
    try:
        first = json.loads(line)
        found = first["settings"] if first["format"] == FORMAT else None
        float(first["started"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        found = None
    if not isinstance(found, dict):
        raise SettingsError(
            f"{path}: not a journal of this version; expected {FORMAT} in its first line; start "
            "over with --force, or name another folder"
        )
    differences = [
        f"{name} was {_short(found.get(name))} and is {_short(settings.get(name))}"
        for name in {**found, **settings}
        if found.get(name) != settings.get(name)
    ]
    if differences:
        raise SettingsError(
            f"{path}: {', '.join(differences)}; expected the settings that the run began with; "
            "resume with those, start over with --force, or name another folder"
        )


def _short(value: object) -> str:
    """Return a setting, or the beginning of its hash."""
    return "not set" if value is None else str(value)[:24]
