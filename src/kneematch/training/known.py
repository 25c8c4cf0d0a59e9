"""Films whose content was hashed before, so that those that have not changed need not be read."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Stamp = tuple[int, int, int]  # size, and when content and status changed, in ns

# A change soon after another may leave the time of the file as it was.
SETTLED_NS: Final = 3_000_000_000


def stamp(about: os.stat_result) -> Stamp:
    """What changes when a file's content does."""
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


@dataclass(frozen=True, slots=True)
class KnownFilms:
    """A file to which every process that shares the folder adds lines, and none rewrites."""

    file: Path
    hashes: dict[tuple[str, Stamp], str]  # by absolute path and stamp

    def find(self, path: str) -> str | None:
        """The hash of a film that is as it was."""
        try:
            return self.hashes.get((str(Path(path).absolute()), stamp(Path(path).stat())))
        except OSError:
            return None

    def add(self, path: str, seen: Stamp, digest: str) -> None:
        """Remember the hash of a film, unless it was changed a moment before it was read."""
        if max(seen[1:]) > time.time_ns() - SETTLED_NS:
            return
        line = json.dumps([str(Path(path).absolute()), *seen, digest]) + "\n"
        # Written by one call at the end of the file, so that lines of two processes do not mix.
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def known_films(file: Path) -> KnownFilms:
    """What is known so far."""
    hashes = {}
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            path, size, changed, status, digest = json.loads(line)
        except (ValueError, TypeError):  # torn, or two torn ones in one: a film is hashed once more
            continue
        hashes[path, (size, changed, status)] = digest
    return KnownFilms(file, hashes)
