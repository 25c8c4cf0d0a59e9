"""The ledger of a run: what became of each film, on the disk as soon as its batch is done."""

import json
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from kneematch.batch.row import Record, from_line, index_of, to_line
from kneematch.errors import SettingsError
from kneematch.io.atomic import lock, write_aside

NAME: Final = "ledger.jsonl"
FORMAT: Final = "kneematch-ledger/1"
NOT_YET: Final = -1

Fingerprint = Mapping[str, str | int | bool]


class Ledger:
    """A file that only grows, by whole batches; its first line says what the run's settings are.

    Batch k holds the films from k * batch_size on, so the films of a batch, and with them every
    row, are the same however often a run is stopped and resumed.
    """

    def __init__(self, path: Path, count: int, batch_size: int) -> None:
        """Open a ledger of `count` films; what a kill has left of a last batch is cut off."""
        self.path, self.count, self.batch_size = path, count, batch_size
        self._offsets = array("q", [NOT_YET]) * count  # of each film's line
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

    def films(self, batch: int) -> range:
        """The numbers of the films in a batch."""
        start = batch * self.batch_size
        return range(start, min(start + self.batch_size, self.count))

    def batches(self) -> range:
        """The numbers of all batches."""
        return range(-(-self.count // self.batch_size))

    def left(self) -> list[int]:
        """The batches that are not done."""
        return [k for k in self.batches() if self._offsets[self.films(k)[0]] == NOT_YET]

    def done(self) -> int:
        """How many films have a line."""
        return self.count - self._offsets.count(NOT_YET)

    def append(self, records: Iterable[Record]) -> None:
        """Write a whole batch, and wait until it is on the disk."""
        start, text = self._file.seek(0, os.SEEK_END), bytearray()
        for record in records:
            self._offsets[record.index] = start + len(text)
            text += to_line(record)
        self._file.write(text)
        self._file.flush()
        os.fsync(self._file.fileno())

    def records(self) -> Iterator[Record]:
        """What is known, in the order of the list of films."""
        with self.path.open("rb") as file:  # its own place in the file
            for offset in self._offsets:
                if offset != NOT_YET:
                    if offset != file.tell():
                        file.seek(offset)
                    yield from_line(file.readline())

    def _scan(self) -> int:
        """Note where each film's line is; return where the last whole batch ends."""
        whole = self._file.tell()
        waiting: dict[int, int] = {}  # lines of the batch that is being read
        offset = whole
        for line in self._file:
            index = index_of(line)
            if index is None or not self._goes_on(waiting, index):
                break
            waiting[index] = offset
            offset += len(line)
            if len(waiting) == len(self.films(index // self.batch_size)):
                for film, place in waiting.items():
                    self._offsets[film] = place
                waiting, whole = {}, offset
        return whole

    def _goes_on(self, waiting: Iterable[int], index: int) -> bool:
        """Whether a film is of the batch that is being read, or begins one."""
        return index < self.count and all(
            film // self.batch_size == index // self.batch_size for film in waiting
        )


def start_ledger(path: Path, settings: Fingerprint, *, force: bool) -> None:
    """Make the ledger of a new run.

    Raises:
        SettingsError: there is one already, and it is not to be replaced.
    """
    if path.exists() and not force:
        raise SettingsError(
            f"{path}: there is a run in this folder already; expected a new folder; continue it "
            "with --resume, start over with --force, or name another folder"
        )
    # In whole seconds, as some file systems have the times of files.
    first = {"format": FORMAT, "started": int(time.time()), "settings": dict(settings)}
    with write_aside(path) as aside:
        aside.write_bytes(json.dumps(first).encode("ascii") + b"\n")


def check_ledger(path: Path, settings: Fingerprint) -> None:
    """See that a ledger is of a run with these settings.

    Raises:
        SettingsError: it is not, or not a ledger at all.
    """
    with path.open("rb") as file:
        line = file.readline()
    try:
        first = json.loads(line)
        found = first["settings"] if first["format"] == FORMAT else None
    except (ValueError, TypeError, KeyError):
        found = None
    if not isinstance(found, dict):
        raise SettingsError(
            f"{path}: not a ledger of this version; expected {FORMAT} in its first line; start "
            "over with --force, or name another folder"
        )
    names = [name for name in {**found, **settings} if found.get(name) != settings.get(name)]
    if names:
        differences = ", ".join(
            f"{name} was {_short(found.get(name))} and is {_short(settings.get(name))}"
            for name in names
        )
        raise SettingsError(
            f"{path}: {differences}; expected the settings that the run began with; resume with "
            "those, start over with --force, or name another folder"
        )


def _short(value: object) -> str:
    """A setting, or the beginning of its hash."""
    return "not set" if value is None else str(value)[:24]
