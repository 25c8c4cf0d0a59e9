"""Turn files, folders, patterns and lists into a list of films, and select some of them."""

import csv
import glob
import io
import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Final, NoReturn

from kneematch.errors import FilmError, SettingsError, Unreadable
from kneematch.films.csv_text import read_csv
from kneematch.films.files import READERS, read_text_bytes
from kneematch.films.radiograph import silent
from kneematch.films.read import is_dicom, read_header
from kneematch.films.run_folder import FOLDERS, holds_run

logger = logging.getLogger("kneematch")

FILM_SUFFIXES: Final = (".dcm", ".dicom", ".ima", ".png", ".jpg", ".jpeg", ".tif", ".tiff")
IMAGE_STARTS: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*")
IMAGE_START_BYTES: Final = 8
INDEX: Final = "DICOMDIR"  # the table of contents of a medium
STDIN: Final = "-"
ANY_FOLDERS: Final = r"(^|/)\*\*(/+|$)"  # "**" between slashes, as in a/**/b.dcm
LIST_SIGN: Final = "@"
CSV_SUFFIX, TEXT_SUFFIX = ".csv", ".txt"
PATH_COLUMNS: Final = ("film", "path", "file", "filename")

Names = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def find_films(named: Names, *, leave_out: Sequence[Path] = ()) -> list[str]:
    """Return the named films, each once, in the order named; inside a folder, sorted.

    Args:
        named: files, folders, patterns such as `films/*.dcm`, lists (`@list.txt`: a path a line;
            `table.csv`: a column of paths) and `-` for a list on stdin.
        leave_out: folders to skip, even if they lie inside one that is named. Folders inside a
            named one that hold results of `kneematch detect` are skipped, too.

    Raises:
        SettingsError: a folder, pattern or list has no films. Files are not opened: a missing one
            is reported as failed when it is read.
    """
    films: dict[str, str] = {}  # by absolute path
    for name in [named] if isinstance(named, str | os.PathLike) else named:
        for path in _expand(os.fspath(name)):
            # os.path bears names that are too long; whether a file is a film is seen on reading.
            inside = _in_folder(path, leave_out) if os.path.isdir(path) else [path]  # noqa: PTH112
            for film in inside:
                films.setdefault(os.path.normpath(Path(film).absolute()), film)
    if not films:
        raise SettingsError("No films were named.")
    return list(films.values())


def select_films(
    named: Names,
    *,
    series: str | None = None,
    limit: int | None = None,
    part: tuple[int, int] = (0, 1),
    leave_out: Sequence[Path] = (),
) -> list[str]:
    """Find films as `find_films` does, and select some of them.

    Args:
        series: only DICOM files whose SeriesDescription contains this.
        limit: only the first films.
        part: (k, n): every n-th of these from number k on. Shards are interleaved, since films of
            one origin, and so of one size, often stand together.

    Raises:
        SettingsError: nothing is left.
    """
    films = find_films(named, leave_out=leave_out)
    if series is not None:
        inside = in_series(films, series)
        if not inside:
            raise SettingsError(
                f"None of {len(films)} films has {series!r} in its SeriesDescription (--series). "
                "`kneematch info` prints what the films have."
            )
        logger.info("%d of %d films are of other series", len(films) - len(inside), len(films))
        films = inside
    chosen = films[:limit]
    first, count = part
    if len(chosen) <= first:
        raise SettingsError(f"--num-parts {count} is more than the number of films, {len(chosen)}.")
    return chosen[first::count]


def common_folder(films: Collection[str]) -> str:
    """Return the beginning that the paths of all films share, up to a slash; "" for no films."""
    # Letter by letter, what the first and the last path share, all share.
    prefix = os.path.commonprefix([min(films), max(films)]) if films else ""  # noqa: RUF071
    return prefix[: max(map(prefix.rfind, "/\\")) + 1]


def in_series(films: Sequence[str], text: str) -> list[str]:
    """Return the DICOM films whose SeriesDescription contains a text, ignoring case.

    A film that cannot be opened is kept, so that it is reported as failed and not passed over.
    """
    from kneematch.films.dicom import header_text  # importing pydicom takes 0.1 s

    def belongs(film: str) -> bool:
        try:
            header = read_header(film, "SeriesDescription")
        except Unreadable:
            return True
        except FilmError:
            return False
        stated = None if header is None else header_text(header, "SeriesDescription")
        return header is not None and text.casefold() in (stated or "").casefold()

    # `read_header` sets this, too, but threads share it: it is reset when all of them have ended.
    with silent(), ThreadPoolExecutor(READERS) as readers:
        return list(compress(films, readers.map(belongs, films)))


def _expand(name: str) -> list[str]:
    """Return the files and folders that one argument names."""
    path = Path(name)
    if not name:
        raise SettingsError("A film's name is empty.")
    if name == STDIN:
        stdin = getattr(sys.stdin, "buffer", None)  # None if it is closed, or in a notebook
        if stdin is None:
            raise SettingsError("There is no stdin to read a list of films from (-).")
        return _lines(stdin.read(), path)
    if name.startswith(LIST_SIGN) and not os.path.lexists(path):
        return _listed(Path(name[len(LIST_SIGN) :]), _lines)
    is_file = os.path.isfile(path)  # noqa: PTH113
    if is_file and path.suffix.lower() == CSV_SUFFIX:
        return _listed(path, _column)
    if is_file and path.suffix.lower() == TEXT_SUFFIX and not _is_film(path):
        raise SettingsError(f"{name} is a text file. If it lists films, give @{name}")
    if not glob.has_magic(name) or os.path.lexists(path):
        return [name]
    names = _outside_runs(_matches(name), name)
    if not names:
        raise SettingsError(f"No films match {name}")
    return names


