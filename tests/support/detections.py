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
    x = flip * width / 2 * np.array([-1.0, 1, 1, -1])
    y = height / 2 * np.array([-1.0, -1, 1, 1])
    cos, sin = math.cos(math.radians(turn_deg)), math.sin(math.radians(turn_deg))
    found = Detection(
        side=side,
        laterality="R" if side == "left" else "L",
        energy=0.3,
        loss=0.1,
        polarity="positive",
        method="search",
        corners=np.stack([centre[0] + cos * x - sin * y, centre[1] + sin * x + cos * y], -1),
        centre=centre,
        width_px=width,
        height_px=height,
        rotation_deg=turn_deg,
    )
    return replace(found, **changes)
