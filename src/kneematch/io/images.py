"""PNG, JPEG and TIFF films, through Pillow; they carry no spacing, side or view."""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from kneematch.errors import NotAnImage, NotARadiograph
from kneematch.io.intensity import Stored, check_size, decoding, grey_channel, unit_range
from kneematch.io.radiograph import Radiograph

FORMATS = ("PNG", "JPEG", "TIFF")
GREY_MODES = ("L", "I;16", "I;16B", "I", "F")
TIFF_PHOTOMETRIC = 262
TIFF_WHITE_IS_ZERO = 0


def read_image(file: BinaryIO, path: Path) -> Radiograph:
    """Read a picture file that is open at its beginning."""
    with _identified(file, path) as image, decoding(path, f"{image.format} picture"):
        _check_kind(image, path)
        image.load()
        stored = Stored(_grey(image, path), inverted=_white_is_zero(image))
    return Radiograph(unit_range(path, stored))


def _identified(file: BinaryIO, path: Path) -> Image.Image:
    try:
        with decoding(path, "picture"):
            return Image.open(file, formats=FORMATS)
    except NotAnImage as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise NotARadiograph(
                f"{path}: more pixels than any film has; expected a film; check the file"
            ) from error
        if isinstance(error.__cause__, UnidentifiedImageError):
            raise NotAnImage(
                f"{path}: neither DICOM nor PNG, JPEG or TIFF; expected one of these; "
                "check or convert the file"
            ) from error
        raise


def _check_kind(image: Image.Image, path: Path) -> None:
    check_size(path, image.height, image.width)
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


def _grey(image: Image.Image, path: Path) -> NDArray[Any]:
    if image.mode in GREY_MODES:
        return np.asarray(image)
    # Palettes, transparency and the printers' colour spaces all have an RGB picture to judge.
    pixels = np.asarray(image.convert("RGBA"))
    if pixels[..., 3].min() < 255:
        raise NotARadiograph(
            f"{path}: partly transparent; expected an opaque picture; flatten and save it again"
        )
    return grey_channel(path, pixels[..., :3], full_scale=255)


def _white_is_zero(image: Image.Image) -> bool:
    """Whether a TIFF's header inverts its values and Pillow has not, as it does for 8 bits."""
    tags = getattr(image, "tag_v2", {})
    return image.mode != "L" and tags.get(TIFF_PHOTOMETRIC) == TIFF_WHITE_IS_ZERO
