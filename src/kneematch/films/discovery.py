"""Turn files, folders, patterns and lists into a list of films, and select some of them."""

import csv
import glob
import io
import logging
import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, NoReturn

from kneematch.errors import FilmError, SettingsError, Unreadable
from kneematch.films.csv_text import read_csv
from kneematch.films.files import READERS
from kneematch.films.limits import read_text_bytes, silent
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


def find_films(
    named: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    leave_out: Sequence[Path] = (),
) -> list[str]:
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
        for film in _films_of(os.fspath(name), leave_out):
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
        named: as `find_films` takes them.
        series: only DICOM files whose SeriesDescription contains this.
        limit: only the first films.
        part: (k, n): of these, every n-th from number k on. Shards are interleaved, since films of
            one origin, and so of one size, often stand together.
        leave_out: folders whose files are not films.

    Raises:
        SettingsError: nothing is left.
    """
    films = find_films(named, leave_out=leave_out)
    if series is not None:
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


def common_folder(films: Collection[str]) -> str:
    """Return the beginning that the paths of all films share, up to a slash; "" for no films."""
    # Of the first and the last path, letter by letter: what these share, all share.
    prefix = os.path.commonprefix([min(films), max(films)]) if films else ""  # noqa: RUF071
    return prefix[: max(map(prefix.rfind, "/\\")) + 1]


def in_series(films: Iterable[str], text: str) -> Iterator[str]:
    """Yield the DICOM films whose SeriesDescription contains a text, ignoring case.

    A film that cannot be opened is kept, so that it is reported as failed and not passed over.
    """
    films = list(films)
    # `read_header` sets this, too, but threads share it: it is reset when all of them have ended.
    with silent(), ThreadPoolExecutor(READERS) as readers:
        belongs = readers.map(partial(_belongs, text.casefold()), films)
        yield from (film for film, inside in zip(films, belongs, strict=True) if inside)


def _belongs(text: str, film: str) -> bool:
    from kneematch.films.dicom_header import header_text  # imports pydicom, which is slow

    try:
        header = read_header(film, "SeriesDescription")
    except Unreadable:
        return True
    except FilmError:
        return False
    return (
        header is not None and text in (header_text(header, "SeriesDescription") or "").casefold()
    )


def _films_of(name: str, leave_out: Sequence[Path]) -> Iterator[str]:
    """Yield the films that one argument names; os.path bears names that are too long."""
    path = Path(name)
    if not name:
        raise SettingsError("an empty name; expected films; check the command")
    if name == STDIN:
        stdin = getattr(sys.stdin, "buffer", None)  # None if it is closed, or in a notebook
        if stdin is None:
            raise SettingsError("-: no stdin; expected a list of films there; name files instead")
        names = _listed(stdin.read(), STDIN, Path())
    elif name.startswith(LIST_SIGN) and not os.path.lexists(path):
        source = Path(name[len(LIST_SIGN) :])
        names = _listed(_bytes(source), str(source), source.parent)
    elif path.suffix.lower() == CSV_SUFFIX and os.path.isfile(path):  # noqa: PTH113
        names = [resolve_listed_path(entry, path.parent) for entry in _column(_bytes(path), path)]
    elif glob.has_magic(name) and not os.path.lexists(path):
        names = _expand(name)
        if not names:
            raise SettingsError(f"{name}: nothing matches; expected films; check the pattern")
    elif path.suffix.lower() == TEXT_SUFFIX and os.path.isfile(path) and not _is_film(path):  # noqa: PTH113
        raise SettingsError(f"{name}: a text; expected films; for a list of films, give @{name}")
    else:
        names = [name]
    for one in names:
        if os.path.isdir(one):  # noqa: PTH112
            yield from _inside(one, leave_out)
        else:
            yield one  # whether it exists and is a film is checked when it is read


def _listed(text: bytes, source: str, folder: Path) -> list[str]:
    """Return the paths of a list: one per line or, if it has NULs, between NULs."""
    if text.startswith(IMAGE_STARTS) or text[128:132] == b"DICM":
        raise SettingsError(f"{source}: a film; expected a list of films; leave the @ out")
    lines = text.split(b"\0") if b"\0" in text else text.split(b"\n")
    names = [os.fsdecode(line.removesuffix(b"\r")) for line in lines]
    names = [resolve_listed_path(name, folder) for name in names if name.strip()]
    if not names:
        raise SettingsError(f"{source}: an empty list; expected a path a line; check it")
    return names


def _column(text: bytes, path: Path) -> list[str]:
    """Return the paths of a table: its only column, or the one in PATH_COLUMNS."""
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
            f"{path}: columns {', '.join(names)[:200]}; expected one called "
            f"{', '.join(PATH_COLUMNS)}; rename the column of paths"
        )
    column = found[0] if found else 0
    paths = [row[column] for row in rows if len(row) > column and row[column].strip()]
    if not paths:
        raise SettingsError(f"{path}: no paths in it; expected a path a row; check the table")
    return paths


def resolve_listed_path(name: str, folder: Path) -> str:
    """Return a listed path, relative to the current folder or else to the folder of its list."""
    beside = folder / name
    return str(beside) if not os.path.lexists(name) and os.path.lexists(beside) else name


def refuse_unlistable(error: OSError) -> NoReturn:
    """Raise SettingsError for a folder that os.walk cannot list."""
    raise SettingsError(
        f"{error.filename}: {error.strerror}; expected a folder that can be listed; check its "
        "permissions, or name the folders beside it instead of the one around it"
    ) from error


def _inside(folder: str, leave_out: Sequence[Path]) -> list[str]:
    """Return the films of a folder, then of its folders, by name.

    Links to folders, which may form circles, are not followed; a warning says so.
    """

    def is_left_out(path: Path) -> bool:
        return any(other.exists() and path.samefile(other) for other in leave_out)

    films, not_entered = list[str](), set[str]()  # the latter are links in the end
    for parent, folders, files in os.walk(folder, onerror=refuse_unlistable):
        not_entered.discard(parent)
        is_run = holds_run(parent)
        if is_run and parent != folder:
            _skip_run(parent)
            folders.clear()
            continue
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and not is_left_out(Path(parent, name))
            and not (is_run and name in FOLDERS)
        )
        not_entered.update(os.path.join(parent, name) for name in folders)  # noqa: PTH118
        paths = [Path(parent, name) for name in sorted(files) if not name.startswith(".")]
        films += [str(path) for path in paths if path.name != INDEX and _is_film(path)]
    _warn_of_links(folder, not_entered)
    if not films:
        raise SettingsError(
            f"{folder}: a folder without films; expected DICOM, PNG, JPEG or TIFF in it or in its "
            "folders; check the path"
        )
    return films


def _warn_of_links(source: str, links: Collection[str]) -> None:
    if links:
        logger.warning(
            "%s: links to folders are not followed (%d, such as %s); name the folders themselves "
            "if their films are wanted",
            source,
            len(links),
            min(links),
        )


def _expand(pattern: str) -> list[str]:
    """Return the files and folders that match a pattern, sorted, without results of a run."""
    links: set[str] = set()
    found = _matches(pattern, links) - links
    _warn_of_links(pattern, links)
    return list(_outside_runs(sorted(found), pattern))


def _matches(pattern: str, links: set[str]) -> set[str]:
    """Return what matches a pattern, named as the pattern is, and add links to folders to `links`.

    `**` does not enter them, as that of `glob` does: circles of links would name the same films
    again and again. At the end of a pattern, `**` means the folder before it.
    """
    any_folders = re.search(ANY_FOLDERS, pattern)
    if any_folders is None:
        return set(glob.glob(pattern))  # noqa: PTH207 - keeps the name as given
    head, tail = pattern[: any_folders.end(1)], pattern[any_folders.end() :]
    roots = glob.glob(head) if head else [os.curdir]  # noqa: PTH207
    if not tail:
        return set(roots)
    found: set[str] = set()
    for root in roots:
        for parent, folders, _ in os.walk(root, onerror=refuse_unlistable):
            folders[:] = [name for name in folders if not name.startswith(".")]
            inside = parent if head else parent.removeprefix(os.curdir).lstrip("/")
            paths = [os.path.join(inside, name) for name in folders]  # noqa: PTH118
            links.update(path for path in paths if os.path.islink(path))  # noqa: PTH114
            found |= _matches(os.path.join(glob.escape(inside), tail), links)  # noqa: PTH118
    return found


def _outside_runs(names: Sequence[str], pattern: str) -> Iterator[str]:
    """Yield the files that match a pattern and are not results of a run.

    Folders that the pattern names without a wildcard are the user's own choice.
    """
    fixed = len(list(takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts)))
    runs: dict[Path, bool] = {}
    for name in names:
        for parent in Path(name).parents:
            if len(parent.parts) > fixed and parent not in runs:
                runs[parent] = holds_run(parent)
                if runs[parent]:
                    _skip_run(parent)
        if not any(runs.get(parent) for parent in Path(name).parents):
            yield name


def _skip_run(folder: str | Path) -> None:
    logger.info("%s: skipped, since it holds the results of an earlier run", folder)


def _is_film(path: Path) -> bool:
    """Return whether a file's suffix or, failing that, its content is that of a film.

    A file that cannot be opened counts as a film, so that it is reported as failed.
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
        return read_text_bytes(path)
    except OSError as error:
        raise SettingsError(
            f"{path}: {error.strerror}; expected a list of films; check the path"
        ) from error
