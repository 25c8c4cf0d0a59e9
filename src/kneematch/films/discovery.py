"""Turn files, folders, patterns and lists into a list of films."""

import glob
import logging
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Final, NoReturn

from kneematch.errors import FilmError, SettingsError, Unreadable
from kneematch.films.files import FOLDERS, READERS, holds_run, read_text_bytes
from kneematch.films.radiograph import silent
from kneematch.films.read import is_dicom, read_header
from kneematch.settings import check_type

logger = logging.getLogger("kneematch")

FILM_SUFFIXES: Final = (
    *(".dcm", ".dicom", ".ima", ".png", ".jpg", ".jpeg", ".tif", ".tiff"),
    *(".bmp", ".webp", ".gif", ".jp2", ".j2k"),
)
IMAGE_STARTS: Final = (
    *(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*"),
    *(b"GIF8", b"\0\0\0\x0cjP  "),
)
# Files that often lie beside films, and that nobody would take for one.
TEXTS: Final = (".csv", ".tsv", ".txt", ".json", ".toml", ".md", ".html", ".xlsx")
MOST_KINDS: Final = 6  # kinds of skipped files that a message names
IMAGE_START_BYTES: Final = 8
INDEX: Final = "DICOMDIR"  # the table of contents of a medium
LIST_SIGN: Final = "@"

Names = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def find_films(
    named: Names, *, series: str | None = None, leave_out: Sequence[Path] = ()
) -> list[str]:
    """Return the named films, each once, in the order named; inside a folder, sorted.

    Args:
        named: files, folders, patterns such as `films/**/*.dcm`, and lists (`@list.txt`: a path a
            line; `@/dev/stdin`).
        series: only DICOM files whose SeriesDescription contains this text, ignoring case.
        leave_out: folders to skip, even if they lie inside one that is named. Folders inside a
            named one that hold results of `kneematch detect` are skipped, too.

    Raises:
        SettingsError: a folder, pattern or list has no films, or no film is of the series. A
            missing file is reported as failed when it is read.
    """
    films: dict[str, str] = {}  # by absolute path
    check_type("films", named, str | os.PathLike[str] | Iterable)
    for name in [named] if isinstance(named, str | os.PathLike) else named:
        check_type("The path of a film", name, str | os.PathLike[str])
        for path in _expand(os.fspath(name)):
            # os.path bears names that are too long; whether a file is a film is seen on reading.
            inside = _in_folder(path, leave_out) if os.path.isdir(path) else [path]  # noqa: PTH112
            for film in inside:
                films.setdefault(os.path.normpath(Path(film).absolute()), film)
    if not films:
        raise SettingsError("No films were named.")
    return list(films.values()) if series is None else _in_series(list(films.values()), series)


def common_folder(films: Collection[str]) -> str:
    """Return the beginning that the paths of all films share, up to a slash; "" for no films."""
    prefix = os.path.commonprefix([*films])  # noqa: RUF071 - up to a slash, whatever the system
    return prefix[: max(map(prefix.rfind, "/\\")) + 1]


def _in_series(films: Sequence[str], text: str) -> list[str]:
    """Return the DICOM films whose SeriesDescription contains a text.

    A film that cannot be opened is kept, so that it is reported as failed and not passed over.
    """
    from kneematch.films.dicom import header_text  # importing pydicom takes 0.1 s

    def belongs(film: str) -> bool:
        try:
            header = read_header(film)
        except Unreadable:
            return True
        except FilmError:
            return False
        stated = None if header is None else header_text(header, "SeriesDescription")
        return header is not None and text.casefold() in (stated or "").casefold()

    # `read_header` sets this, too, but threads share it: it is reset when all of them have ended.
    with silent(), ThreadPoolExecutor(READERS) as readers:
        inside = list(compress(films, readers.map(belongs, films)))
    if not inside:
        raise SettingsError(
            f"None of {len(films)} films has {text!r} in its SeriesDescription (--series). "
            "`kneematch info` prints what the films have."
        )
    if others := len(films) - len(inside):
        logger.info("%d of %d films are of other series", others, len(films))
    return inside


def _expand(name: str) -> list[str]:
    """Return the files and folders that one argument names."""
    if not name:
        raise SettingsError("A film's name is empty.")
    if os.path.lexists(name):
        return [name]
    if name.startswith(LIST_SIGN):
        return _listed(Path(name.removeprefix(LIST_SIGN)))
    return _matches(name) if glob.has_magic(name) else [name]


def _listed(source: Path) -> list[str]:
    """Return the paths of a list: one per line or, if it has NULs, between NULs.

    They are relative to the current folder or else to the list's own.
    """
    try:
        text = read_text_bytes(source)
    except OSError as error:
        raise SettingsError(f"{source}: The list cannot be read: {error.strerror}.") from error
    if text.startswith(IMAGE_STARTS) or text[128:132] == b"DICM":
        raise SettingsError(f"{source} is a film, not a list of films. Leave out the @.")
    lines = text.split(b"\0") if b"\0" in text else text.split(b"\n")
    names = [os.fsdecode(line.removesuffix(b"\r")) for line in lines if line.strip()]
    if not names:
        raise SettingsError(f"{source}: The list of films is empty.")
    beside = [str(source.parent / name) for name in names]
    return [
        other if not os.path.lexists(name) and os.path.lexists(other) else name
        for name, other in zip(names, beside, strict=True)
    ]


def _in_folder(top: str, leave_out: Sequence[Path]) -> list[str]:
    """Return the films of a folder, then of its folders, by name.

    What is hidden, results of earlier runs, and links to folders, which may form circles, are left
    out.
    """

    def refuse(error: OSError) -> NoReturn:
        raise SettingsError(f"{error.filename}: The folder cannot be listed: {error.strerror}.")

    films: list[str] = []
    links: list[Path] = []
    skipped: Counter[str] = Counter()  # files that are no films, by suffix
    others = [path for path in leave_out if path.exists()]
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
        paths = [Path(parent, name) for name in sorted(files) if not name.startswith(".")]
        for path in paths:
            if path.name != INDEX and _is_film(path):
                films.append(str(path))
            elif path.name != INDEX and not is_run and path.suffix.lower() not in TEXTS:
                skipped[_kind(path)] += 1
    if links:
        said = "%s: links to folders are not followed: %d, such as %s. Name them to include them."
        logger.warning(said, top, len(links), min(links))
    kinds = ", ".join(f"{kind} {count}" for kind, count in skipped.most_common(MOST_KINDS))
    if not films:
        others_there = f", only other files ({kinds})" if skipped else ""
        raise SettingsError(f"{top} holds no films{others_there}.")
    if skipped:
        more = ", ..." if len(skipped) > MOST_KINDS else ""
        number = "1 other file" if skipped.total() == 1 else f"{skipped.total():,} other files"
        logger.info("%s: %s skipped (%s%s)", top, number, kinds, more)
    return films


def _kind(path: Path) -> str:
    """Return the suffix of a file without its dot, such as "txt", or "dcm.gz" if compressed."""
    packed = 2 if path.suffix.lower() in (".gz", ".bz2", ".xz") else 1
    return "".join(path.suffixes[-packed:]).lower().removeprefix(".") or "no suffix"


def _matches(pattern: str) -> list[str]:
    """Return the files and folders that match a pattern, sorted.

    Hidden ones, links to folders that `**` finds, which may form circles, and results of a run are
    left out, unless the pattern names their folder without a wildcard.
    """
    parts = Path(pattern).parts
    fixed = [glob.has_magic(part) for part in parts].index(True)

    @cache
    def is_skipped(folder: Path) -> bool:
        return len(folder.parts) > fixed and holds_run(folder)

    def is_wanted(path: Path) -> bool:
        if any(part.startswith(".") for part in path.parts[fixed:]):
            return False
        if "**" in parts and path.is_symlink() and path.is_dir():
            return False
        return not any(map(is_skipped, path.parents))

    found = set(Path(*parts[:fixed]).glob(str(Path(*parts[fixed:]))))
    names = sorted(str(path) for path in found if is_wanted(path))
    if not names:
        raise SettingsError(f"No films match {pattern}")
    return names


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
