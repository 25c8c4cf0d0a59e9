"""Recognise metal in a knee: a compact, evenly bright region in the bones with a sharp outline."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from kneematch.geometry.knee_view import VIEW_WIDTH
from kneematch.geometry.sampling import resize

PLATEAU: Final = 100  # width of the plateau in the reduced view, in pixels
HEIGHTS: Final = (-0.8, 1.0)  # of the part that is looked at, from the joint, in plateau widths
ACROSS: Final = 0.7  # half the width of that part, in plateau widths
REACH: Final = 0.5  # of the bones to either side at the joint, in plateau widths
SHAFT_REACH: Final = 0.3  # and away from it
SHAFT: Final = (0.3, 0.7)  # distances from the joint between which the bones narrow
LEVELS: Final = (0.7, 0.85, 0.95)  # brightness from which a region counts, of black to white
QUANTILES: Final = (5, 99.7)  # percentiles of the grey levels that become 0 and 1
THINNEST: Final = 1  # radius that fits into a region, in pixels; screws are 4 wide
IN_BONES: Final = 0.6  # share of a region that lies in the bones
BESIDE: Final = 0.6  # from here on, to either side, there is no bone
ROOM: Final = 6  # pixels around a region
SMALLEST: Final = 0.03  # area of a region, in squared plateau widths
UNEVENNESS: Final = 4.0  # deviations of the brightness that count against a region
# Least step from inside the outline of a region to outside. Chosen on real films, with and without
# metal; benchmarks/kinds.py counts what is found on them and on phantoms.
SHARPNESS: Final = 0.34


def has_metal(view: Tensor) -> bool:
    """Return whether the knee in a view (800, 500), as `cut_views` makes it, has metal in it."""
    height, width = view.shape
    top, bottom = (round(height / 2 + edge * width / VIEW_WIDTH) for edge in HEIGHTS)
    left, right = (round(width / 2 + edge * width / VIEW_WIDTH) for edge in (-ACROSS, ACROSS))
    size = round(PLATEAU * (HEIGHTS[1] - HEIGHTS[0])), round(PLATEAU * 2 * ACROSS)
    region = resize(view[top:bottom, left:right], size)
    region = -region if _is_negative(region.numpy()) else region
    low, high = np.percentile(region.numpy(), QUANTILES)
    grey = (region - low) / max(high - low, 1e-3)
    return any(_is_sharp(grey.numpy(), part) for level in LEVELS for part in _parts(grey > level))


def _is_negative(region: NDArray[np.float32]) -> bool:
    """Return whether the bones in a region (H, W) are darker than what lies beside the leg."""
    beside = np.abs((np.arange(region.shape[1]) + 0.5) / PLATEAU - ACROSS) > BESIDE
    return bool(region[_bones(region.shape)].mean() < region[:, beside].mean())


def _parts(bright: Tensor) -> Iterator[tuple[tuple[slice, ...], NDArray[np.bool_]]]:
    """Yield the compact regions of bright pixels (H, W) that lie in the bones for the most part.

    A region is a rectangle with room around it, and which of its pixels are bright.
    """
    opened = _grow(-_grow(-bright.float(), THINNEST), THINNEST)
    labels, _ = ndimage.label(opened.numpy() > 0)
    bones = _bones(labels.shape)
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        around = tuple(
            slice(max(each.start - ROOM, 0), each.stop + ROOM) for each in (rows, columns)
        )
        part = labels[around] == number
        inside = (part & bones[around]).sum()
        if part.sum() >= SMALLEST * PLATEAU**2 and inside > IN_BONES * part.sum():
            yield around, part


def _grow(image: Tensor, radius: int) -> Tensor:
    """Return the maximum over squares around every pixel of an image (H, W)."""
    return F.max_pool2d(image[None], 2 * radius + 1, stride=1, padding=radius)[0]


def _bones(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return where bones lie: wide at the joint, narrow along the shafts."""
    away = np.abs((np.arange(shape[0]) + 0.5) / PLATEAU + HEIGHTS[0])
    across = np.abs((np.arange(shape[1]) + 0.5) / PLATEAU - ACROSS)
    return np.asarray(across < np.interp(away, SHAFT, (REACH, SHAFT_REACH))[:, None])


def _is_sharp(
    grey: NDArray[np.float32], region: tuple[tuple[slice, ...], NDArray[np.bool_]]
) -> bool:
    """Return whether a region is even, and the brightness falls steeply at its outline."""
    around, part = region
    core = ndimage.binary_erosion(part, border_value=1)
    near = ndimage.binary_dilation(part, iterations=2)
    outside = ndimage.binary_dilation(near, iterations=3) & ~near
    if not core.any() or not outside.any():
        return False
    inside = grey[around][core]
    step = inside.mean() - UNEVENNESS * inside.std() - grey[around][outside].mean()
    return bool(step > SHARPNESS)
