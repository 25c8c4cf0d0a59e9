"""Write files atomically, and lock files that only one process may write to."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kneematch.errors import SettingsError


@contextmanager
def write_aside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; the file written there replaces `path` on success.

    On failure the temporary file is removed, and a file that was at `path` before is untouched.
    """
    target = Path(path)
    # Writers may choose a format by the suffix; mkstemp would change the mode to 0600.
    aside = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    try:
        yield aside
        _flush(aside)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    _flush(target.parent)  # so that the new name survives a power cut


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically that only its owner can read."""
    with write_aside(path) as aside:
        aside.touch(mode=0o600)
        aside.write_bytes(content)


def _flush(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    if path.is_dir() and os.name == "nt":  # Windows has no such list to flush
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(file: BinaryIO) -> bool:
    """Lock an open file until it is closed; return False if another process has locked it.

    Where the system or the file system has no locks, nothing is locked and True is returned.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


@contextmanager
def writing(
    path: str | os.PathLike[str],
    expected: str = "a folder that is there, writable and not full; name another one",
) -> Iterator[None]:
    """Turn an OSError into a SettingsError that names `path` instead of a temporary file.

    Args:
        path: the file or folder that is written.
        expected: what was expected and what to do, for the message.
    """
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be written ({error.strerror or error}); expected {expected}"
        ) from error
