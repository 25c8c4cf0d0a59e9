"""Pixel values as a film's file stores them, and their linear map to [0, 1]."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import NotARadiograph

GREY_TOLERANCE: Final = 8 / 255  # of full scale: JPEG's chroma rounding in a grey picture
ROWS_AT_ONCE: Final = 64  # where an operation needs several bytes per pixel
FLOAT32: Final = np.finfo(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class StoredPixels:
    """One frame of grey film as its file has it."""

    pixels: NDArray[Any]  # (H, W), integers or floats, possibly read-only
    inverted: bool = False  # the highest value is the darkest
    padding: NDArray[np.bool_] | None = None  # (H, W), where there is no film; neither all nor none


def grey_from_rgb(path: Path, bands: Iterable[NDArray[Any]], full_scale: int) -> NDArray[Any]:
    """Return the green channel (H, W) of a grey picture that is stored in colour.

    Args:
        path: the file, for the error.
        bands: consecutive rows of the picture, (h, W, 3 or 4), in RGB or RGBA.
        full_scale: the value of white.

    Raises:
        NotARadiograph: red or blue differs from green.
    """
    green = []
    for band in bands:
        values = band[..., :3].astype(np.int64)
        if np.abs(values[..., ::2] - values[..., 1:2]).max() > GREY_TOLERANCE * full_scale:
            raise NotARadiograph(
                f"{path}: a colour picture; expected a grey film; export it as greyscale"
            )
        green.append(band[..., 1].copy())
    return np.concatenate(green)


def unit_range(path: Path, stored: StoredPixels) -> NDArray[np.float32]:
    """Map stored values linearly to (H, W) in [0, 1], the darkest to 0; padding becomes 0.

    Display windows (VOI LUT) are not applied: they clip, and the normalised cross-correlation
    does not depend on gain and offset.
    """
    pixels = stored.pixels
    low, high = _extremes(stored)
    if not np.isfinite([low, high]).all():
        raise NotARadiograph(
            f"{path}: pixels that are not finite numbers (NaN or infinite); expected numbers; "
            "export it again"
        )
    if low >= high:
        raise NotARadiograph(
            f"{path}: every pixel has the value {low:g}; expected a film with something on it; "
            "check the exposure or export it again"
        )
    if not FLOAT32.tiny <= high - low <= FLOAT32.max:
        raise NotARadiograph(
            f"{path}: pixels from {low:g} to {high:g}; expected a range that fits 32-bit floats "
            f"({FLOAT32.tiny:.0e} to {FLOAT32.max:.0e}); rescale the values and export it again"
        )
    dark, span = (high, low - high) if stored.inverted else (low, high - low)
    # float32 holds 16-bit values exactly; wider ones are subtracted before they are rounded.
    precision = np.float32 if pixels.dtype.itemsize <= 2 else np.float64
    unit = np.empty(pixels.shape, np.float32)
    np.subtract(pixels, precision(dark), out=unit, dtype=precision, casting="same_kind")
    unit /= np.float32(span)  # a division, so that the brightest is exactly 1
    if stored.padding is not None:
        unit[stored.padding] = 0
    return unit


def _extremes(stored: StoredPixels) -> tuple[float, float]:
    """Return the lowest and the highest value outside the padding; NaN if any value is NaN."""
    pixels = stored.pixels
    low, high = pixels.min(), pixels.max()
    if stored.padding is not None:
        film = ~stored.padding
        low, high = pixels.min(where=film, initial=high), pixels.max(where=film, initial=low)
    return float(low), float(high)
