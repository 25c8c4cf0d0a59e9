"""What the user names, files, folders, patterns and lists, becomes the list of films."""

import csv
import glob
import io
import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from kneematch.errors import FilmError, SettingsError
from kneematch.io.csv_text import read_csv
from kneematch.io.read import is_dicom

logger = logging.getLogger("kneematch")

FILM_SUFFIXES: Final = (".dcm", ".dicom", ".ima", ".png", ".jpg", ".jpeg", ".tif", ".tiff")
IMAGE_STARTS: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*")
IMAGE_START_BYTES: Final = 8
INDEX: Final = "DICOMDIR"  # the table of contents of a medium
STDIN: Final = "-"
LIST_SIGN: Final = "@"
CSV_SUFFIX: Final = ".csv"
PATH_COLUMNS: Final = ("film", "path", "file", "filename")


def find_films(
    named: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    stdin: BinaryIO | None = None,
    leave_out: Sequence[Path] = (),
) -> list[str]:
    """The films that are meant, each once, in the order named; inside a folder, sorted.

    Args:
        named: files, folders, patterns such as `films/*.dcm`, lists (`@list.txt`: a path a line;
            `table.csv`: a column of paths) and `-` for a list on stdin.
        stdin: where `-` is read from.
        leave_out: folders whose files are no films even if they lie in one that is named.

    Raises:
        SettingsError: a folder, pattern or list without films. A file is not looked into: one that
            is missing becomes a film that failed.
    """
    films: dict[str, str] = {}  # by what makes them distinct
    for name in [named] if isinstance(named, str | os.PathLike) else named:
        for film in _meant(os.fspath(name), stdin, leave_out):
            films.setdefault(os.path.normpath(Path(film).absolute()), film)
    if not films:
        raise SettingsError("no films; expected files, folders or lists of them; name some")
    return list(films.values())


def select_films(
    named: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    series: str | None = None,
    limit: int | None = None,
    part: tuple[int, int] = (0, 1),
    leave_out: Sequence[Path] = (),
) -> list[str]:
    """Find films, and select some of them.

    Args:
        named: as `find_films` takes them; `-` is read from the standard input.
        series: only DICOM files whose SeriesDescription contains this.
        limit: only the first films.
        part: (k, n): of these, every n-th from number k on. Shards are interleaved, since films of
            one origin, and so of one size, often stand together.
        leave_out: folders whose files are not films.

    Raises:
        SettingsError: nothing is left.
    """
    films = find_films(named, stdin=sys.stdin.buffer, leave_out=leave_out)
    if series is not None:
        from kneematch.io.series import in_series

        inside = list(in_series(films, series))
        if not inside:
            raise SettingsError(
                f"--series {series}: none of {len(films)} films; expected DICOM with this in its "
                "SeriesDescription; see what `kneematch info` prints for them"
            )
        logger.info("%d of %d films are of other series", len(films) - len(inside), len(films))
        films = inside
    chosen = films[:limit]
    first, count = part
    if len(chosen) <= first:
        raise SettingsError(
            f"--num-parts {count} for {len(chosen)} films; expected at least a film "
            "a part; ask for fewer parts"
        )
    return chosen[first::count]


def _meant(name: str, stdin: BinaryIO | None, leave_out: Sequence[Path]) -> Iterator[str]:
    """The films that one argument means."""
    path = Path(name)
    if name == STDIN:
        if stdin is None:
            raise SettingsError("-: no stdin; expected a list of films there; name files instead")
        yield from _listed(stdin.read(), STDIN, Path(), leave_out)
    elif name.startswith(LIST_SIGN) and not path.exists():
        source = Path(name[len(LIST_SIGN) :])
        yield from _listed(_bytes(source), str(source), source.parent, leave_out)
    elif path.suffix.lower() == CSV_SUFFIX and path.is_file():
        for entry in _column(_bytes(path), path):
            yield from _file_or_folder(_located(entry, path.parent), leave_out)
    elif glob.has_magic(name) and not os.path.lexists(path):
        yield from _matching(name, leave_out)
    else:
        yield from _file_or_folder(name, leave_out)


