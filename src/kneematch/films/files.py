"""Write files atomically and for the owner's eyes only, tell versions apart, read texts.

Files are created with mode 0600 and folders with 0700, or less where the umask is stricter. A file
that replaces another one keeps its mode, so a file that was shared stays shared.
"""

import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Final, NamedTuple

from kneematch.errors import SettingsError

TEMPORARY: Final = ".kneematch-temporary-"  # names of temporary files begin so
ABANDONED_S: Final = 3600  # a temporary file that was not changed for so long has no writer
FILE_MODE, FOLDER_MODE = 0o600, 0o700
READERS: Final = 8  # threads; most of the time they wait for the disk
PER_TASK: Final = 256  # files
MOST_TEXT_MB: Final = 256
# Names in the output folder of `kneematch detect`
RUN_DATABASE: Final = "run.sqlite"
THUMBNAILS: Final = "thumbnails.sqlite"
DETECTIONS, FAILURES = "detections.csv", "failures.csv"
RUN, REPORT = "run.json", "report.html"
OVERLAYS, CROPS, DICOM = "overlays", "crops", "dicom-objects"
# Folders of files made from films; runs of version 0.3 may have the last one.
FOLDERS: Final = (OVERLAYS, CROPS, DICOM, "landmarks")
# What broken JSON raises where it is read, also by thousands of brackets and hundreds of digits.
BROKEN: Final = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(RecursionError, OverflowError),
)


def holds_run(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds the results of a run."""
    return Path(folder, RUN_DATABASE).is_file()


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; the file written there replaces `path` on success.

    On failure the temporary file is removed, and a file that was at `path` before is untouched.
    """
    target = Path(path)
    # Writers may choose a format by the suffix.
    temp = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}{target.suffix}")
    try:
        temp.touch(FILE_MODE, exist_ok=False)
        with suppress(FileNotFoundError):
            temp.chmod(target.stat().st_mode & 0o777)
        yield temp
        _flush(temp)
        temp.replace(target)
    except OSError as error:
        if error.filename in (None, temp, str(temp)):  # a name that says nothing to the user
            error.filename = str(target)
        raise
    finally:
        with suppress(OSError):  # which would take the place of the first error
            temp.unlink()
    _flush(target.parent)  # so that the new name survives a power cut


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write the whole content of a file atomically."""
    with atomic_write(path) as temp:
        temp.write_bytes(content)


def make_folder(path: Path) -> None:
    """Make a folder that only its owner can read, unless it is there."""
    path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)


def make_out_folder(path: Path) -> None:
    """Make the folder that a user named for results; raise SettingsError if this cannot be done."""
    try:
        make_folder(path)
    except (FileExistsError, NotADirectoryError) as error:
        file = next((each for each in (path, *path.parents) if each.is_file()), path)
        raise SettingsError(f"{file} is a file, not a folder. Choose another folder.") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
    if not os.access(path, os.W_OK | os.X_OK):
        raise SettingsError(f"{path}: You may not write to this folder. Choose another folder.")


def remove_leftovers(*folders: Path, unchanged_s: float = ABANDONED_S) -> None:
    """Remove the temporary files of writers that were killed, if they are old enough.

    In folders that this process has locked, there are no other writers: give 0 s.
    """
    for folder in folders:
        for path in folder.glob(f"{TEMPORARY}*"):
            with suppress(FileNotFoundError):  # another process was faster
                if path.stat().st_mtime <= time.time() - unchanged_s:
                    path.unlink()


def refuse_existing(path: Path, what: str = "a file") -> None:
    """Raise SettingsError because a command would replace what is at a path."""
    raise SettingsError(
        f"{path}: There is {what} already. Replace it with --force, or choose another name."
    )


def check_suffix(path: Path, suffix: str, what: str) -> None:
    """Raise SettingsError if the name of a file to write ends otherwise: it might be a film's."""
    if path.suffix.lower() != suffix:
        raise SettingsError(f"{path}: The name of {what} must end in {suffix}")


def _flush(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    if path.is_dir() and os.name == "nt":  # Windows has no such list to flush
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading; a pipe would block, and a device never end.

    Raises:
        OSError: it is none, or cannot be opened.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - Path has no opener
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "It is not a regular file", str(path))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_text(path: Path) -> str:
    """Return the text of a regular file, in UTF-8, perhaps with a byte-order mark."""
    with open_regular(path) as file:
        return _limited(file, path).decode("utf-8-sig")


def read_text_bytes(path: Path) -> bytes:
    """Return the content of a text file that a user named: a regular file or a pipe.

    Raises:
        OSError: it cannot be read, is a device, which may have no end, or is too large.
    """
    with path.open("rb") if path.is_fifo() else open_regular(path) as file:
        return _limited(file, path)


def _limited(file: BufferedReader, path: Path) -> bytes:
    content = file.read((MOST_TEXT_MB << 20) + 1)
    if len(content) > MOST_TEXT_MB << 20:
        raise OSError(errno.EFBIG, f"It has more than {MOST_TEXT_MB} MB", str(path))
    return content


@contextmanager
def writing(path: str | os.PathLike[str], advice: str = "") -> Iterator[None]:
    """Turn an OSError into a SettingsError that names the file, or `path` if the error names none.

    A sentence of advice may follow at the end of the message.
    """
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        message = f"{error.filename or path}: It cannot be written: {reason}. {advice}"
        raise SettingsError(message.strip()) from error


class FileVersion(NamedTuple):
    """The state of a file."""

    size: int  # bytes
    modified_ns: int  # since the epoch


def file_versions(paths: Sequence[str]) -> list[FileVersion | None]:
    """Return the versions of files; None for those that are not there."""
    parts = (paths[first : first + PER_TASK] for first in range(0, len(paths), PER_TASK))
    with ThreadPoolExecutor(READERS) as readers:
        found = readers.map(lambda part: list(map(_version, part)), parts)
        return [version for part in found for version in part]


def content_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(path: str) -> FileVersion | None:
    try:
        state = Path(path).stat()
    except (OSError, ValueError):
        return None
    return FileVersion(state.st_size, state.st_mtime_ns)
