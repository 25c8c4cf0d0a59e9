"""Landmarks of every knee as files of 3D Slicer (.mrk.json) and as .pts files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kneematch.detection.detection import Detection
from kneematch.io.atomic import make_folder
from kneematch.io.shapes import MARKUPS, POINTS, write_markups, write_points
from kneematch.review.log import REJECTED

EXPORTS: Final = ("markups", "pts")


def write_landmarks(
    knees: Iterable[tuple[str, Detection]], folder: Path, kinds: Iterable[str]
) -> None:
    """Write the landmarks of each knee as NAME-SIDE.mrk.json, NAME-SIDE.pts, or both.

    Files of knees that were rejected since are removed.

    Args:
        knees: the name of the film among the run's artifacts, and the detection.
        folder: for the files; it is made if need be.
        kinds: "markups", "pts" or both.
    """
    make_folder(folder)
    wanted = set(kinds)
    for name, knee in knees:
        markups, points = (folder / f"{name}-{knee.side}{suffix}" for suffix in (MARKUPS, POINTS))
        if knee.decision == REJECTED:
            markups.unlink(missing_ok=True)
            points.unlink(missing_ok=True)
            continue
        if "markups" in wanted:
            write_markups(markups, knee.landmarks, knee.mm_per_px)
        if "pts" in wanted:
            write_points(points, knee.landmarks)