def _matching(pattern: str, leave_out: Sequence[Path]) -> Iterator[str]:
    names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - keeps the name as given
    if not names:
        raise SettingsError(f"{pattern}: nothing matches; expected films; check the pattern")
    for name in names:
        yield from _file_or_folder(name, leave_out)


def _listed(text: bytes, source: str, folder: Path, leave_out: Sequence[Path]) -> Iterator[str]:
    """The films of a list: a path a line or, where a NUL is found, from NUL to NUL."""
    lines = text.split(b"\0") if b"\0" in text else text.split(b"\n")
    names = [os.fsdecode(line.removesuffix(b"\r")) for line in lines]
    names = [name for name in names if name.strip()]
    if not names:
        raise SettingsError(f"{source}: an empty list; expected a path a line; check it")
    for name in names:
        yield from _file_or_folder(_located(name, folder), leave_out)


def _column(text: bytes, path: Path) -> Iterator[str]:
    """The paths of a table: its only column, or the one that is named as such."""
    decoded = text.decode("utf-8-sig", "surrogateescape")
    try:
        header, *rows = read_csv(io.StringIO(decoded, newline=""))
    except (ValueError, csv.Error) as error:
        raise SettingsError(
            f"{path}: not a table ({error}); expected CSV with a header; check the file"
        ) from error
    names = [name.strip().lower() for name in header]
    found = [names.index(name) for name in PATH_COLUMNS if name in names]
    if not found and len(names) > 1:
        raise SettingsError(
            f"{path}: columns {', '.join(names)}; expected one called {', '.join(PATH_COLUMNS)}; "
            "rename the column of paths"
        )
    column = found[0] if found else 0
    paths = [row[column] for row in rows if len(row) > column and row[column].strip()]
    if not paths:
        raise SettingsError(f"{path}: no paths in it; expected a path a row; check the table")
    yield from paths


def _located(name: str, folder: Path) -> str:
    """A listed path, relative to the current folder or else to the folder of its list."""
    beside = folder / name
    return str(beside) if not os.path.lexists(name) and os.path.lexists(beside) else name


def _file_or_folder(name: str, leave_out: Sequence[Path]) -> Iterator[str]:
    if not Path(name).is_dir():
        yield name  # what it holds, and whether it is there, shows when it is read
        return
    films = _inside(name, leave_out)
    first = next(films, None)
    if first is None:
        raise SettingsError(
            f"{name}: a folder without films; expected DICOM, PNG, JPEG or TIFF in it or in its "
            "folders; check the path"
        )
    yield first
    yield from films


def _inside(folder: str, leave_out: Sequence[Path]) -> Iterator[str]:
    """The films of a folder, then those of its folders, by name; links to folders are not
    followed."""

    def refuse(error: OSError) -> None:
        raise SettingsError(
            f"{error.filename}: {error.strerror}; expected a folder that can be listed; check its "
            "permissions, or leave it out"
        ) from error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and not _is_any(Path(parent, name), leave_out)
        )
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(".") and name != INDEX and _is_film(path):
                yield str(path)


def _is_any(folder: Path, others: Sequence[Path]) -> bool:
    return any(other.exists() and folder.samefile(other) for other in others)


def _is_film(path: Path) -> bool:
    """Whether a file's suffix or, failing that, its content is that of a film.

    One that cannot be looked into is taken for a film, so that it is not lost in silence.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            return False
        if path.suffix.lower() in FILM_SUFFIXES:
            return True
        with path.open("rb") as file:
            start = file.read(IMAGE_START_BYTES)
        return start.startswith(IMAGE_STARTS) or (bool(start) and is_dicom(path))
    except (OSError, FilmError):
        return True


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{path}: {error.strerror}; expected a list of films; check the path"
        ) from error
