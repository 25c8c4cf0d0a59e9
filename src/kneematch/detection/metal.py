"""Recognise metal in a knee: a compact, evenly bright region in the bones, sharp all around.

Metal stops nearly all rays, so that it is as bright as the film allows and even; and it ends
abruptly. Bone may be as bright on the film, but fades over some millimetres, at least along a part
of its outline.
"""

from functools import cache, reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kneematch.geometry.sampling import resize
from kneematch.geometry.view import VIEW_WIDTH

Grey = NDArray[np.float32]
Mask = NDArray[np.bool_]

PLATEAU: Final = 100  # width of the plateau in what is looked at, in pixels
HEIGHTS: Final = (-0.8, 1.0)  # of the part that is looked at, from the joint, in plateau widths
ACROSS: Final = 0.7  # half the width of that part, in plateau widths
SIZE: Final = (round(PLATEAU * (HEIGHTS[1] - HEIGHTS[0])), round(PLATEAU * 2 * ACROSS))
REACH: Final = 0.5  # of the bones to either side at the joint, in plateau widths
SHAFT_REACH: Final = 0.3  # and away from it
SHAFT: Final = (0.3, 0.7)  # distances from the joint between which the bones narrow
BESIDE: Final = 0.6  # from here on, to either side, there is no bone
QUANTILES: Final = (5, 99.7)  # percentiles of the grey levels that become 0 and 1
LEVELS: Final = (0.5, 0.6, 0.7, 0.85, 0.95)  # grey levels from which a region is bright
THINNEST: Final = 3  # side of a square that fits into a region, in pixels; screws are 4 wide
SMALLEST: Final = 0.03  # area of a region, in squared plateau widths
IN_BONES: Final = 0.6  # share of a region that lies in the bones
NEARBY: Final = 5  # side of the square within which the brightness must fall, in pixels
SHARP_SHARE: Final = 0.8  # of an outline that must be sharp
UNEVENNESS: Final = 4.0  # standard deviations of a region's inside that the fall must exceed, too
# Fall of the brightness at an outline. Chosen on phantoms and real films with and without
# metal; benchmarks/kinds.py counts what is found on others.
SHARPNESS: Final = 0.2


def has_metal(view: Tensor) -> bool:
    """Return whether the knee in a view (400, 250), as `cut_views` makes it, has metal in it."""
    height, width = view.shape
    top, bottom = (round(height / 2 + edge * width / VIEW_WIDTH) for edge in HEIGHTS)
    left, right = (round(width / 2 + edge * width / VIEW_WIDTH) for edge in (-ACROSS, ACROSS))
    region = resize(view[top:bottom, left:right], SIZE).numpy()
    bones, beside = _bones_and_beside()
    if region[bones].mean() < region[:, beside].mean():  # a negative
        region = -region
    low, high = np.percentile(region, QUANTILES).astype(np.float32)
    return _has_metal(((region - low) / max(high - low, 1e-3)).clip(max=1.0), bones)


@cache
def _bones_and_beside() -> tuple[Mask, Mask]:
    """Return where bones lie (H, W), and which columns (W,) lie beside the leg."""
    away = np.abs((np.arange(SIZE[0]) + 0.5) / PLATEAU + HEIGHTS[0])
    across = np.abs((np.arange(SIZE[1]) + 0.5) / PLATEAU - ACROSS)
    return across < np.interp(away, SHAFT, (REACH, SHAFT_REACH))[:, None], across > BESIDE


def _has_metal(grey: Grey, bones: Mask) -> bool:
    """Return whether a bright region of grey levels (H, W) in the bones is even and sharp."""
    fall = _highest(grey, NEARBY) + _highest(-grey, NEARBY)
    compact = _highest(-_highest(-grey, THINNEST), THINNEST)
    bright = compact > np.array(LEVELS, np.float32)[:, None, None]
    places = np.flatnonzero(bright)
    pixel = places % grey.size  # of the bright ones at each level
    region = number_regions(bright)
    outline = ~_erode(bright).ravel()[places]
    edge, fall = region[outline], fall.ravel()[pixel[outline]]
    area = np.bincount(region)
    inside, length, sharp = (
        np.bincount(numbers, minlength=len(area))
        for numbers in (region[bones.ravel()[pixel]], edge, edge[fall > SHARPNESS])
    )
    possible = (area >= SMALLEST * PLATEAU**2) & (inside > IN_BONES * area)
    possible &= (length < area) & (sharp >= SHARP_SHARE * length.clip(min=1))
    for number in np.flatnonzero(possible):
        core = grey.ravel()[pixel[(region == number) & ~outline]]
        least = SHARPNESS + UNEVENNESS * core.std()
        if (fall[edge == number] > least).mean() >= SHARP_SHARE:
            return True
    return False


def _highest(image: Grey, side: int) -> Grey:
    """Return the largest value in the square around each pixel of an image (H, W)."""
    height, width = image.shape
    padded = np.pad(image, side // 2, mode="edge")
    rows = reduce(np.maximum, (padded[k : k + height] for k in range(side)))
    return reduce(np.maximum, (rows[:, k : k + width] for k in range(side)))


def _erode(masks: Mask) -> Mask:
    """Return which pixels of masks (N, H, W) have no neighbour outside their mask."""
    padded = np.pad(masks, ((0, 0), (1, 1), (1, 1)), constant_values=True)
    vertical = padded[:, :-2, 1:-1] & padded[:, 2:, 1:-1]
    return masks & vertical & padded[:, 1:-1, :-2] & padded[:, 1:-1, 2:]


def number_regions(masks: Mask) -> NDArray[np.int64]:
    """Return the number of the connected region of each pixel that is set in masks (N, H, W).

    SciPy's `ndimage.label` takes 0.2 s to import. Runs of pixels in a row are united with those
    that they touch in the next row: all get the lowest number.
    """
    padded = np.pad(masks, ((0, 0), (0, 1), (0, 1)))  # so that a run ends with its row
    changes = np.flatnonzero(np.diff(padded.ravel(), prepend=False))
    starts, stops = changes[::2], changes[1::2]
    below = padded.shape[2]
    first = np.searchsorted(stops, starts + below, side="right")
    touched = (np.searchsorted(starts, stops + below) - first).clip(min=0)
    upper = np.repeat(np.arange(len(starts)), touched)
    lower = np.arange(len(upper)) - np.repeat(np.cumsum(touched) - touched - first, touched)
    number = np.arange(len(starts))
    while (number[upper] != number[lower]).any():
        roots = number[upper], number[lower]
        for root in roots:
            np.minimum.at(number, root, np.minimum(*roots))
        number = number[number]
    rank = np.cumsum(number == np.arange(len(starts))) - 1  # of the lowest numbers
    return np.repeat(rank[number], stops - starts)
