"""Radiograph, and what the readers of all its file formats share: limits, errors, grey levels."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import KneematchError, NotAnImage, NotARadiograph

MAX_PIXELS: Final = 150_000_000  # twice a 43 x 43 cm film at 0.05 mm; Pillow's limit is 179 million
MAX_BYTES: Final = 1 << 30  # size of a film's file
IN_MEMORY: Final = Path("<film in memory>")  # in place of a file's path, for what is no file
# Memory that reading may take. A good film holds at least a thirtieth of its pixels' bytes, so a
# small file that needs much more than this was made to exhaust the memory.
SMALL_FILE_MEMORY: Final = 768 << 20
MEMORY_PER_FILE_BYTE: Final = 384  # in larger files; equal at 2 MB
GREY_TOLERANCE: Final = 8 / 255  # share of full scale: JPEG's chroma rounding in a grey picture
ROWS_AT_ONCE: Final = 64  # where an operation needs several bytes or passes per pixel
FLOAT32: Final = np.finfo(np.float32)
# Least side, in pixels, of copies in which knees are looked for: the plateau of an adult mostly has
# 100 pixels or more there, as in the images that the networks see, and letters stay legible.
SMALLEST_SIDE: Final = 480
LATERALITIES: Final = ("R", "L")  # sides of the patient
BOTH_KNEES: Final = "B"  # laterality of a film of both

Point = tuple[float, float]  # (x, y)


@dataclass(frozen=True, slots=True, eq=False)
class Radiograph:
    """One greyscale frame, without anything that identifies a patient.

    Pixel coordinates are continuous: pixel (row i, column j) covers [j, j + 1) x [i, i + 1),
    so (0, 0) is the film's top-left corner and its first pixel's centre is (0.5, 0.5).
    """

    pixels: NDArray[np.float32] = field(repr=False)  # (H, W), the darkest 0 and the brightest 1
    mm_per_px: float | None = None
    spacing_tag: str | None = None  # the DICOM keyword that mm_per_px came from
    laterality: str | None = None  # "L", "R" or "B": the patient's side, as tagged
    laterality_source: str = "header"  # or "name", of the file
    # Whether the picture shows the patient from the front, so that the patient's right is at its
    # left when it is upright; False for a mirrored picture, None if the header does not say.
    seen_from_front: bool | None = None
    view: str | None = None  # "AP", "PA", ...
    series: str | None = None  # series description
    polarity_tag: str | None = None  # "MONOCHROME1" was inverted on reading; "MONOCHROME2" was not
    copy_of: tuple[int, int] | None = None  # the film's size, if this is a smaller copy of it
    corner: float = 0.0  # x and y on the film, in its pixels, of the copy's top-left corner
    # Returns the film itself, if this is a copy of it.
    read_whole: Callable[[], "Radiograph"] | None = field(default=None, repr=False)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        height, width = self.pixels.shape
        return height, width

    @property
    def reduction(self) -> int:
        """How many times smaller than the film it is, a power of two."""
        return 1 if self.copy_of is None else 1 << round(math.log2(self.copy_of[1] / self.size[1]))

    def reduced(self) -> "Radiograph":
        """Return a smaller copy that is enough to find adult knees, or a small film itself."""
        factor = 1 if self.copy_of else spare_reduction(self.size)
        if factor == 1:
            return self
        return replace(
            self,
            pixels=average_blocks(self.pixels, factor),
            mm_per_px=None if self.mm_per_px is None else self.mm_per_px * factor,
            copy_of=self.size,
            read_whole=lambda: self,
        )

    def _repr_png_(self) -> bytes:
        """Return a small picture of the film, which notebooks show."""
        from kneematch.films.pictures import encode, small_picture

        return encode(small_picture(self.pixels), "png")


@contextmanager
def silent() -> Iterator[None]:
    """Drop remarks of pydicom and Pillow on odd headers, which may quote the patient."""

    def drop(record: logging.LogRecord) -> bool:
        return False

    loggers = [logging.getLogger(name) for name in ("pydicom", "PIL.TiffImagePlugin")]
    for logger in loggers:
        logger.addFilter(drop)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(drop)


@contextmanager
def decoding(path: Path, kind: str) -> Iterator[None]:
    """Turn what a decoder raises on broken input, which may be nearly anything, into NotAnImage.

    The message leaves out the error's text and its traceback, which may quote the header and with
    it the patient.
    """
    try:
        yield
    except (KneematchError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise NotAnImage(
            f"{path}: The {kind} cannot be decoded. Copy or export it again."
        ) from None


def check_size(
    path: Path, height: int, width: int, bytes_per_px: int, what: str = "The picture"
) -> int:
    """Refuse sizes that no film has, before anything is decoded, which takes `bytes_per_px`.

    Returns:
        The bytes of memory that decoding takes.
    """
    shown = f"{height} x {width}" if max(height, width) < 1 << 16 else "absurdly many"
    size = f"{path}: {what} has {shown} pixels"
    if height < 1 or width < 1:
        raise NotARadiograph(f"{size}.")
    if height * width > MAX_PIXELS:
        raise NotARadiograph(f"{size}, more than the limit of {MAX_PIXELS // 10**6} million.")
    needed, available = height * width * bytes_per_px, memory_budget(path)
    if needed > available:
        raise NotARadiograph(
            f"{size}. Decoding it would take {needed >> 20} MB of memory; the limit for a file of "
            f"its size is {available >> 20} MB."
        )
    return needed


def memory_budget(path: Path) -> int:
    """Return the bytes of memory that reading a file may take."""
    stored = MAX_BYTES if path == IN_MEMORY else path.stat().st_size
    return max(SMALL_FILE_MEMORY, MEMORY_PER_FILE_BYTE * stored)


def grey_of_colours(
    path: Path, pixels: NDArray[Any], full_scale: float, *, is_ybr: bool = False
) -> NDArray[Any]:
    """Return the grey levels (H, W) of a grey picture that is stored in colour.

    Args:
        pixels: (H, W, 3 or 4), in RGB or RGBA, or unsigned in YBR.
        full_scale: the value of white.
    """
    if is_ybr:
        grey, neutral = pixels[..., 0], pixels.dtype.type((full_scale + 1) // 2)
        others = pixels[..., 1], pixels[..., 2]
    else:
        grey = neutral = pixels[..., 1]
        others = pixels[..., 0], pixels[..., 2]
    for channel in others:
        difference = np.maximum(channel, neutral) - np.minimum(channel, neutral)
        if difference.max() > GREY_TOLERANCE * full_scale:
            raise NotARadiograph(f"{path}: The picture is in colour. Export it as greyscale.")
    return grey.copy()


def unit_range(
    path: Path,
    pixels: NDArray[Any],
    *,
    inverted: bool = False,
    padding: NDArray[np.bool_] | None = None,
    reduction: int = 1,
) -> NDArray[np.float32]:
    """Map stored values linearly to (H, W) in [0, 1], the darkest to 0; padding becomes 0.

    Display windows (VOI LUT) are not applied: they clip, and the normalised cross-correlation
    does not depend on gain and offset.

    Args:
        pixels: (H, W), integers or floats, possibly read-only.
        inverted: whether the highest value is the darkest.
        padding: (H, W), where there is no film; neither all nor none.
        reduction: a power of two; the means of blocks are returned, as `average_blocks` does.
    """
    lowest, highest = pixels.min(), pixels.max()  # NaN if any value is NaN
    if padding is not None:
        lowest, highest = (
            pixels.min(where=~padding, initial=highest),
            pixels.max(where=~padding, initial=lowest),
        )
    low, high = float(lowest), float(highest)
    if not np.isfinite([low, high]).all():
        raise NotARadiograph(f"{path}: Some pixels are NaN or infinite. Export it again.")
    if low >= high:
        raise NotARadiograph(f"{path}: Every pixel has the value {low:g}.")
    if not FLOAT32.tiny <= high - low <= FLOAT32.max:
        ends = f"from {low:g} to {high:g}"
        raise NotARadiograph(f"{path}: Pixels {ends} do not fit 32-bit floats. Rescale them.")
    dark, span = (high, low - high) if inverted else (low, high - low)
    height, width = (length // reduction for length in pixels.shape)
    unit = np.empty((height, width), np.float32)
    cache: NDArray[np.float32] = np.empty((ROWS_AT_ONCE, pixels.shape[1]), np.float32)
    for start in range(0, len(pixels), ROWS_AT_ONCE):  # in the CPU's cache: two thirds of the time
        rows = slice(start, start + ROWS_AT_ONCE)
        stored = pixels[rows]
        band: NDArray[np.float32] = unit[rows] if reduction == 1 else cache[: len(stored)]
        if pixels.dtype.itemsize <= 2:  # exact in float32
            band[:] = stored
            if dark:
                band -= np.float32(dark)
        else:  # subtracted before they are rounded
            np.subtract(stored, dark, out=band, dtype=np.float64, casting="same_kind")
        band /= np.float32(span)  # a division, so that the brightest is exactly 1
        if padding is not None:
            band[padding[rows]] = 0
        if reduction > 1:
            means = average_blocks(band, reduction)
            unit[start // reduction : start // reduction + len(means)] = means
    return unit


def spare_reduction(size: tuple[int, int]) -> int:
    """Return how many times smaller, a power of two, knees may be looked for in a film."""
    return 1 << int(math.log2(max(min(size) / SMALLEST_SIDE, 1)))


def average_blocks(pixels: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """Return the means of blocks of `side` x `side` pixels of an image (H, W).

    Rows and columns that fill no block are left out. A fifth of the time of avg_pool2d.
    """
    height, width = (length // side * side for length in pixels.shape)
    means = np.empty((height // side, width // side), np.float32)
    step = max(2 * ROWS_AT_ONCE // side, 1)  # so that the rows stay in the CPU's cache
    for start in range(0, len(means), step):
        some = means[start : start + step]
        band = pixels[start * side : (start + len(some)) * side]
        rows = sum((band[k::side] for k in range(1, side)), start=band[::side])
        blocks = sum((rows[:, k:width:side] for k in range(1, side)), start=rows[:, :width:side])
        np.multiply(blocks, np.float32(1 / side**2), out=some)
    return means
