"""Landmarks of every knee as files of 3D Slicer (.mrk.json) and as .pts files."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from kneematch.detection.detection import Detection
from kneematch.geometry.split import SIDES
from kneematch.io.atomic import make_folder
from kneematch.io.shapes import MARKUPS, POINTS, write_markups, write_points

EXPORTS: Final = ("markups", "pts")


def landmark_files(name: str) -> dict[str, str]:
    """Return the names of all files that a film may have, and the side of each."""
    return {f"{name}-{side}{ending}": side for side in SIDES for ending in (MARKUPS, POINTS)}


def write_landmarks(
    films: Iterable[tuple[str, Sequence[Detection]]], folder: Path, kinds: Iterable[str]
) -> None:
    """Write the landmarks of each knee as NAME-SIDE.mrk.json, NAME-SIDE.pts, or both.

    Args:
        films: the name of each film among the run's artifacts, and its knees; files of knees that
            it no longer has are removed.
        folder: for the files; it is made if need be.
        kinds: "markups", "pts" or both.
    """
    make_folder(folder)
    wanted = set(kinds)
    for name, knees in films:
        sides = {knee.side for knee in knees}
        for file, side in landmark_files(name).items():
            if side not in sides:
                (folder / file).unlink(missing_ok=True)
        for knee in knees:
            path = folder / f"{name}-{knee.side}"
            if "markups" in wanted:
                write_markups(f"{path}{MARKUPS}", knee.landmarks, knee.mm_per_px)
            if "pts" in wanted:
                write_points(f"{path}{POINTS}", knee.landmarks)
