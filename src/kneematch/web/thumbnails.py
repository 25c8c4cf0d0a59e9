"""Thumbnails of knees, made on demand and cached in the folder of the run."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kneematch.detection.detection import Detection
from kneematch.detection.overlay import draw_detections
from kneematch.io.atomic import write_aside
from kneematch.io.radiograph import Radiograph
from kneematch.web.films import jpeg

FOLDER: Final = "review-cache"
SIDE_PX: Final = 320
QUALITY: Final = 85
FIELD: Final = 1.9  # side of the square that is shown, in widths of the area
VERSION: Final = b"2"  # bump when the drawing changes


def thumbnail_key(film: str, knee: Detection) -> str:
    """Return the file name (without suffix) of a knee's thumbnail; it changes with the area."""
    digest = hashlib.sha256(VERSION + film.encode("utf-8", "surrogateescape"))
    digest.update(knee.corners.round(2).tobytes() + f"{knee.loss:.2f}".encode())
    return digest.hexdigest()[:24]


def make_thumbnail(path: Path, film: Radiograph, knee: Detection) -> None:
    """Draw a knee with its area and cache it, readable by the owner only."""
    path.parent.mkdir(exist_ok=True)
    path.parent.chmod(0o700)  # also where an earlier version made it
    with write_aside(path) as aside:
        aside.touch(mode=0o600)
        aside.write_bytes(draw_thumbnail(film, knee))


def draw_thumbnail(film: Radiograph, knee: Detection) -> bytes:
    """Return a JPEG file of the surroundings of an area with its outline."""
    reach = FIELD * max(knee.width_px, knee.height_px) / 2
    height, width = film.size
    x0, y0 = (int(max(0, knee.centre[k] - reach)) for k in (0, 1))
    x1, y1 = (int(min((width, height)[k], knee.centre[k] + reach)) for k in (0, 1))
    if x1 - x0 < 2 or y1 - y0 < 2:  # the area lies outside the film
        x0, y0, x1, y1 = 0, 0, width, height
    factor = max(1, max(x1 - x0, y1 - y0) // (2 * SIDE_PX))
    part = Radiograph(_reduce(film.pixels[y0:y1, x0:x1], factor))
    corners = (knee.corners - (x0, y0)) / factor
    shown = replace(knee, corners=corners, width_px=knee.width_px / factor, landmarks={})
    return jpeg(draw_detections(part, [shown], longest_px=SIDE_PX, thumbnail=True), QUALITY)


def _reduce(pixels: NDArray[np.float32], factor: int) -> NDArray[np.float32]:
    """Average squares of pixels (H, W), since drawing all of them would be slow."""
    return np.asarray(Image.fromarray(pixels).reduce(factor), np.float32)
