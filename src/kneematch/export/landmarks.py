"""Landmarks of every knee as files of 3D Slicer (.mrk.json) and as .pts files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kneematch.detection.detection import Detection
from kneematch.io.atomic import make_folder
from kneematch.io.shapes import MARKUPS, POINTS, write_markups, write_points

EXPORTS: Final = ("markups", "pts")


def write_landmarks(
    knees: Iterable[tuple[str, Detection]], folder: Path, kinds: Iterable[str]
) -> None:
    """Write the landmarks of each knee as NAME-SIDE.mrk.json, NAME-SIDE.pts, or both.

    Args:
        knees: the name of the film among the run's artifacts, and the detection.
        folder: for the files; it is made if need be.
        kinds: "markups", "pts" or both.
    """
    make_folder(folder)
    wanted = set(kinds)
    for name, knee in knees:
        path = folder / f"{name}-{knee.side}"
        if "markups" in wanted:
            write_markups(f"{path}{MARKUPS}", knee.landmarks, knee.mm_per_px)
        if "pts" in wanted:
            write_points(f"{path}{POINTS}", knee.landmarks)