def _listed(source: Path, parse: Callable[[bytes, Path], list[str]]) -> list[str]:
    """Return the paths of a list, relative to the current folder or else to the list's own."""
    try:
        text = read_text_bytes(source)
    except OSError as error:
        raise SettingsError(f"{source}: The list cannot be read: {error.strerror}.") from error
    names = [(name, source.parent / name) for name in parse(text, source)]
    return [
        str(beside) if not os.path.lexists(name) and os.path.lexists(beside) else name
        for name, beside in names
    ]


def _lines(text: bytes, source: Path) -> list[str]:
    """Return the paths of a text: one per line or, if it has NULs, between NULs."""
    if text.startswith(IMAGE_STARTS) or text[128:132] == b"DICM":
        raise SettingsError(f"{source} is a film, not a list of films. Leave out the @.")
    lines = text.split(b"\0") if b"\0" in text else text.split(b"\n")
    names = [os.fsdecode(line.removesuffix(b"\r")) for line in lines if line.strip()]
    if not names:
        raise SettingsError(f"{source}: The list of films is empty.")
    return names


def _column(text: bytes, source: Path) -> list[str]:
    """Return the paths of a table: its only column, or the one in PATH_COLUMNS."""
    decoded = text.decode("utf-8-sig", "surrogateescape")
    try:
        header, *rows = read_csv(io.StringIO(decoded, newline=""))
    except (ValueError, csv.Error) as error:
        raise SettingsError(f"{source}: This is not a CSV table with a header.") from error
    names = [name.strip().lower() for name in header]
    found = [names.index(name) for name in PATH_COLUMNS if name in names]
    if not found and len(names) > 1:
        raise SettingsError(f"{source}: No column is called {' or '.join(PATH_COLUMNS)}.")
    column = found[0] if found else 0
    paths = [row[column] for row in rows if len(row) > column and row[column].strip()]
    if not paths:
        raise SettingsError(f"{source}: The table has no paths of films.")
    return paths


def _in_folder(folder: str, leave_out: Sequence[Path]) -> list[str]:
    """Return the films of a folder, then of its folders, by name."""
    films = [
        str(path)
        for parent, files in _walk(folder, leave_out)
        for path in (Path(parent, name) for name in sorted(files))
        if not path.name.startswith(".") and path.name != INDEX and _is_film(path)
    ]
    if not films:
        raise SettingsError(f"{folder}: The folder holds no DICOM, PNG, JPEG or TIFF files.")
    return films


def _walk(top: str, leave_out: Sequence[Path] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder and the names of its files, by name; hidden folders are left out.

    So are results of earlier runs and links to folders, which may form circles; this is logged.
    """

    def refuse(error: OSError) -> NoReturn:
        raise SettingsError(f"{error.filename}: The folder cannot be listed: {error.strerror}.")

    links, others = [], [path for path in leave_out if path.exists()]
    for parent, folders, files in os.walk(top, onerror=refuse):
        is_run = holds_run(parent)
        if is_run and parent != top:
            logger.info("%s: skipped, since it holds the results of an earlier run", parent)
            folders.clear()
            continue
        shown = {
            name: Path(parent, name)
            for name in sorted(folders)
            if not name.startswith(".") and not (is_run and name in FOLDERS)
        }
        links += [path for path in shown.values() if path.is_symlink()]
        folders[:] = [name for name, path in shown.items() if not any(map(path.samefile, others))]
        yield parent, files
    if links:
        said = "%s: %d links to folders are not followed, such as %s. Name them to include them."
        logger.warning(said, top, len(links), min(links))


def _matches(pattern: str) -> set[str]:
    """Return the files and folders that match a pattern, named as the pattern is.

    Unlike that of `glob`, `**` does not enter links to folders: circles of links would name the
    same films again and again. At the end of a pattern, `**` means the folder before it.
    """
    any_folders = re.search(ANY_FOLDERS, pattern)
    if any_folders is None:
        return set(glob.glob(pattern))  # noqa: PTH207 - keeps the name as given
    head, tail = pattern[: any_folders.end(1)], pattern[any_folders.end() :]
    roots = glob.glob(head) if head else [os.curdir]  # noqa: PTH207
    if not tail:
        return set(roots)
    found: set[str] = set()
    for parent, _ in (folder for root in roots for folder in _walk(root)):
        inside = parent if head else parent.removeprefix(os.curdir).lstrip("/")
        found |= _matches(os.path.join(glob.escape(inside), tail))  # noqa: PTH118
    return {path for path in found if not (Path(path).is_symlink() and Path(path).is_dir())}


def _outside_runs(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that are not results of a run, sorted.

    Folders that the pattern names without a wildcard are the user's own choice.
    """
    fixed = [glob.has_magic(part) for part in Path(pattern).parts].index(True)

    @cache
    def is_skipped(folder: Path) -> bool:
        return len(folder.parts) > fixed and holds_run(folder)

    return [name for name in sorted(names) if not any(map(is_skipped, Path(name).parents))]


def _is_film(path: Path) -> bool:
    """Return whether a file's suffix or, failing that, its content is that of a film.

    A file that cannot be opened counts as a film, so that it is reported as failed.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        if path.suffix.lower() in FILM_SUFFIXES:
            return True
        with path.open("rb") as file:
            start = file.read(IMAGE_START_BYTES)
        return start.startswith(IMAGE_STARTS) or (bool(start) and is_dicom(path))
    except (OSError, FilmError):
        return True
