"""Synthetic films of a part of the body that is no knee: a texture, laid anywhere on a film."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates

from kneematch.films.annotation import Annotation, annotate_part

SIZE = (420, 360)  # of a film
PART = 120  # pixels a side, at scale 1
Place = tuple[float, float, float, float, bool]  # x, y of the centre, scale, degrees, mirrored
DRAWN: Place = (210.0, 190.0, 1.0, 0.0, False)
LANDMARKS = {"a": (-25.0, -20.0), "b": (30.0, 5.0), "c": (-5.0, 35.0)}  # from the part's centre


def part_film(*places: Place, others: Sequence[Place] = (), seed: int = 1) -> NDArray[np.float32]:
    """Return a film with the part at each of these places, on a background of its own.

    `others`: places of another part.
    """
    textures = [
        gaussian_filter(np.random.default_rng(part).standard_normal((3 * PART, 3 * PART)), 6)
        for part in (0, 100)
    ]
    film = gaussian_filter(np.random.default_rng(seed).standard_normal(SIZE), 10)
    film = 0.25 * film / film.std()
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    for place, texture in [(p, textures[0]) for p in places] + [(p, textures[1]) for p in others]:
        cx, cy, scale, degrees, mirrored = place
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        across = (cos * (x - cx) + sin * (y - cy)) / scale * (-1 if mirrored else 1)
        down = (cos * (y - cy) - sin * (x - cx)) / scale
        inside = np.clip((0.6 * PART - np.hypot(across, down)) / 10, 0, 1)
        shown = map_coordinates(texture, [down + 1.5 * PART, across + 1.5 * PART], order=1)
        film = (1 - inside) * film + inside * shown / texture.std()
    return np.clip(0.5 + film / 8, 0, 1).astype(np.float32)


def landmark(name: str, place: Place) -> tuple[float, float]:
    """Return where a landmark of the part lies on the film."""
    (dx, dy), (cx, cy, scale, degrees, mirrored) = LANDMARKS[name], place
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    dx = -dx if mirrored else dx
    return cx + scale * (cos * dx - sin * dy), cy + scale * (sin * dx + cos * dy)


def save_film(path: Path, film: NDArray[np.float32]) -> Path:
    """Write a film as PNG."""
    Image.fromarray((65535 * film).astype(np.uint16)).save(path)
    return path


def part_annotation(folder: Path, find: str, *, other: bool = False) -> Annotation:
    """Write the film that the part, or the other one, is drawn on, and return the drawing."""
    film = save_film(
        folder / ("other.png" if other else "drawn.png"),
        part_film(others=[DRAWN]) if other else part_film(DRAWN),
    )
    x, y, half = DRAWN[0], DRAWN[1], 0.5 * PART
    box = (x - half, y - half, x + half, y + half)
    points = {name: landmark(name, DRAWN) for name in LANDMARKS}
    return annotate_part(film, find, box, points, SIZE[1] / 2)
