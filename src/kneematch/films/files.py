"""Write files atomically and for the owner's eyes only, and tell their versions apart.

Files are created with mode 0600 and folders with 0700, or less where the umask is stricter. A file
that replaces another one keeps its mode, so a file that was shared stays shared.
"""

import errno
import hashlib
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from kneematch.errors import SettingsError

# Names of temporary files begin so, and their process follows. A hash stands for the machine, since
# others may write to the same disk.
PREFIX: Final = ".kneematch-"
TEMPORARY: Final = f"{PREFIX}{hashlib.sha256(os.fsencode(platform.node())).hexdigest()[:8]}-"
ABANDONED_S: Final = 86_400  # age at which a temporary file belongs to no running process
FILE_MODE, FOLDER_MODE = 0o600, 0o700
READERS: Final = 8  # threads; most of the time they wait for the disk
PER_TASK: Final = 256  # files
MAX_TEXT_BYTES: Final = 1 << 28  # for a list: a million paths of 268 characters

_unfinished: set[Path] = set()  # temporary files that this process is writing


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; the file written there replaces `path` on success.

    On failure the temporary file is removed, and a file that was at `path` before is untouched.
    """
    target = Path(path)
    # Writers may choose a format by the suffix.
    temp = target.with_name(f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}{target.suffix}")
    _unfinished.add(temp)
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
        temp.unlink(missing_ok=True)
        _unfinished.discard(temp)
    _flush(target.parent)  # so that the new name survives a power cut


def remove_unfinished() -> None:
    """Remove the temporary files of this process, which is about to end at once."""
    for temp in tuple(_unfinished):
        temp.unlink(missing_ok=True)


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
        raise SettingsError(f"{file} is a file, not a folder. Choose another -o.") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
    if not os.access(path, os.W_OK | os.X_OK):
        raise SettingsError(f"{path}: You may not write to this folder. Choose another -o.")


def remove_leftovers(*folders: Path) -> None:
    """Remove the temporary files of processes that were killed.

    Those of other machines, and of containers with another host name, only after a day.
    """
    if os.name == "nt":  # where os.kill would not ask, but kill
        return
    for folder in folders:
        for path in folder.glob(f"{PREFIX}*-*"):
            process = re.match(rf"{re.escape(TEMPORARY)}(\d+)-", path.name)
            with suppress(FileNotFoundError):  # another run was faster
                abandoned = path.stat().st_mtime < time.time() - ABANDONED_S
                if abandoned or (process and not _is_running(int(process[1]))):
                    path.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    return True


def refuse_existing(path: Path, what: str = "a file", *, can_resume: bool = False) -> None:
    """Raise SettingsError because a command would replace what is at a path."""
    resume = "continue it with --resume, " if can_resume else ""
    raise SettingsError(
        f"{path}: There is {what} already; {resume}replace it with --force, or choose another name."
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


def read_text_bytes(path: Path) -> bytes:
    """Read a list, table or template; a device such as /dev/zero, which has no end, is refused.

    Raises:
        OSError: it cannot be read, or is too large.
    """
    with path.open("rb") as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_TEXT_BYTES >> 20} MB")
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


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The state of a file."""

    size: int  # bytes
    modified_ns: int  # since the epoch
    sha256: str = ""  # empty unless it was asked for

    def is_same(self, other: "FileVersion") -> bool:
        """Compare the hashes if both are known, or else sizes and dates."""
        if self.sha256 and other.sha256:
            return self.sha256 == other.sha256
        return astuple(self)[:2] == astuple(other)[:2]


def file_versions(paths: Sequence[str], *, hashed: bool = False) -> list[FileVersion | None]:
    """Return the versions of files; None for those that are not there."""
    parts = (paths[first : first + PER_TASK] for first in range(0, len(paths), PER_TASK))
    with ThreadPoolExecutor(READERS) as readers:
        found = readers.map(lambda part: [_version(path, hashed=hashed) for path in part], parts)
        return [version for part in found for version in part]


def content_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(path: str, *, hashed: bool) -> FileVersion | None:
    try:
        state = Path(path).stat()
    except (OSError, ValueError):
        return None
    digest = ""
    if hashed and stat.S_ISREG(state.st_mode):  # a pipe would block, a device never end
        with suppress(OSError):
            digest = content_hash(path)
    return FileVersion(state.st_size, state.st_mtime_ns, digest)
