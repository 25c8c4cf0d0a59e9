"""Films and pictures in the forms that the pages need: cached, as JPEG, as data URL."""

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

MAX_SIDE_PX: Final = 5000  # larger films are shown smaller
QUALITY: Final = 92  # JPEG quality at which compression errors are below a film's noise

Made = TypeVar("Made")

# `read` silences warnings, and changing the warning filters is not thread-safe.
_reading = threading.Lock()


def read_film(path: Path) -> Radiograph:
    """Read a film, one thread at a time."""
    with _reading:
        return read(path)


def locked_cache(make: Callable[[int], Made], size: int) -> Callable[[int], Made]:
    """Return `make` with an LRU cache; threads that need the same value wait for one of them."""
    lock = threading.Lock()
    cached = lru_cache(size)(make)

    def get(number: int) -> Made:
        with lock:
            return cached(number)

    return get


def film_jpeg(film: Radiograph) -> bytes:
    """Return the film as a JPEG file in 8-bit grey."""
    image = Image.fromarray(to_grey8(film.pixels))
    if max(image.size) > MAX_SIDE_PX:
        image.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX), Image.Resampling.BOX)
    return jpeg(image)


def jpeg(image: Image.Image, quality: int = QUALITY) -> bytes:
    """Encode an image as JPEG."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def data_url(image: Image.Image) -> str:
    """Encode a small image as a data URL, to send it inside JSON."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
