"""FilmRecord: what is known of a film of a run; and names of films for the files made of them."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import PurePath
from typing import Any, Final

from kneematch.films.files import FileVersion
from kneematch.knee.decision import Decision
from kneematch.knee.detection import CORRECTED, REJECTED, Detection

# Status of a film that was visited. It has failed for what is in its file, and until that changes;
# it was unreadable for its surroundings, such as a disk that was away, and is tried again.
OK, NO_KNEE, FAILED, UNREADABLE = "ok", "no_knee", "failed", "unreadable"
SET_ASIDE: Final = "the film has changed since the knee was corrected"
SETTINGS, FILES = "settings", "files"
JOINT: Final = "_"  # between a folder and what it holds
LONGEST_BYTES: Final = 120  # endings follow; file systems allow 255 bytes, encrypted ones 143
HASH_DIGITS: Final = 8

Made = Mapping[str, Mapping[str, Any]]
"""By kind of files: the settings with which a film's files were made, and their names."""


@dataclass(frozen=True, slots=True, eq=False)
class FilmRecord:
    """A film of a run: its file, what was found on it, and what was made of it."""

    id: int  # its row in the run's database
    path: str  # as the user named it
    name: str  # beginning of the names of the files that are made of it
    version: FileVersion | None = None  # version of the file; None where it is missing
    status: str = ""  # one of the four above, as found; empty until the film was visited
    reason: str = ""  # why there is no knee, or why the film cannot be used
    size: tuple[int, int] | None = None  # (height, width) in pixels
    mm_per_px: float | None = None
    found: tuple[Detection, ...] = ()  # the knees as they were found
    knees: tuple[Detection, ...] = ()  # the knees as a reviewer left them, rejected ones included
    decisions: Mapping[str, Decision] = field(default_factory=dict)  # by half of the picture
    last_decision: int = 0  # number of the newest decision that `knees` takes into account
    made: Made = field(default_factory=dict)
    to_make: frozenset[str] | None = None  # kinds of files that its next visit makes; None: all
    gone: bool = False  # its file is no longer there
    missing: tuple[str, ...] = ()  # what could not be made of it in its last visit, and why
    thumbnail: bytes = b""  # as JPEG
    set_aside: frozenset[str] = frozenset()  # halves with corrections that no longer hold

    @property
    def kept(self) -> tuple[Detection, ...]:
        """The knees that a reviewer did not reject."""
        return tuple(knee for knee in self.knees if knee.decision != REJECTED)

    @property
    def has_failed(self) -> bool:
        """Whether the film has no knee, neither found nor added, and a reason for it."""
        return self.status in (NO_KNEE, FAILED, UNREADABLE) and not self.knees

    def magnified(self, magnification: float | None) -> "FilmRecord":
        """Return a film whose measures in mm are divided by its magnification, if it is known."""
        knees = tuple(
            replace(knee, measures=knee.measures and knee.measures.magnified(magnification))
            for knee in self.knees
        )
        return replace(self, knees=knees)

    def without_corrections(self) -> "FilmRecord":
        """Return a film whose file has changed; corrections were about the one before."""
        others = {side: d for side, d in self.decisions.items() if d.state != CORRECTED}
        return replace(self, decisions=others, set_aside=frozenset(self.decisions.keys() - others))

    def flagged(self) -> "FilmRecord":
        """Return a film whose knees are to be reviewed where corrections were set aside."""
        found = tuple(
            replace(knee, needs_review=True, reasons=(*knee.reasons, SET_ASIDE))
            if knee.side in self.set_aside and SET_ASIDE not in knee.reasons
            else knee
            for knee in self.found
        )
        return replace(self, found=found)


def film_names(films: Sequence[str], taken: set[str]) -> list[str]:
    """Return a name for each film: its file's, after the folders' that tell it from the others.

    Suffixes are left out. Films that differ by their suffix only are numbered, and names that are
    too long end in a hash. `taken` has the case-folded names of other films; the new ones are
    added.
    """
    paths = [_parts(film) for film in films]
    wholes = ["/".join(parts).casefold() for parts in paths]  # some disks ignore case
    names = [""] * len(films)
    first = {whole: k for k, whole in reversed(list(enumerate(wholes)))}
    for depth in range(1, max(map(len, paths), default=0) + 1):
        new = {k: _joined(paths[k][:depth]) for k in first.values() if not names[k]}
        same = Counter(name.casefold() for name in new.values())
        for k, name in new.items():
            if same[name.casefold()] == 1 and name.casefold() not in taken:
                names[k] = name
                taken.add(name.casefold())
    numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(2))
    for k, parts in enumerate(paths):  # those that no folder tells apart
        if not names[k]:
            names[k] = name = names[first[wholes[k]]] or _joined(parts)
            while names[k].casefold() in taken:
                names[k] = f"{name}-{next(numbers[name])}"
            taken.add(names[k].casefold())
    return names


def _parts(film: str) -> list[str]:
    """Return the file's name without suffix, and the names of its folders from the inside out."""
    path = PurePath(film)
    folders = [part for part in path.parent.parts if part not in (path.anchor, ".", "..")]
    stem = path.stem if path.stem.strip(".") else "film"  # such as that of "..dcm"
    return [stem, *reversed(folders)]


def _joined(parts: Sequence[str]) -> str:
    """Return a name of parts from the inside out; one that is too long ends in a hash."""
    name = JOINT.join(reversed(parts))
    encoded = os.fsencode(name)
    if len(encoded) <= LONGEST_BYTES:
        return name
    start = encoded[: LONGEST_BYTES - HASH_DIGITS - 1].decode("utf-8", "ignore")
    return f"{start}~{hashlib.sha256(encoded).hexdigest()[:HASH_DIGITS]}"
