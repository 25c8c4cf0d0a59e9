"""Names of films among the artifacts of a run: enough of each path to be unique."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import PurePath
from typing import Final

JOINT: Final = "_"  # between a folder and what it holds
LONGEST_BYTES: Final = 120  # endings follow; file systems allow 255 bytes, encrypted ones 143
HASH_DIGITS: Final = 8


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
