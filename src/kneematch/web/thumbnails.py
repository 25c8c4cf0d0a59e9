"""Small pictures of knees, made when they are asked for and kept beside the run."""

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
AROUND: Final = 1.9  # side of the square that is shown, in widths of the area
VERSION: Final = b"1"  # of how they look


def key_of(film: str, found: Detection) -> str:
    """The name of a knee's picture, another one when its area has moved."""
    digest = hashlib.sha256(VERSION + film.encode("utf-8", "surrogateescape"))
    digest.update(found.corners.round(2).tobytes() + f"{found.loss:.2f}".encode())
    return digest.hexdigest()[:24]


def kept(folder: Path, key: str) -> Path:
    """Where the picture of a key is, or will be."""
    return folder / f"{key}.jpg"


def make(folder: Path, film: Radiograph, key: str, found: Detection) -> None:
    """Draw a knee with its area, and keep the picture."""
    folder.mkdir(exist_ok=True)
    with write_aside(kept(folder, key)) as aside:
        aside.write_bytes(draw(film, found))


def draw(film: Radiograph, found: Detection) -> bytes:
    """The surroundings of an area, and its outline."""
    half = AROUND * max(found.width_px, found.height_px) / 2
    height, width = film.size
    x0, y0 = (int(max(0, found.centre[k] - half)) for k in (0, 1))
    x1, y1 = (int(min((width, height)[k], found.centre[k] + half)) for k in (0, 1))
    if x1 - x0 < 2 or y1 - y0 < 2:  # the area lies beside the film
        x0, y0, x1, y1 = 0, 0, width, height
    by = max(1, max(x1 - x0, y1 - y0) // (2 * SIDE_PX))
    part = Radiograph(_smaller(film.pixels[y0:y1, x0:x1], by))
    corners = (found.corners - (x0, y0)) / by
    shown = replace(found, corners=corners, width_px=found.width_px / by, landmarks={})
    return jpeg(draw_detections(part, [shown], longest_px=SIDE_PX), QUALITY)


def _smaller(pixels: NDArray[np.float32], by: int) -> NDArray[np.float32]:
    """Means of squares of pixels: much less to draw, and no loss to the eye."""
    return np.asarray(Image.fromarray(pixels).reduce(by), np.float32)
