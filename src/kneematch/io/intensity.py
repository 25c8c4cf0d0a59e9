"""The pixel values that a film's file stores, and the linear map that brings them to [0, 1]."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import KneematchError, NotAnImage, NotARadiograph

MAX_PIXELS = 150_000_000  # twice a 43 x 43 cm film at 0.05 mm; below Pillow's own limit of 179 M
MAX_BYTES = 1 << 30  # of a file, or of what a deflated one inflates to
GREY_TOLERANCE = 8 / 255  # of full scale: what JPEG's chroma rounding does to a grey picture
ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One frame of grey film as its file has it."""

    pixels: NDArray[Any]  # (H, W), integers or floats, possibly read-only
    inverted: bool = False  # the highest value is the darkest
    padding: NDArray[np.bool_] | None = None  # (H, W), where there is no film; neither all nor none


@contextmanager
def decoding(path: Path, kind: str) -> Iterator[None]:
    """Turn what a decoder raises into NotAnImage; around calls of the decoder alone."""
    try:
        yield
    except KneematchError:
        raise
    except Exception as error:  # on broken input decoders raise nearly everything
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise NotAnImage(
            f"{path}: a {kind} that cannot be decoded ({reason}); expected a whole file; "
            "copy or export it again"
        ) from error


def check_size(path: Path, height: int, width: int) -> None:
    """Refuse sizes that no film has, before anything is decoded."""
    if height < 1 or width < 1:
        raise NotARadiograph(
            f"{path}: {height} x {width} pixels; expected at least one; export it again"
        )
    if height * width > MAX_PIXELS:
        raise NotARadiograph(
            f"{path}: {height} x {width} pixels; expected at most {MAX_PIXELS}; "
            "check the file or reduce it"
        )


def grey_channel(path: Path, pixels: NDArray[Any], full_scale: int) -> NDArray[Any]:
    """The one channel of a grey picture that is stored as RGB, (H, W, 3) to (H, W)."""
    tolerance = GREY_TOLERANCE * full_scale
    for start in range(0, len(pixels), ROWS_AT_ONCE):
        rows = pixels[start : start + ROWS_AT_ONCE].astype(np.int64)
        if np.abs(rows[..., ::2] - rows[..., 1:2]).max() > tolerance:  # red, blue against green
            raise NotARadiograph(
                f"{path}: a colour picture; expected a grey film; export it as greyscale"
            )
    return pixels[..., 1]


def unit_range(path: Path, stored: Stored) -> NDArray[np.float32]:
    """Map stored values linearly, the darkest to 0 and the brightest to 1; padding to 0.

    Windows (VOI LUT) are left aside: they clip, and cross-correlation is blind to gain and offset.
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
    dark, span = (high, low - high) if stored.inverted else (low, high - low)
    # float32 holds 16-bit values exactly; wider ones are subtracted before they are rounded.
    precision = np.float32 if pixels.dtype.itemsize <= 2 else np.float64
    unit = np.empty(pixels.shape, np.float32)
    np.subtract(pixels, precision(dark), out=unit, dtype=precision, casting="same_kind")
    unit /= np.float32(span)  # a division, so that the brightest is 1 to the last bit
    if stored.padding is not None:
        unit[stored.padding] = 0
    return unit


def _extremes(stored: Stored) -> tuple[float, float]:
    """The lowest and the highest value that is film; NaN if one is NaN."""
    pixels = stored.pixels
    low, high = pixels.min(), pixels.max()
    if stored.padding is not None:
        film = ~stored.padding
        low, high = pixels.min(where=film, initial=high), pixels.max(where=film, initial=low)
    return float(low), float(high)
