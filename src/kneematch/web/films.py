"""Films in memory, a few at a time, and their pictures for the page."""

import base64
import io
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

from PIL import Image

from kneematch.io.display import to_grey8
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read

LONGEST_PX: Final = 5000  # side of a film's picture; larger films are shown smaller
QUALITY: Final = 92  # of JPEG, at which its errors are below a film's noise

Made = TypeVar("Made")

# `read` silences warnings, which only one thread at a time may.
_reading = threading.Lock()


def read_film(path: Path) -> Radiograph:
    """`read`, by one thread at a time."""
    with _reading:
        return read(path)


def remembered(make: Callable[[int], Made], most: int) -> Callable[[int], Made]:
    """`make`, which keeps what was last asked for, and makes it once if several threads ask."""
    making = threading.Lock()
    kept = lru_cache(most)(make)

    def get(number: int) -> Made:
        with making:
            return kept(number)

    return get


def picture(film: Radiograph) -> bytes:
    """The film in 8 bits of grey, window-levelled, as JPEG."""
    image = Image.fromarray(to_grey8(film.pixels))
    if max(image.size) > LONGEST_PX:
        image.thumbnail((LONGEST_PX, LONGEST_PX), Image.Resampling.BOX)
    return jpeg(image)


def jpeg(image: Image.Image, quality: int = QUALITY) -> bytes:
    """A picture's file."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def inline(image: Image.Image) -> str:
    """A small picture as an address that holds all of it."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
