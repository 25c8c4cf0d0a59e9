"""Refine borders: smooth them by their uncertainty, then move them to the film's steepest gradient.

Smoothing is Whittaker's (Eilers, "A perfect smoother", Analytical Chemistry 2003): least squares
with a penalty on second differences, which is a banded linear system.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solveh_banded
from scipy.ndimage import gaussian_filter1d, map_coordinates

from kneematch.knee.outlines import Array

SMOOTHNESS: Final = 30.0  # weight of squared second differences
SMALLEST_SD: Final = 0.5  # pixels
NO_WEIGHT: Final = 1e-6  # weight of columns beyond the plateau

# Lengths along the normals, in plateau widths
REACH: Final = 0.02  # how far from a border its edge is looked for
# Standard deviations of the edge's distance. The tibia's is smaller, since the rims of a tilted
# plateau are edges beside its floor. By lab/measure.py, 0.004 for both fits real crops a
# little better (0.52 instead of 0.54 %) and phantoms worse (0.12 instead of 0.10 %).
FEMUR_PRIOR: Final = 0.004
TIBIA_PRIOR: Final = 0.0025
STEPS: Final = 49  # places along a normal
BLUR: Final = 2.0  # standard deviation of the blur along a normal, in places
ENDS: Final = 0.05  # share of a border at either end over which displacements fade


def smooth(y: Array, sd: Array, *, between: tuple[float, float]) -> Array:
    """Return a border y (W,) in pixels, smoothed.

    Args:
        y: position in each column.
        sd: standard deviation in each column; an uncertain column follows its neighbours.
        between: the first and last x that count.
    """
    columns = np.arange(len(y)) + 0.5
    weight = 1 / np.maximum(sd.astype(np.float64), SMALLEST_SD) ** 2
    weight = np.where((columns >= between[0]) & (columns <= between[1]), weight, NO_WEIGHT)
    return _whittaker(y, weight)


def _whittaker(y: Array, weight: Array) -> Array:
    """Return the smoothed values of y (W,) with weights (W,)."""
    banded = np.zeros((3, len(y)))  # upper form: second, first and main diagonal
    for k, factor in enumerate((1.0, -2.0, 1.0)):
        for j, other in enumerate((1.0, -2.0, 1.0)):
            if j >= k:
                banded[2 - (j - k), j : len(y) - 2 + j] += SMOOTHNESS * factor * other
    banded[2] += weight
    return np.asarray(solveh_banded(banded, weight * y))


def move_to_edge(
    pixels: NDArray[np.float32], line: Array, width_px: float, *, bone_above: bool
) -> Array:
    """Return a border (K, 2) moved along its normals to where the film is steepest.

    Places where the gradient is weak follow those where it is strong.

    Args:
        pixels: (H, W) of the film, bones bright.
        line: points (x, y) from left to right, in film pixels.
        width_px: width of the tibial plateau.
        bone_above: whether the bone lies above the border.
    """
    along = np.gradient(line, axis=0)
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    normals = np.stack([-along[:, 1], along[:, 0]], axis=1)  # towards the foot
    distance = np.linspace(-REACH, REACH, STEPS)
    x, y = np.moveaxis(line[:, None] + width_px * distance[:, None] * normals[:, None], -1, 0)
    profile = map_coordinates(pixels, [y - 0.5, x - 0.5], order=1, mode="nearest")
    rise = np.gradient(gaussian_filter1d(profile.astype(np.float64), BLUR, axis=1), axis=1)
    edge = np.clip(-rise if bone_above else rise, 0, None)
    prior = FEMUR_PRIOR if bone_above else TIBIA_PRIOR
    edge *= np.exp(-0.5 * (distance / prior) ** 2)
    strength = edge.sum(1)
    offset = (edge * distance).sum(1) / np.maximum(strength, 1e-9)
    weight = strength / max(float(np.median(strength)), 1e-9) + NO_WEIGHT
    ends = np.linspace(0, 1, len(line))
    fade = np.clip(np.minimum(ends, 1 - ends) / ENDS, 0, 1)
    moved = fade * _whittaker(offset, weight)
    return np.asarray(line + width_px * moved[:, None] * normals)
