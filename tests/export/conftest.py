"""Detections and films that several tests of outputs share."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kneematch.detection.detection import Detection
from kneematch.io.radiograph import Radiograph


def area(side: str, centre: tuple[float, float], turn_deg: float = 5.0, **more: Any) -> Detection:
    """A rectangle of 80 x 60 film pixels, turned clockwise; mirrored in the left half."""
    flip = -1 if side == "left" else 1
    x, y = flip * np.array([-40.0, 40, 40, -40]), np.array([-30.0, -30, 30, 30])
    cos, sin = math.cos(math.radians(turn_deg)), math.sin(math.radians(turn_deg))
    found = Detection(
        side=side,
        laterality="R" if side == "left" else "L",
        energy=0.31,
        loss=0.125,
        polarity="positive",
        method="search",
        corners=np.stack([centre[0] + cos * x - sin * y, centre[1] + sin * x + cos * y], -1),
        centre=centre,
        width_px=80.0,
        height_px=60.0,
        rotation_deg=turn_deg,
        mm_per_px=0.5,
    )
    return replace(found, **more)


@pytest.fixture
def knees() -> tuple[Detection, Detection]:
    """Both knees of `film`."""
    return area("left", (75.25, 100.5)), area("right", (224.0, 99.0), -3.0)


@pytest.fixture
def film() -> Radiograph:
    """200 x 300 pixels of noise on a ramp."""
    noise = np.random.default_rng(5).random((200, 300), np.float32)
    ramp = np.linspace(0, 1, 300, dtype=np.float32)
    return Radiograph(0.5 * noise + 0.5 * ramp, mm_per_px=0.5)
