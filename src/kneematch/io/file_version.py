"""Which version of a file was read: its size, its date and, on request, its hash."""

import hashlib
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple, dataclass
from itertools import chain
from pathlib import Path
from typing import Final

READERS: Final = 8  # threads; most of the time they wait for the disk
PER_TASK: Final = 256  # files


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
        return list(chain.from_iterable(found))


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
