"""Whittaker's smoother for borders.

Eilers, "A perfect smoother", Analytical Chemistry 2003: least squares with a penalty on second
differences, which is a banded linear system.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solveh_banded

Array = NDArray[np.float64]

SMOOTHNESS: Final = 30.0  # weight of squared second differences, in pixels of a crop
SMALLEST_SD: Final = 0.5  # pixels
NO_WEIGHT: Final = 1e-6  # of columns beyond the plateau


def smooth(
    y: Array, sd: Array, *, between: tuple[float, float], smoothness: float = SMOOTHNESS
) -> Array:
    """Return a border y (W,) in pixels, smoothed.

    Args:
        y: position in each column.
        sd: standard deviation in each column; an uncertain column follows its neighbours.
        between: the first and last x that count.
        smoothness: weight of the penalty.
    """
    columns = np.arange(len(y)) + 0.5
    weight = 1 / np.maximum(sd.astype(np.float64), SMALLEST_SD) ** 2
    weight = np.where((columns >= between[0]) & (columns <= between[1]), weight, NO_WEIGHT)
    banded = np.zeros((3, len(y)))  # upper form: second, first and main diagonal
    for k, factor in enumerate((1.0, -2.0, 1.0)):
        for j, other in enumerate((1.0, -2.0, 1.0)):
            if j >= k:
                banded[2 - (j - k), j : len(y) - 2 + j] += smoothness * factor * other
    banded[2] += weight
    return np.asarray(solveh_banded(banded, weight * y))
