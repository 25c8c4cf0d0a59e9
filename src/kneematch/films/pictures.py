"""Pictures of films: 8-bit grey for display, thumbnails, and PNG files."""

import base64
import io
import os
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kneematch.films.files import atomic_write, write_file
from kneematch.films.radiograph import average_blocks

Colour = tuple[int, int, int]

LEFT_COLOUR: Final = (255, 150, 40)
RIGHT_COLOUR: Final = (70, 170, 255)
THUMBNAIL_PX: Final = 512  # longest side; a knee has half of it on a film of both
THUMBNAIL_QUALITY: Final = 50
WINDOW: Final = (0.5, 99.5)  # percentiles shown as black and white
NARROWEST: Final = 1e-3  # window that can be chosen, as a share of that
WINDOW_SIDE: Final = 256  # rows and columns, at least, that are looked at for these
PNG_RLE, PNG_PAETH = 3, 128  # strategy and filter of libpng
PICTURE_QUALITY: Final = 70  # a picture of 1,600 pixels a side has about 100 kB


def to_grey8(
    pixels: NDArray[np.float32], window: tuple[float, float] = (0.0, 1.0)
) -> NDArray[np.uint8]:
    """Return pixels (H, W) of any range as bytes, in a window robust to a few outliers.

    Black and white can be chosen as shares of that window, which keeps the film's own depth.
    """
    step = max(1, min(pixels.shape) // WINDOW_SIDE)
    low, high = np.percentile(pixels[::step, ::step], WINDOW)
    if high <= low:  # nearly all pixels are equal
        low, high = float(pixels.min()), float(pixels.max())
    span = high - low if high > low else 1.0
    low, span = low + window[0] * span, max(window[1] - window[0], NARROWEST) * span
    grey = pixels * np.float32(255 / span)
    grey += np.float32(0.5 - 255 * low / span)  # so that truncation rounds
    return grey.clip(0, 255, out=grey).astype(np.uint8)


def encode(picture: Image.Image, kind: str, **options: int) -> bytes:
    """Return the content of a picture's file, of a kind such as "jpeg"; options as Pillow's."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def data_url(content: bytes, kind: str) -> str:
    """Return the content of a picture's file as text, to place it inside HTML or JSON."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def thumbnail(pixels: NDArray[np.float32]) -> bytes:
    """Return a small copy of a film (H, W) in 8-bit grey, as JPEG of about 10 kB."""
    return encode(small_picture(pixels), "jpeg", quality=THUMBNAIL_QUALITY)


def small_picture(pixels: NDArray[np.float32]) -> Image.Image:
    """Return a film (H, W) in 8-bit grey, of at most THUMBNAIL_PX a side."""
    height, width = pixels.shape
    scale = min(1.0, THUMBNAIL_PX / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    larger = int(1 / scale)
    step = max(1, larger // 2)  # two rows and columns for each of the copy are enough
    small = average_blocks(pixels[::step, ::step], min(larger, 2))
    return Image.fromarray(to_grey8(small)).resize(size, Image.Resampling.BOX)


def write_png16(path: str | os.PathLike[str], pixels: NDArray[np.float32]) -> None:
    """Write pixels (H, W) in [0, 1] as a grey PNG of 16 bits."""
    levels = np.rint(pixels * np.float32(65535)).astype(np.uint16)
    import imagecodecs  # takes 0.1 s

    # A seventh of the time of zlib's level 6, and files of the same size (docs/results.md).
    fast = {"level": 1, "strategy": PNG_RLE, "filter": PNG_PAETH}
    write_file(path, bytes(imagecodecs.png_encode(levels, **fast)))


def save_picture(picture: Image.Image, path: str | os.PathLike[str]) -> None:
    """Write a picture as JPEG."""
    with atomic_write(path) as temp:
        picture.save(temp, "JPEG", quality=PICTURE_QUALITY)
