"""Detections, placed without the code under test."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from kneematch.knee.detection import Detection
from kneematch.run.film_record import FilmRecord

Knees = tuple[Detection, Detection]


def make_detection(
    side: str = "right",
    centre: tuple[float, float] = (0.0, 0.0),
    size: tuple[float, float] = (1.0, 1.0),
    turn_deg: float = 0.0,
    **changes: Any,
) -> Detection:
    """An area of (height, width) film pixels, turned clockwise; mirrored in the left half."""
    flip, (height, width) = -1 if side == "left" else 1, size
    cos, sin = math.cos(math.radians(turn_deg)), math.sin(math.radians(turn_deg))
    across, down = flip * width / 2, height / 2
    to_film = np.array(
        [
            [across * cos, -down * sin, centre[0]],
            [across * sin, down * cos, centre[1]],
            [0.0, 0.0, 1.0],
        ]
    )
    laterality = "R" if side == "left" else "L"
    found = Detection(to_film, side, "search", laterality=laterality, energy=0.3, loss=0.1)
    return replace(found, **changes)


def make_record(
    number: int, *knees: Detection, path: str | None = None, **changes: Any
) -> FilmRecord:
    """A film of a run with knees that were found, and nothing else changed."""
    name = f"{number}.dcm" if path is None else path
    film = FilmRecord(number, name, f"film-{number}", status="ok", size=(200, 300))
    return replace(film, found=knees, knees=knees, **changes)
