"""Films for the pages: read and kept in memory, as JPEG, and as thumbnails of their knees."""

import hashlib
import threading
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from kneematch.films.files import make_folder, write_file
from kneematch.films.pictures import encode, to_grey8
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_isolated
from kneematch.knee.detection import Detection
from kneematch.knee.overlay import draw_detections

CACHED_FILMS: Final = 3  # in memory, each up to 50 MB
MAX_SIDE_PX: Final = 5000  # larger films are shown smaller
FILM_QUALITY: Final = 92  # JPEG quality at which compression errors are below a film's noise

THUMBNAIL_PX: Final = 320
THUMBNAIL_QUALITY: Final = 85
THUMBNAIL_FIELD: Final = 1.9  # side of the square that is shown, in widths of the area
THUMBNAIL_VERSION: Final = b"3"  # bump when the drawing changes

_read = lru_cache(CACHED_FILMS)(read_isolated)
_reading = threading.Lock()


def read_film(path: Path) -> Radiograph:
    """Return a film, perhaps from the cache; one thread reads, and the others wait for it.

    Raises:
        FilmError: The film cannot be used, or its decoder crashed.
    """
    with _reading:
        return _read(path)


def film_jpeg(film: Radiograph) -> bytes:
    """Return the film as a JPEG file in 8-bit grey."""
    image = Image.fromarray(to_grey8(film.pixels))
    if max(image.size) > MAX_SIDE_PX:
        image.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX), Image.Resampling.BOX)
    return encode(image, "jpeg", quality=FILM_QUALITY)


def thumbnail_key(film: str, knee: Detection | None) -> str:
    """Return the file name (without suffix) of a thumbnail; it changes with what is drawn."""
    digest = hashlib.sha256(THUMBNAIL_VERSION + film.encode("utf-8", "surrogateescape"))
    if knee is not None:
        drawn = f"{knee.loss:.2f} {knee.laterality} {knee.review}"
        digest.update(knee.corners.round(2).tobytes() + drawn.encode())
    return digest.hexdigest()[:24]


def make_thumbnail(path: Path, film: Radiograph, knee: Detection | None) -> None:
    """Draw an area with its surroundings, or a whole film; the file is for the owner only."""
    part, shown = (film, []) if knee is None else _around(film, knee)
    picture = draw_detections(part, shown, longest_px=THUMBNAIL_PX, thumbnail=True, reasons=False)
    make_folder(path.parent)
    path.parent.chmod(0o700)  # also where an earlier version made it
    write_file(path, encode(picture, "jpeg", quality=THUMBNAIL_QUALITY))


def _around(film: Radiograph, knee: Detection) -> tuple[Radiograph, list[Detection]]:
    """Return the part of a film around a knee, reduced in size, and the knee in its pixels."""
    reach = THUMBNAIL_FIELD * max(knee.width_px, knee.height_px) / 2
    height, width = film.size
    x0, y0 = (int(max(0, knee.centre[k] - reach)) for k in (0, 1))
    x1, y1 = (int(min((width, height)[k], knee.centre[k] + reach)) for k in (0, 1))
    if x1 - x0 < 2 or y1 - y0 < 2:  # the area lies outside the film
        x0, y0, x1, y1 = 0, 0, width, height
    # Drawing all pixels would be slow, so squares of them are averaged first.
    factor = max(1, max(x1 - x0, y1 - y0) // (2 * THUMBNAIL_PX))
    reduced = Image.fromarray(film.pixels[y0:y1, x0:x1]).reduce(factor)
    corners = (knee.corners - (x0, y0)) / factor
    area = replace(knee, landmarks={}, outlines=None)
    shown = replace(area, corners=corners, width_px=knee.width_px / factor)
    return Radiograph(np.asarray(reduced, np.float32)), [shown]
