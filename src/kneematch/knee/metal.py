"""Recognise metal in a knee: a compact, evenly bright region in the bones, sharp all around.

Metal stops nearly all rays, so that it is as bright as the film allows and even; and it ends
abruptly. Bone may be as bright on the film, but fades over some millimetres, at least along a part
of its outline. A network (`models.findings`) sees wires and uneven metal besides, and growth
plates, but misses some components that fill the bones: of 12 real knees with hardware each finds
9, and both together 10.
"""

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kneematch.models.findings import Findings, find_findings
from kneematch.models.locator import VIEW_SIZE, VIEW_WIDTH

Grey = NDArray[np.float32]
Mask = NDArray[np.bool_]

PLATEAU: Final = round(VIEW_SIZE[1] / VIEW_WIDTH)  # its width in a view, in pixels
HEIGHTS: Final = (-0.8, 1.0)  # searched part, from the joint downwards, in plateau widths
ACROSS: Final = 0.7  # half the width of that part, in plateau widths
ROWS: Final = slice(*(round(VIEW_SIZE[0] / 2 + PLATEAU * edge) for edge in HEIGHTS))
COLUMNS: Final = slice(*(round(VIEW_SIZE[1] / 2 + PLATEAU * edge) for edge in (-ACROSS, ACROSS)))
REACH: Final = 0.5  # half the width of the bones at the joint, in plateau widths
SHAFT_REACH: Final = 0.3  # and away from it
SHAFT: Final = (0.3, 0.7)  # distances from the joint between which the bones narrow
BESIDE: Final = 0.6  # from here on, to either side, there is no bone
QUANTILES: Final = (5, 99.7)  # percentiles of the grey levels that become 0 and 1
LEVELS: Final = (0.5, 0.6, 0.7, 0.85, 0.95)  # grey levels from which a region is bright
THINNEST: Final = 3  # side of a square that fits into a region, in pixels; screws are 4 wide
SMALLEST: Final = 0.03  # area of a region, in squared plateau widths
IN_BONES: Final = 0.6  # share of a region that lies in the bones
NEARBY: Final = 5  # side of the square within which the brightness must fall, in pixels
SHARP_SHARE: Final = 0.8  # least share of an outline that is sharp
UNEVENNESS: Final = 4.0  # standard deviations of a region's inside that the fall must exceed, too
# Fall of the brightness at an outline. Chosen on phantoms and real films with and without
# metal; lab/accuracy.py counts what is found on others.
SHARPNESS: Final = 0.2
# A large, round and very even region may end less abruptly, as on overexposed films and on those of
# low resolution.
LARGE: Final = 0.1  # area, in squared plateau widths
ROUND: Final = 3.85  # most pixels of an outline over the square root of the area; a disc has 3.5
FARTHER: Final = 13  # side of the square within which the brightness must fall, in pixels
LEAST_FALL: Final = 0.145
BRIGHTEST: Final = 0.93  # least mean grey level
EVENNESS: Final = 8.0  # standard deviations of the inside that the fall must exceed


def see_findings(views: Tensor) -> list[Findings]:
    """Return what views (N, 400, 250), as `knee_images` makes them, show by either way."""
    pairs = zip(find_findings(views), find_metal(views), strict=True)
    return [seen._replace(metal=seen.metal or metal) for seen, metal in pairs]


def find_metal(views: Tensor) -> list[bool]:
    """Return which of views (N, 400, 250), as `knee_images` makes them, show metal in the knee."""
    bones, beside = _bones_and_beside()
    found = []
    for region in views[:, ROWS, COLUMNS].cpu().numpy():
        if region[bones].mean() < region[:, beside].mean():  # a negative
            region = -region
        low, high = np.percentile(region, QUANTILES).astype(np.float32)
        grey = ((region - low) / max(high - low, 1e-3)).clip(max=1.0)
        found.append(_has_sharp_region(grey, bones))
    return found


@cache
def _bones_and_beside() -> tuple[Mask, Mask]:
    """Return where bones lie (H, W), and which columns (W,) lie beside the leg."""
    away = np.abs((np.arange(ROWS.stop - ROWS.start) + 0.5) / PLATEAU + HEIGHTS[0])
    across = np.abs((np.arange(COLUMNS.stop - COLUMNS.start) + 0.5) / PLATEAU - ACROSS)
    return across < np.interp(away, SHAFT, (REACH, SHAFT_REACH))[:, None], across > BESIDE


