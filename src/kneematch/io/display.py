"""Convert films to 8-bit grey for display, and the colours of the two sides."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]

LEFT_COLOUR: Final = (255, 150, 40)
RIGHT_COLOUR: Final = (70, 170, 255)
WINDOW: Final = (0.5, 99.5)  # percentiles shown as black and white


def to_grey8(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return pixels (H, W) of any range as bytes, in a window robust to a few outliers."""
    low, high = np.percentile(pixels, WINDOW)
    if high <= low:  # nearly all pixels are equal
        low, high = float(pixels.min()), float(pixels.max())
    span = high - low if high > low else 1.0
    grey: NDArray[np.uint8] = np.rint(((pixels - low) / span).clip(0, 1) * 255).astype(np.uint8)
    return grey
