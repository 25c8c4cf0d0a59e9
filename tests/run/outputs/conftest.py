"""Detections and films that several tests of outputs share."""

from typing import Any

import numpy as np
import pytest

from detections import Knees, make_detection
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detection import Detection


def area(side: str, centre: tuple[float, float], turn_deg: float = 5.0, **more: Any) -> Detection:
    """A rectangle of 80 x 60 film pixels, turned clockwise; mirrored in the left half."""
    usual = {"energy": 0.31, "loss": 0.125, "mm_per_px": 0.5}
    return make_detection(side, centre, (60.0, 80.0), turn_deg, **usual | more)


@pytest.fixture
def knees() -> Knees:
    """Both knees of `film`."""
    return area("left", (75.25, 100.5)), area("right", (224.0, 99.0), -3.0)


@pytest.fixture
def film() -> Radiograph:
    """200 x 300 pixels of noise on a ramp."""
    noise = np.random.default_rng(5).random((200, 300), np.float32)
    ramp = np.linspace(0, 1, 300, dtype=np.float32)
    return Radiograph(0.5 * noise + 0.5 * ramp, mm_per_px=0.5)
