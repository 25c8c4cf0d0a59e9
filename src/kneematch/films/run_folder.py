"""Names in the output folder of `kneematch detect`, and where the films of such a folder are."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

RUN_DATABASE: Final = "run.sqlite"
THUMBNAILS: Final = "thumbnails.sqlite"
DETECTIONS, FAILURES = "detections.csv", "failures.csv"
RUN, REPORT = "run.json", "report.html"
OVERLAYS, CROPS, DICOM = "overlays", "crops", "dicom-objects"
FOLDERS: Final = (OVERLAYS, CROPS, DICOM)  # hold files made from films


def holds_run(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds the results of a run."""
    return Path(folder, RUN_DATABASE).is_file()


def find_root(out: Path, named: str | None, films: Sequence[str], root: Path | None = None) -> Path:
    """Return the folder in which films with relative paths are found.

    Args:
        out: folder of the run.
        named: the same folder as it was named when the run was made.
        films: their paths.
        root: the folder, if it is known; otherwise it is the working folder or, if no film is
            there, the one in which the run was made, as far as the name of its folder tells.
    """
    if root is not None or named is None or any(Path(film).exists() for film in films):
        return root or Path()
    return where_made(out, named) or Path()


def where_made(out: Path, named: str) -> Path | None:
    """Return the working folder in which a run was made, as far as its folder's name tells.

    `out` is the folder of the run, and `named` the same as it was named when the run was made.
    """
    parts, place = Path(named).parts, out.resolve()
    moved = not parts or Path(named).is_absolute() or place.parts[-len(parts) :] != parts
    return None if moved else place.parents[len(parts) - 1]
