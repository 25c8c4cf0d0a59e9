"""Names of films among the artifacts of a run: enough of each path to be unique."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from pathlib import PurePath
from typing import Final

JOINT: Final = "_"  # between a folder and what it holds
LONGEST_BYTES: Final = 120  # endings follow; file systems allow 255 bytes, encrypted ones 143
HASH_DIGITS: Final = 8
MOST_DIGITS: Final = 10  # digits that number films which no folder tells apart


def film_names(films: Sequence[str], taken: set[str]) -> list[str]:
    """Return a name for each film: its file's, after the folders' that tell it from the others.

    Suffixes are left out. Films that differ by their suffix only are numbered, and names that are
    too long end in a hash. `taken` has the case-folded names of other films; the new ones are
    added.
    """
    paths = [_parts(film) for film in films]
    names = [""] * len(films)
    alike: dict[str, list[int]] = defaultdict(list)  # films that no folder tells apart
    for k, parts in enumerate(paths):
        alike["/".join(parts).casefold()].append(k)  # some file systems ignore case
    pending, depth = [group[0] for group in alike.values()], 0
    while pending:
        depth += 1
        same = defaultdict(list)
        for k in pending:
            names[k] = _shortened(JOINT.join(reversed(paths[k][:depth])))
            same[names[k].casefold()].append(k)
        pending = []
        for name, group in same.items():
            if len(group) == 1 and name not in taken:
                taken.add(name)
            elif all(depth >= len(paths[k]) for k in group):
                _number(names, group, taken)
            else:
                pending += group
    for first, *others in alike.values():
        for k in others:
            names[k] = names[first]
        _number(names, others, taken)
    return names


def is_film_name(name: str) -> bool:
    """Return whether `film_names` may have given a name; its files stay in their folder."""
    is_short = len(os.fsencode(name)) <= LONGEST_BYTES + MOST_DIGITS
    return bool(name) and is_short and "\0" not in name and PurePath(name).name == name


def _parts(film: str) -> list[str]:
    """Return the file's name without suffix, and the names of its folders from the inside out."""
    path = PurePath(film)
    folders = [part for part in path.parent.parts if part not in (path.anchor, ".", "..")]
    return [path.stem or "film", *reversed(folders)]


def _shortened(name: str) -> str:
    encoded = os.fsencode(name)
    if len(encoded) <= LONGEST_BYTES:
        return name
    start = encoded[: LONGEST_BYTES - HASH_DIGITS - 1].decode("utf-8", "ignore")
    return f"{start}~{hashlib.sha256(encoded).hexdigest()[:HASH_DIGITS]}"


def _number(names: list[str], group: Sequence[int], taken: set[str]) -> None:
    """Add numbers to the equal names of a group, unless one is free."""
    numbers = count(2)
    for k in group:
        name = names[k]
        while names[k].casefold() in taken:
            names[k] = f"{name}-{next(numbers)}"
        taken.add(names[k].casefold())