def _has_sharp_region(grey: Grey, bones: Mask) -> bool:
    """Return whether a bright region of grey levels (H, W) in the bones is even and sharp."""
    fall, picture = _fall(grey, NEARBY), grey
    compact = _extreme(np.maximum, _extreme(np.minimum, grey, THINNEST), THINNEST)
    bright = compact > np.array(LEVELS, np.float32)[:, None, None]
    region = label_regions(bright)  # (P,), as all that follows: one value a bright pixel
    edge = np.flatnonzero(~_erode(bright)[bright])
    inside = np.bincount(region, np.broadcast_to(bones, bright.shape)[bright])
    grey, fall = (np.broadcast_to(each, bright.shape)[bright] for each in (grey, fall))
    area = np.bincount(region)
    length, sharp = (
        np.bincount(region[edge], weights, len(area)) for weights in (None, fall[edge] > SHARPNESS)
    )
    possible = (area >= SMALLEST * PLATEAU**2) & (inside > IN_BONES * area)
    large = possible & (area >= LARGE * PLATEAU**2) & (length < ROUND * np.sqrt(area))
    possible &= (length < area) & (sharp >= SHARP_SHARE * length.clip(min=1))
    possible |= large
    for number in np.flatnonzero(possible):
        own = region == number
        own_edge = edge[own[edge]]
        own[own_edge] = False
        uneven = grey[own].std()
        if (fall[own_edge] > SHARPNESS + UNEVENNESS * uneven).mean() >= SHARP_SHARE:
            return True
        if large[number] and grey[own].mean() > BRIGHTEST:
            farther = np.broadcast_to(_fall(picture, FARTHER), bright.shape)[bright]
            least = max(LEAST_FALL, EVENNESS * uneven)
            if (farther[own_edge] > least).mean() >= SHARP_SHARE:
                return True
    return False


def _fall(grey: Grey, side: int) -> Grey:
    """Return the range of grey levels in the square around each pixel of an image (H, W)."""
    return _extreme(np.maximum, grey, side) - _extreme(np.minimum, grey, side)


def _extreme(choose: np.ufunc, image: Grey, side: int) -> Grey:
    """Return the largest or smallest value in the square around each pixel of an image (H, W).

    `choose` is np.maximum or np.minimum, and the square's side an odd number of pixels.
    """
    for _ in range(side // 2 * 2):  # as often along columns as along rows
        image = image.T
        chosen = image.copy(order="K")
        choose(chosen[1:], image[:-1], out=chosen[1:])
        choose(chosen[:-1], image[1:], out=chosen[:-1])
        image = chosen
    return image


def _erode(masks: Mask) -> Mask:
    """Return which pixels of masks (N, H, W) have no neighbour outside their mask."""
    inner = masks.copy()
    inner[:, 1:] &= masks[:, :-1]
    inner[:, :-1] &= masks[:, 1:]
    inner[:, :, 1:] &= masks[:, :, :-1]
    inner[:, :, :-1] &= masks[:, :, 1:]
    return inner


def label_regions(masks: Mask) -> NDArray[np.int64]:
    """Return the number of the connected region of every set pixel of masks (N, H, W), in order.

    SciPy's `ndimage.label` takes 0.23 s to import and, with its filters, 2.5 ms a knee longer.
    Runs of pixels are united with those that they touch in the next row: all get the lowest number.
    """
    count, height, width = masks.shape
    below = width + 1
    padded = np.zeros((count * height + 1, below), np.bool_)  # so that a run ends with its row
    padded[:-1, 1:] = masks.reshape(-1, width)
    changes = np.flatnonzero(np.diff(padded.ravel()))
    starts, stops = changes[::2], changes[1::2]
    first = np.searchsorted(stops, starts + below, side="right")
    touched = (np.searchsorted(starts, stops + below) - first).clip(min=0)
    touched[starts // below % height == height - 1] = 0  # the next row is in another mask
    upper = np.repeat(np.arange(len(starts)), touched)
    lower = np.arange(touched.sum()) + np.repeat(first - np.cumsum(touched) + touched, touched)
    number, pairs = np.arange(len(starts)), np.stack([upper, lower])
    while pairs.size:
        np.minimum.at(number, pairs.max(0), pairs.min(0))
        while (number != (root := number[number])).any():
            number = root
        pairs = number[pairs]
        pairs = pairs[:, pairs[0] != pairs[1]]
    return np.repeat(number, stops - starts)
