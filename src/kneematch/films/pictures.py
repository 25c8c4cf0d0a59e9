"""Pictures of films: 8-bit grey for display, thumbnails, and PNG files that kneematch wrote."""

import base64
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import (
    Image,
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401 - or Pillow would load all plug-ins to find it
)
from PIL.PngImagePlugin import PngInfo

from kneematch.errors import SettingsError
from kneematch.films.files import atomic_write, check_suffix

Colour = tuple[int, int, int]

LEFT_COLOUR: Final = (255, 150, 40)
RIGHT_COLOUR: Final = (70, 170, 255)
THUMBNAIL_PX: Final = 512  # longest side; a knee has half of it on a film of both
THUMBNAIL_QUALITY: Final = 60
WINDOW: Final = (0.5, 99.5)  # percentiles shown as black and white
PNG: Final = ".png"
PNG_LEVEL: Final = 2  # compression level: files a tenth larger, written three times as fast
SOFTWARE: Final = "kneematch"  # in the pictures that it has drawn


def to_grey8(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return pixels (H, W) of any range as bytes, in a window robust to a few outliers."""
    low, high = np.percentile(pixels, WINDOW)
    if high <= low:  # nearly all pixels are equal
        low, high = float(pixels.min()), float(pixels.max())
    span = high - low if high > low else 1.0
    grey: NDArray[np.uint8] = np.rint(((pixels - low) / span).clip(0, 1) * 255).astype(np.uint8)
    return grey


def encode(picture: Image.Image, kind: str, **options: int) -> bytes:
    """Return the content of a picture's file, of a kind such as "jpeg"; options as Pillow's."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def data_url(picture: Image.Image, kind: str, **options: int) -> str:
    """Return a small picture as text, to place it inside HTML or JSON; arguments as `encode`."""
    content = base64.b64encode(encode(picture, kind, **options)).decode("ascii")
    return f"data:image/{kind};base64,{content}"


def thumbnail(pixels: NDArray[np.float32]) -> bytes:
    """Return a small copy of a film (H, W) in 8-bit grey, as WebP of about 10 kB."""
    height, width = pixels.shape
    scale = min(1.0, THUMBNAIL_PX / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    picture = Image.fromarray(pixels)
    if scale < 0.5:  # quicker than to resize all pixels
        picture = picture.reduce(int(1 / scale))
    small = picture.resize(size, Image.Resampling.BOX)
    grey = Image.fromarray(to_grey8(np.asarray(small)))
    return encode(grey, "webp", quality=THUMBNAIL_QUALITY, method=0)


def write_png16(path: str | os.PathLike[str], pixels: NDArray[np.float32]) -> None:
    """Write pixels (H, W) in [0, 1] as a grey PNG of 16 bits."""
    if pixels.ndim != 2 or pixels.size == 0:
        raise ValueError(f"The pixels must have the shape (H, W), not {pixels.shape}.")
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # false for NaN, too
        raise ValueError(f"The pixels must be in [0, 1], not {pixels.min()} to {pixels.max()}.")
    levels = np.rint(pixels * np.float32(65535)).astype(np.uint16)
    with atomic_write(path) as temp:
        Image.fromarray(levels).save(temp, format="PNG")


def save_picture(picture: Image.Image, path: str | os.PathLike[str]) -> None:
    """Write a picture that was drawn as PNG, marked as made by kneematch."""
    about = PngInfo()
    about.add_text("Software", SOFTWARE)
    with atomic_write(path) as temp:
        picture.save(temp, format="PNG", compress_level=PNG_LEVEL, pnginfo=about)


def check_picture_path(
    path: Path, films: Iterable[str | os.PathLike[str]] = (), *, out: Path | None = None
) -> None:
    """Raise SettingsError unless a picture may be written to a path.

    Args:
        path: its name ends in .png; a file that is there must be a picture that kneematch drew.
        films: files that are read, and so must not be replaced.
        out: a folder that will be made before the picture.
    """
    check_suffix(path, PNG, "a picture")
    if not path.parent.is_dir() and (out is None or path.parent.absolute() != out.absolute()):
        raise SettingsError(f"{path}: Its folder does not exist.")
    if not os.path.lexists(path):
        return
    if not is_own_picture(path) or any(
        path.samefile(film) for film in films if Path(film).exists()
    ):
        raise SettingsError(f"{path}: This file was not drawn by kneematch. Choose another name.")


def is_own_picture(path: Path) -> bool:
    """Return whether a file is a picture that kneematch drew."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            return picture.info.get("Software") == SOFTWARE
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError):
        return False
