"""Detection: the joint area of one knee, in the pixels of its film."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Detection:
    """The joint area of one knee; points (x, y) and lengths in film pixels."""

    side: str  # the half of the picture, "left" or "right"; of a single knee, where it would stand
    laterality: str  # the patient's side, "R" or "L"
    energy: float  # the paper's, of the film: both sides and the symmetry penalty
    loss: float  # of this side
    polarity: str  # "positive", or "negative" where bright and dark are the template's swapped
    method: str
    corners: NDArray[np.float64]  # (4, 2), where the template's own corners land
    centre: Point
    width_px: float
    height_px: float
    rotation_deg: float  # picture clockwise positive
    mm_per_px: float | None = None
    landmarks: Mapping[str, Point] = field(default_factory=dict)
    status: str = "ok"
    review: str = ""
    reason: str = ""
