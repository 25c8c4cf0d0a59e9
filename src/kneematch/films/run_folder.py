"""Names in the output folder of `kneematch detect`, and where the films of such a folder are."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

RUN_DATABASE: Final = "run.sqlite"
THUMBNAILS: Final = "thumbnails.sqlite"
JOURNAL: Final = "journal.jsonl"  # the state of a run of version 0.2
DETECTIONS, FAILURES = "detections.csv", "failures.csv"
RUN, REPORT = "run.json", "report.html"
OVERLAYS, CROPS, DICOM, LANDMARKS = "overlays", "crops", "dicom-objects", "landmarks"
FOLDERS: Final = (OVERLAYS, CROPS, DICOM, LANDMARKS)  # hold files made from films
LOOKED_FOR: Final = 1000  # films at most, to find the folder of films with relative paths


def holds_run(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds the results of a run."""
    return any(Path(folder, name).is_file() for name in (RUN_DATABASE, JOURNAL))


def find_root(
    out: Path, named: str | None, films: Sequence[str], root: Path | None = None
) -> tuple[Path, int]:
    """Return the folder in which films with relative paths are found, and how many are there.

    Args:
        out: folder of the run.
        named: the same folder as it was named when the run was made.
        films: paths, of which the first 1000 are looked for.
        root: the folder, if it is known; otherwise it is the working folder, or the one in which
            the run was made, as far as the name of its folder tells.
    """
    roots, films = [root or Path()], films[:LOOKED_FOR]
    if named is not None and root is None:
        parts, place = Path(named).parts, out.resolve()
        if parts and not Path(named).is_absolute() and place.parts[-len(parts) :] == parts:
            roots.append(place.parents[len(parts) - 1])
    counts = [sum((root / film).exists() for film in films) for root in roots]
    best = counts.index(max(counts))
    return roots[best], counts[best]
