"""Read a radiograph from a PNG, JPEG or TIFF file; these carry no spacing, side or view."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from kneematch.errors import NotAnImage, NotARadiograph
from kneematch.films.limits import check_size, decoding
from kneematch.films.radiograph import ROWS_AT_ONCE, Radiograph, grey_from_rgb, unit_range

FORMATS: Final = ("PNG", "JPEG", "TIFF")
GREY_MODES: Final = ("L", "I;16", "I;16B", "I", "F")
BYTES_PER_PX: Final = 16  # at the peak, for 32-bit values, of which Pillow makes two copies
TIFF_PHOTOMETRIC: Final = 262
TIFF_WHITE_IS_ZERO: Final = 0
BAD_EXIF: Final = (SyntaxError, ValueError, TypeError, LookupError, struct.error)


def read_image(file: BinaryIO, path: Path) -> Radiograph:
    """Read a picture file that is open at its beginning."""
    with decoding(path, "picture"):
        image = _open(file, path)
    with image, decoding(path, f"{image.format} picture"):
        _check_kind(image, path)
        image.load()
        if image.mode in GREY_MODES:
            pixels = np.asarray(image)
        else:
            pixels = grey_from_rgb(path, _rgba_bands(image, path), full_scale=255)
        pixels = _upright(pixels, image)
        # Pillow inverts a TIFF of 8 bits that stores white as 0, but no other.
        tags = getattr(image, "tag_v2", {})
        inverted = image.mode != "L" and tags.get(TIFF_PHOTOMETRIC) == TIFF_WHITE_IS_ZERO
    return Radiograph(unit_range(path, pixels, inverted=inverted))


def _open(file: BinaryIO, path: Path) -> Image.Image:
    try:
        return Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError:
        raise NotARadiograph(
            f"{path}: more pixels than any film has; expected a film; check the file"
        ) from None
    except UnidentifiedImageError:
        raise NotAnImage(
            f"{path}: neither DICOM nor PNG, JPEG or TIFF; expected one of these; "
            "check or convert the file"
        ) from None


def _check_kind(image: Image.Image, path: Path) -> None:
    check_size(path, image.height, image.width, BYTES_PER_PX)
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise NotARadiograph(
            f"{path}: {frames} frames; expected one; save the film alone in a file"
        )
    if image.mode == "1":
        raise NotARadiograph(
            f"{path}: a black-and-white picture of 1 bit; expected grey levels of 8 or 16 bits; "
            "export it as greyscale"
        )


def _rgba_bands(image: Image.Image, path: Path) -> Iterator[NDArray[np.uint8]]:
    """Convert palettes, CMYK and other colours to RGBA, a few rows at a time to save memory."""
    for top in range(0, image.height, ROWS_AT_ONCE):
        rows = (0, top, image.width, min(top + ROWS_AT_ONCE, image.height))
        band = np.asarray(image.crop(rows).convert("RGBA"))
        if band[..., 3].min() < 255:
            raise NotARadiograph(
                f"{path}: partly transparent; expected an opaque picture; flatten and save it again"
            )
        yield band


def _upright(pixels: NDArray[Any], image: Image.Image) -> NDArray[Any]:
    """Turn pixels (H, W) as the EXIF orientation says; Pillow has done so for TIFF already."""
    try:
        orientation = (
            1 if image.format == "TIFF" else image.getexif().get(ExifTags.Base.Orientation)
        )
    except BAD_EXIF:
        return pixels
    if orientation in (5, 6, 7, 8):
        pixels = pixels.T
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels
