"""Convert films to 8-bit grey for display, encode pictures, and the colours of the two sides."""

import base64
import io
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

Colour = tuple[int, int, int]

LEFT_COLOUR: Final = (255, 150, 40)
RIGHT_COLOUR: Final = (70, 170, 255)
THUMBNAIL_PX: Final = 512  # longest side; a knee has half of it on a film of both
THUMBNAIL_QUALITY: Final = 60
WINDOW: Final = (0.5, 99.5)  # percentiles shown as black and white


def to_grey8(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return pixels (H, W) of any range as bytes, in a window robust to a few outliers."""
    low, high = np.percentile(pixels, WINDOW)
    if high <= low:  # nearly all pixels are equal
        low, high = float(pixels.min()), float(pixels.max())
    span = high - low if high > low else 1.0
    grey: NDArray[np.uint8] = np.rint(((pixels - low) / span).clip(0, 1) * 255).astype(np.uint8)
    return grey


def encode(picture: "Image.Image", kind: str, **options: int) -> bytes:
    """Return the content of a picture's file, of a kind such as "jpeg"; options as Pillow's."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def data_url(picture: "Image.Image", kind: str, **options: int) -> str:
    """Return a small picture as text, to place it inside HTML or JSON; arguments as `encode`."""
    content = base64.b64encode(encode(picture, kind, **options)).decode("ascii")
    return f"data:image/{kind};base64,{content}"


def thumbnail(pixels: NDArray[np.float32]) -> bytes:
    """Return a small copy of a film (H, W) in 8-bit grey, as WebP of about 10 kB."""
    from PIL import Image

    height, width = pixels.shape
    scale = min(1.0, THUMBNAIL_PX / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    picture = Image.fromarray(pixels)
    if scale < 0.5:  # quicker than to resize all pixels
        picture = picture.reduce(int(1 / scale))
    small = picture.resize(size, Image.Resampling.BOX)
    grey = Image.fromarray(to_grey8(np.asarray(small)))
    return encode(grey, "webp", quality=THUMBNAIL_QUALITY, method=0)
