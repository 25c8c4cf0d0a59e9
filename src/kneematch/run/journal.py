"""The journal of a run: a line for every film, on disk as soon as its batch is done.

JSON lines that are only appended survive a power cut and work on network disks, where databases
with locks do not. The first line holds the settings that rows depend on. The others are, in any
order:

- `films`: films and their names among the artifacts, which stay theirs for good;
- a row, as `Row.to_dict` makes it: of several rows of a film, the last one counts;
- `gone`: all films with detections whose files are no longer there;
- `measured`: a row of knees that a reviewer placed, with their measures;
- `made`: hash of the content of a film's artifacts, by kind; 0 while they are made again.
"""

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final, Self

from kneematch.errors import SettingsError
from kneematch.films.files import FILE_MODE, FileVersion, lock
from kneematch.films.run_folder import START
from kneematch.knee.detection import Detection
from kneematch.run.config import Fingerprint, differences
from kneematch.run.film_names import film_names, is_film_name
from kneematch.run.row import Row

FORMAT: Final = "kneematch-journal/1"
NOT_DONE: Final = -1
FILMS_PER_LINE: Final = 1000
DAMAGED: Final = (  # what parsing a damaged line raises
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),
    SettingsError,
)


class Journal:
    """The films of a run, their rows, and what was made of them."""

    revise: Callable[[Row], Row] | None = None  # gives a row as a reviewer left it, if any did
    root: Path = Path()  # folder of films with relative paths

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Open a journal; damaged lines are left out, so that their films are done again.

        Args:
            path: the journal.
            create: make the file if it is not there.

        Raises:
            SettingsError: another run has it open, or it is not a journal.
        """
        self.path = path
        if not create and not path.exists():
            raise SettingsError(
                f"{path}: not there; expected the journal of a run; name the folder that "
                "`kneematch detect` has filled"
            )
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
        self._file: BinaryIO = os.fdopen(os.open(path, flags, FILE_MODE), "r+b")
        try:
            if not lock(self._file):
                raise SettingsError(
                    f"{path}: another run is writing to it; expected to be the only one; wait for "
                    "it, or name another folder"
                )
            self._forget()
            self._read_settings()
            self._file.truncate(self._scan())
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def _forget(self) -> None:
        self.settings: Fingerprint | None = None  # None until the run has begun
        self.films: list[str] = []
        self.names: list[str] = []  # of the films among the artifacts
        self.gone: frozenset[int] = frozenset()  # indices of films whose files are not there
        self._indices: dict[str, int] = {}
        self._lacks_films = False  # whether a line of films is damaged
        self._offsets = array("q")  # of each film's row
        self._versions: list[FileVersion | None] = []
        self._without_knees: set[int] = set()  # indices of films whose rows say why
        self._made: dict[str, array[int]] = {}  # by kind and index: content hash
        self._measured: dict[int, int] = {}  # by index: where the line `measured` begins

    @property
    def count(self) -> int:
        """The number of films."""
        return len(self.films)

    def begin(self, settings: Fingerprint) -> None:
        """Begin a new run; all that is in the journal is dropped."""
        self._forget()
        self.settings = settings
        self._file.truncate(0)
        self._append({"format": FORMAT, "settings": dict(settings)})

    def check(self, settings: Fingerprint) -> None:
        """Raise SettingsError unless the run began with these settings."""
        different = differences(self.settings or {}, settings)
        if different:
            raise SettingsError(
                f"{self.path}: {', '.join(different)}; expected the settings that the run began "
                "with; continue it with those, start over with --force, or name another folder"
            )

    def add(self, films: Sequence[str]) -> list[int]:
        """Return the indices of films; those that are not in the run are added to it.

        Films are the same if their absolute paths are; they keep the name by which they came.
        """
        known = {os.path.abspath(film): k for k, film in enumerate(self.films)}  # noqa: PTH100
        paths = [os.path.abspath(film) for film in films]  # noqa: PTH100 - Path is slower
        new = [film for film, path in zip(films, paths, strict=True) if path not in known]
        names = film_names(new, {name.casefold() for name in self.names})
        for first in range(0, len(new), FILMS_PER_LINE):
            part = slice(first, first + FILMS_PER_LINE)
            self._append({"films": list(zip(new[part], names[part], strict=True))})
        for film, name in zip(new, names, strict=True):
            known[os.path.abspath(film)] = self._place(film, name)  # noqa: PTH100
        return [known[path] for path in paths]

    def is_done(self, index: int) -> bool:
        """Return whether a film has a row."""
        return self._offsets[index] != NOT_DONE

    def version(self, index: int) -> FileVersion | None:
        """Return the version of the film's file that its row was found on."""
        return self._versions[index]

    def done(self) -> int:
        """Return how many films have a row."""
        return self.count - self._offsets.count(NOT_DONE)

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows, and wait until they are on disk."""
        rows = list(rows)
        offsets = self._append(*(row.to_dict() for row in rows))
        for row, offset in zip(rows, offsets, strict=True):
            self._note_row(row.index, row, offset)

    def mark_gone(self, indices: Iterable[int]) -> None:
        """Write down which films with rows are no longer there, if that has changed."""
        gone = frozenset(indices)
        if gone != self.gone:
            self.gone = gone
            self._append({"gone": [self.films[index] for index in sorted(gone)]})

    def made(self, kind: str, index: int) -> int:
        """Return the content hash of a film's artifacts of a kind; 0 if there are none."""
        contents = self._made.get(kind, ())
        return contents[index] if index < len(contents) else 0

    def note_made(self, made: Iterable[tuple[int, Mapping[str, int]]]) -> None:
        """Write down the content hashes of artifacts, by the film's index and by kind."""
        made = list(made)
        for index, contents in made:
            self._set_made(index, contents)
        if made:
            self._append(*({"made": dict(each), "film": self.films[k]} for k, each in made))

    def note_measured(self, row: Row) -> None:
        """Write down the measures of knees that a reviewer placed."""
        (self._measured[row.index],) = self._append({"measured": row.to_dict()})

    def rows(self, indices: Iterable[int] | None = None) -> Iterator[Row]:
        """Yield the rows so far as reviewed: all, in the order of the list of films, or some."""
        for row in self.rows_as_found(indices):
            yield row if self.revise is None else self._measures_added(self.revise(row))

    def _measures_added(self, row: Row) -> Row:
        """Return a reviewed row whose placed knees have the measures that are known of them."""
        if row.index not in self._measured:
            return row
        with self.path.open("rb") as file:
            file.seek(self._measured[row.index])
            measured = Row.from_dict(json.loads(file.readline())["measured"])
        if measured.version != row.version:
            return row
        known = {_position_key(knee): knee for knee in measured.detections}

        def add(knee: Detection) -> Detection:
            same = known.get(_position_key(knee)) if knee.outlines is None else None
            return replace(knee, outlines=same.outlines, measures=same.measures) if same else knee

        return replace(row, detections=tuple(map(add, row.detections)))

    def failures(self) -> Iterator[Row]:
        """Yield the rows, as reviewed, of films without a knee or that could not be used."""
        return (row for row in self.rows(sorted(self._without_knees)) if row.failure is not None)

    def rows_as_found(self, indices: Iterable[int] | None = None) -> Iterator[Row]:
        """Yield the rows so far as they were found; see `rows`."""
        with self.path.open("rb") as file:  # its own position in the file
            for index in range(self.count) if indices is None else indices:
                offset = self._offsets[index]
                if offset != NOT_DONE:
                    if offset != file.tell():
                        file.seek(offset)
                    yield replace(Row.from_dict(json.loads(file.readline())), index=index)

    def _append(self, *objects: Mapping[str, object]) -> list[int]:
        """Write JSON objects, a line of ASCII each; return where they begin once they are on disk.

        Nothing stays behind in a buffer. Without locks another run may have written in between.
        """
        lines = [json.dumps(each).encode("ascii") + b"\n" for each in objects]
        try:
            file, rest = self._file.fileno(), memoryview(b"".join(lines))
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
            end = os.lseek(file, 0, os.SEEK_CUR)
        except OSError as error:
            error.filename = str(self.path)
            raise
        sizes = [len(line) for line in lines]
        return [end - sum(sizes[k:]) for k in range(len(sizes))]

    def _place(self, film: str, name: str) -> int:
        """Return the index of a film, which is added unless it is there."""
        index = self._indices.setdefault(film, len(self.films))
        if index == len(self.films):
            self.films.append(film)
            self.names.append(name)
            self._offsets.append(NOT_DONE)
            self._versions.append(None)
        return index

    def _set_made(self, index: int, contents: Mapping[str, int]) -> None:
        for kind, content in contents.items():
            by_index = self._made.setdefault(kind, array("Q"))
            by_index.extend([0] * (index + 1 - len(by_index)))
            by_index[index] = content

    def _read_settings(self) -> None:
        """Read the first line; without a whole one, the run has not begun."""
        self._file.seek(0)
        line = self._file.readline()
        if not line.startswith(START[: len(line)]):
            raise SettingsError(
                f"{self.path}: not a journal of kneematch; expected one, or no file of this name; "
                "name another folder"
            )
        if line.endswith(b"\n"):
            try:
                first = json.loads(line)
                self.settings = dict(first["settings"]) if first["format"] == FORMAT else {}
            except (ValueError, TypeError, KeyError, RecursionError):
                self.settings = {}

    def _scan(self) -> int:
        """Read all lines; return where the last whole one ends."""
        end = offset = self._file.tell() if self.settings is not None else 0
        for line in self._file if self.settings is not None else ():
            offset += len(line)
            if not line.endswith(b"\n"):  # cut off by a kill
                break
            try:
                self._take(line, end)
            except DAMAGED:  # what the line was about is done again
                self._lacks_films |= b'"films"' in line
            end = offset
        return end

    def _take(self, line: bytes, offset: int) -> None:
        """Store what one line says, which begins at an offset."""
        plain = json.loads(line)
        if "films" in plain:
            for film, name in plain["films"]:
                if not is_film_name(name):
                    raise ValueError("a name that would leave the folder of the artifacts")
                self._place(str(film), name)
        elif "gone" in plain:
            self.gone = frozenset(self._indices[film] for film in plain["gone"])
        elif "measured" in plain:
            row = Row.from_dict(plain["measured"])
            self._measured[self._indices[row.film]] = offset
        elif "made" in plain:
            self._set_made(self._indices[plain["film"]], plain["made"])
        else:
            row = Row.from_dict(plain)
            index = self._indices.get(row.film)
            if index is None:
                if not self._lacks_films:
                    raise ValueError("a row of an unknown film")
                (name,) = film_names([row.film], {name.casefold() for name in self.names})
                index = self._place(row.film, name)
            self._note_row(index, row, offset)

    def _note_row(self, index: int, row: Row, offset: int) -> None:
        self._offsets[index], self._versions[index] = offset, row.version
        if row.failure is None:
            self._without_knees.discard(index)
        else:
            self._without_knees.add(index)


def _position_key(knee: Detection) -> tuple[object, ...]:
    """Return where a knee and its landmarks lie."""
    return knee.side, *knee.corners.ravel().tolist(), *sorted(knee.landmarks.items())
