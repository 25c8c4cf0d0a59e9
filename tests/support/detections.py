"""Detections, placed without the code under test."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from kneematch.knee.detection import Detection


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
