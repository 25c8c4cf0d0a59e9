"""Split a bilateral film into two aligned half images (paper, Sect. 2)."""

from typing import Final

import torch
from torch import Tensor

from kneematch.sampling import Span, View, rectangle_to_film, resize, resize_part

LEFT: Final = 0  # the left half of the picture, mirrored
RIGHT: Final = 1
SIDES: Final = ("left", "right")

HALF_SIZE: Final = (800, 500)
HALF_ASPECT: Final = HALF_SIZE[0] / HALF_SIZE[1]  # height over width
OVERLAP: Final = 1.1
AXIS_SEARCH: Final = 0.125  # share of the width, to either side of the middle
AXIS_WIDTH: Final = 256  # width of the down-sampled copy in which the axis is searched


def split(pixels: Tensor, *, side_margin: float = 0.0, axis: float | None = None) -> View:
    """Cut a bilateral film into its two halves and mirror the left one.

    Args:
        pixels: (H, W), a bilateral radiograph.
        side_margin: how far the film is continued past its left and right edge by repeating its
            outermost columns, as a share of its width, for joint areas that reach past it. The
            paper has 0.
        axis: x of the symmetry axis, if it is known already.

    Returns:
        A view with pixels (2, 800, 500) and to_film (2, 3, 3).
    """
    width = pixels.shape[1]
    axis = symmetry_axis(pixels) if axis is None else axis
    (left, inner_left), (inner_right, right) = spans(width, axis)
    extra = round(side_margin * width)
    both = [(left - extra, inner_left), (inner_right, right + extra)]
    return _halves(pixels, both, mirrored=[True, False])


def single(pixels: Tensor, *, mirrored: bool, side_margin: float = 0.0) -> View:
    """Return the image (1, 800, 500) of a film of one knee; mirror the patient's right one."""
    extra = round(side_margin * pixels.shape[1])
    return _halves(pixels, [(-extra, pixels.shape[1] + extra)], mirrored=[mirrored])


def spans(width: int, axis: float) -> tuple[Span, Span]:
    """Return the columns of the two overlapping halves of a film that is split at x = axis."""
    return (0, round(OVERLAP * axis)), (width - round(OVERLAP * (width - axis)), width)


def symmetry_axis(pixels: Tensor) -> float:
    """Return the x, in film pixels, about which a film (H, W) is most like its mirror image.

    The middle quarter of the width is searched, in a down-sampled copy.
    """
    height, width = pixels.shape
    columns = min(AXIS_WIDTH, width)
    rows = max(1, round(height * columns / width))
    # Two rows of a large film for each row of the copy are enough.
    small = resize(pixels[:: max(1, height // (2 * rows))], (rows, columns))
    first = round((0.5 - AXIS_SEARCH) * columns)
    last = round((0.5 + AXIS_SEARCH) * columns)

    def distance(axis: int) -> float:
        reach = min(axis, columns - axis)
        left, right = small[:, axis - reach : axis], small[:, axis : axis + reach]
        return float((left - right.flip(1)).square().mean())

    return min(range(first, last + 1), key=distance) * width / columns


def _halves(pixels: Tensor, columns: list[Span], mirrored: list[bool]) -> View:
    """Cut columns of a film (H, W) out, pad them with black to the same frame, and resize them.

    Where columns lie outside the film, its outermost column is repeated.
    """
    height = pixels.shape[0]
    frame_height = max(height, round(HALF_ASPECT * max(x1 - x0 for x0, x1 in columns)))
    frame_width = round(frame_height / HALF_ASPECT)
    top = -((frame_height - height) // 2)
    rows = top, top + frame_height
    halves, maps = [], []
    for (x0, x1), flipped in zip(columns, mirrored, strict=True):
        spare = frame_width - (x1 - x0)
        left = x0 - (spare - spare // 2 if flipped else spare // 2)
        half = resize_part(pixels, rows, (left, left + frame_width), HALF_SIZE, replicate=(x0, x1))
        halves.append(half.flip(1) if flipped else half)
        corners = (left, top, left + frame_width, top + frame_height)
        maps.append(rectangle_to_film(*corners, mirrored=flipped))
    return View(torch.stack(halves), torch.stack(maps))
