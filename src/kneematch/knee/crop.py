"""Cut the joint area from its film: upright, of a standard size, resampled once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.films.radiograph import Radiograph, average_blocks
from kneematch.knee.detection import CORNERS, Detection
from kneematch.sampling import Span, axes_to_film, compose, rectangle_to_film, sample, transform
from kneematch.settings import check_type

MOST_PX: Final = 8192  # longest side; a larger crop must be a mistake
# Without spacing, an area is taken to be as wide as the box that one draws around a joint: films
# with and without spacing then have crops that show about the same.
ASSUMED_WIDTH_MM: Final = 100.0


@dataclass(frozen=True, slots=True)
class CropSize:
    """How large crops are."""

    mm: float = 140.0  # side of the square
    spacing_mm: float = 0.3  # pixel spacing of the crop
    mirror: bool = False  # turn every knee as the picture's right half has it

    def __post_init__(self) -> None:
        for item in fields(self):
            check_type(item.name, getattr(self, item.name), item.type)
        if not (self.mm > 0 and self.spacing_mm > 0):
            raise SettingsError("The size and the pixel spacing of crops must be more than 0.")
        side = self.mm / self.spacing_mm
        if side > MOST_PX:
            raise SettingsError(
                f"Crops of {side:.0f} pixels a side are too large; at most {MOST_PX} are possible. "
                "Choose a smaller size or a larger spacing."
            )


@dataclass(frozen=True, slots=True, eq=False)
class CropPlace:
    """Where a crop lies on its film."""

    size: tuple[int, int]  # (height, width) of the crop
    to_film: Tensor  # (3, 3) float64, from [-1, 1]^2

    @property
    def step_px(self) -> float:
        """Length of the crop's pixels, in those of the film."""
        return 2 * math.hypot(*self.to_film[:2, 0].tolist()) / self.size[1]

    @property
    def pixel_map(self) -> NDArray[np.float64]:
        """(2, 3), from the crop's pixels to the film's; both count from their top left corner."""
        height, width = self.size
        from_pixels = torch.linalg.inv(rectangle_to_film(0, 0, width, height))
        matrix: NDArray[np.float64] = compose(self.to_film, from_pixels)[:2].numpy()
        return matrix


def assumed_spacing(knees: Sequence[Detection]) -> float:
    """Return the mm per pixel of a film without spacing: as if its areas were 100 mm wide."""
    return ASSUMED_WIDTH_MM * len(knees) / sum(knee.width_px for knee in knees)


def place(found: Detection, size: CropSize, assumed_mm_per_px: float | None = None) -> CropPlace:
    """Return where the crop of a detection lies on its film.

    Where the film has no spacing, an assumed one that all its knees share gives them the same
    scale; the default is that of this knee alone.
    """
    mm_per_px = found.mm_per_px or assumed_mm_per_px or assumed_spacing([found])
    # Pixels of the crop, and film pixels for each
    side, step = max(1, round(size.mm / size.spacing_mm)), size.spacing_mm / mm_per_px
    # Unit vectors on the film along the crop's rows and down its columns.
    across = (found.corners[1] - found.corners[0]) / found.width_px
    down = (found.corners[3] - found.corners[0]) / found.height_px
    if found.mirrored and not size.mirror:  # the area's own axes are a mirror already
        across = -across
    to_film = axes_to_film(step * side / 2 * across, step * side / 2 * down, found.centre)
    return CropPlace((side, side), to_film)


def cut(film: Radiograph, place: CropPlace, beyond: str = "zeros") -> NDArray[np.float32]:
    """Return the crop (height, width) in [0, 1], large pixels averaged; `beyond`: see `sample`."""
    height, width = film.size
    x, y = transform(place.to_film, place.to_film.new_tensor(CORNERS)).T.tolist()
    left, right = _span(x, width)
    top, bottom = _span(y, height)
    # What is needed of the film is copied first, which brings it into the CPU's cache.
    pixels = torch.from_numpy(film.pixels[top:bottom, left:right].copy())
    into_film = compose(
        torch.linalg.inv(rectangle_to_film(left, top, right, bottom)), place.to_film
    )
    rows, columns = place.size
    finer = round(place.step_px)  # samples about a film pixel apart, so that none is stepped over
    finer = max(1, min(finer, MOST_PX // max(rows, columns)))  # bounded for a senseless spacing
    fine = sample(pixels, into_film[:2].to(pixels), (finer * rows, finer * columns), beyond)
    return average_blocks(fine.numpy(), finer).clip(0, 1)  # for rounding


def _span(places: Sequence[float], length: int) -> Span:
    """Return the pixels of a film's side that have or adjoin places; at least one."""
    first = min(max(math.floor(min(places)) - 1, 0), length - 1)
    return first, max(min(math.ceil(max(places)) + 1, length), first + 1)
