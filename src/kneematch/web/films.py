"""Films for the pages: read and kept in memory, and as JPEG."""

import threading
from functools import lru_cache
from pathlib import Path
from typing import Final

from PIL import Image

from kneematch.films.display import encode, to_grey8
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated

CACHED_FILMS: Final = 3  # in memory, each up to 50 MB
MAX_SIDE_PX: Final = 5000  # larger films are shown smaller
FILM_QUALITY: Final = 92  # JPEG quality at which compression errors are below a film's noise

_read = lru_cache(CACHED_FILMS)(read_isolated)
_reading = threading.Lock()


def read_film(path: Path) -> Radiograph:
    """Return a film, perhaps from the cache; one thread reads, and the others wait for it.

    Raises:
        FilmError: the film cannot be used, or its decoder crashed.
    """
    with _reading:
        return _read(path)


def film_jpeg(film: Radiograph) -> bytes:
    """Return the film as a JPEG file in 8-bit grey."""
    image = Image.fromarray(to_grey8(film.pixels))
    if max(image.size) > MAX_SIDE_PX:
        image.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX), Image.Resampling.BOX)
    return encode(image, "jpeg", quality=FILM_QUALITY)
