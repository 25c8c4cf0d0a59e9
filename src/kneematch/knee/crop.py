"""Cut the joint area from its film: upright, of a standard size, resampled once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.errors import NotARadiograph, SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detection import Detection
from kneematch.sampling import axes_to_film, compose, rectangle_to_film, sample

MOST_PX: Final = 8192  # longest side; a larger crop must be a mistake
# Without spacing, an area is taken to be as wide as the box that one draws around a joint: films
# with and without spacing then have crops that show about the same.
ASSUMED_WIDTH_MM: Final = 100.0


@dataclass(frozen=True, slots=True)
class CropSize:
    """How large crops are: `mm` where the film has spacing, else `px`, else as if it had."""

    mm: float | None = 140.0  # side of the square; None and no px: the area's own shape
    spacing_mm: float | None = 0.3  # pixel spacing of the crop; None: the film's own pixels
    px: int | None = None  # side of the square in film pixels, which are not resized
    mirror: bool = False  # turn every knee as the picture's right half has it

    def __post_init__(self) -> None:
        for name in ("mm", "spacing_mm", "px"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise SettingsError(f"The {name} of crops must be more than 0, not {value}.")
        side = max(self.px or 0.0, (self.mm or 0.0) / (self.spacing_mm or math.inf))
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

    Args:
        found: the detection.
        size: how large the crop is.
        assumed_mm_per_px: spacing where the film has none, one for all its knees so that they have
            the same scale; default: that of this knee alone.

    Raises:
        NotARadiograph: the film's spacing is such that the crop would be far too large.
    """
    rows, columns, step = _extent(found, size, assumed_mm_per_px)
    # Unit vectors on the film along the crop's rows and down its columns.
    across = (found.corners[1] - found.corners[0]) / found.width_px
    down = (found.corners[3] - found.corners[0]) / found.height_px
    if found.mirrored and not size.mirror:  # the area's own axes are a mirror already
        across = -across
    to_film = axes_to_film(step * columns / 2 * across, step * rows / 2 * down, found.centre)
    return CropPlace((rows, columns), to_film)


def cut(film: Radiograph, place: CropPlace) -> NDArray[np.float32]:
    """Return the crop (height, width): black beyond the film, large pixels averaged, in [0, 1]."""
    pixels = torch.from_numpy(film.pixels)
    height, width = film.size
    into_film = compose(torch.linalg.inv(rectangle_to_film(0, 0, width, height)), place.to_film)
    rows, columns = place.size
    finer = math.ceil(place.step_px - 1e-6)  # so that no film pixel is stepped over
    finer = max(1, min(finer, MOST_PX // max(rows, columns)))  # bounded for a senseless spacing
    fine = sample(pixels, into_film[:2].to(pixels), (finer * rows, finer * columns))
    crop = fine.reshape(rows, finer, columns, finer).mean((1, 3)).clamp(0, 1)  # for rounding
    values: NDArray[np.float32] = crop.numpy()
    return values


def _extent(
    found: Detection, size: CropSize, assumed_mm_per_px: float | None
) -> tuple[int, int, float]:
    """Return the rows and columns of a crop, and the length of its pixels in those of the film."""
    if size.px is not None and (size.mm is None or found.mm_per_px is None):
        return size.px, size.px, 1.0
    mm_per_px = found.mm_per_px or assumed_mm_per_px or assumed_spacing([found])
    step = 1.0 if size.spacing_mm is None else size.spacing_mm / mm_per_px
    if size.mm is None:
        height, width = found.height_px / step, found.width_px / step
    else:
        height = width = size.mm / mm_per_px / step
    if max(height, width) > MOST_PX:
        raise NotARadiograph(
            f"The crop would have {height:.0f} x {width:.0f} pixels, and at most {MOST_PX} a side "
            "are possible. Check the film's spacing, or ask for crops in pixels."
        )
    return max(1, round(height)), max(1, round(width)), step
