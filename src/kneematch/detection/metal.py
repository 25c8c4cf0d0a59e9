"""Recognise metal in a knee: a compact, evenly bright region in the bones, sharp all around.

Metal stops nearly all rays, so that it is as bright as the film allows and even; and it ends
abruptly. Bone may be as bright on the film, but fades over some millimetres, at least along a part
of its outline.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from kneematch.geometry.knee_view import VIEW_WIDTH
from kneematch.geometry.sampling import resize

Grey = NDArray[np.float32]
Mask = NDArray[np.bool_]

PLATEAU: Final = 100  # width of the plateau in the reduced view, in pixels
HEIGHTS: Final = (-0.8, 1.0)  # of the part that is looked at, from the joint, in plateau widths
ACROSS: Final = 0.7  # half the width of that part, in plateau widths
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
UNEVENNESS: Final = 4.0  # standard deviations of the brightness that count against a region
# Least fall of the brightness at an outline. Chosen on phantoms and real films with and without
# metal; benchmarks/kinds.py counts what is found on others.
SHARPNESS: Final = 0.2


def has_metal(view: Tensor) -> bool:
    """Return whether the knee in a view (800, 500), as `cut_views` makes it, has metal in it."""
    height, width = view.shape
    top, bottom = (round(height / 2 + edge * width / VIEW_WIDTH) for edge in HEIGHTS)
    left, right = (round(width / 2 + edge * width / VIEW_WIDTH) for edge in (-ACROSS, ACROSS))
    size = round(PLATEAU * (HEIGHTS[1] - HEIGHTS[0])), round(PLATEAU * 2 * ACROSS)
    region = resize(view[top:bottom, left:right], size).numpy()
    bones = _bones(region.shape)
    region = -region if _is_negative(region, bones) else region
    low, high = np.percentile(region, QUANTILES)
    return _sharpest(((region - low) / max(high - low, 1e-3)).clip(max=1.0), bones) > SHARPNESS


def _bones(shape: tuple[int, ...]) -> Mask:
    """Return where bones lie: wide at the joint, narrow along the shafts."""
    away = np.abs((np.arange(shape[0]) + 0.5) / PLATEAU + HEIGHTS[0])
    across = np.abs((np.arange(shape[1]) + 0.5) / PLATEAU - ACROSS)
    return np.asarray(across < np.interp(away, SHAFT, (REACH, SHAFT_REACH))[:, None])


def _is_negative(region: Grey, bones: Mask) -> bool:
    """Return whether the bones in a region (H, W) are darker than what lies beside the leg."""
    beside = np.abs((np.arange(region.shape[1]) + 0.5) / PLATEAU - ACROSS) > BESIDE
    return bool(region[bones].mean() < region[:, beside].mean())


def _sharpest(grey: Grey, bones: Mask) -> float:
    """Return the sharpness of the sharpest region in the bones, of grey levels (H, W)."""
    fall = ndimage.morphological_gradient(grey, NEARBY)
    compact = ndimage.grey_opening(grey, THINNEST)
    found = (
        _sharpness(grey[around], fall[around], part)
        for level in LEVELS
        for around, part in _parts(compact > level, bones)
    )
    return max(found, default=0.0)


def _parts(bright: Mask, bones: Mask) -> Iterator[tuple[tuple[slice, ...], Mask]]:
    """Yield the large regions of bright pixels (H, W) that lie in the bones for the most part.

    A region is a rectangle, one pixel larger, and which of its pixels are bright.
    """
    labels, count = ndimage.label(bright)
    areas, inside = (
        np.bincount(numbers, minlength=count + 1) for numbers in (labels.ravel(), labels[bones])
    )
    chosen = (areas >= SMALLEST * PLATEAU**2) & (inside > IN_BONES * areas)
    for number, slices in enumerate(ndimage.find_objects(labels), start=1):
        if chosen[number]:
            around = tuple(slice(max(each.start - 1, 0), each.stop + 1) for each in slices)
            yield around, labels[around] == number


def _sharpness(grey: Grey, fall: Grey, part: Mask) -> float:
    """Return how much the brightness falls along the outline of a part, less its unevenness."""
    core = ndimage.binary_erosion(part, border_value=1)
    outline = part & ~core
    if not core.any() or not outline.any():
        return 0.0
    return float(np.quantile(fall[outline], 1 - SHARP_SHARE) - UNEVENNESS * grey[core].std())
