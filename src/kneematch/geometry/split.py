"""A film becomes two aligned half images (paper, Sect. 2)."""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.errors import NotARadiograph
from kneematch.geometry.sampling import resize, stretch
from kneematch.geometry.view import View, rectangle_to_film
from kneematch.io.radiograph import Radiograph

LEFT: Final = 0  # the left half of the picture, mirrored
RIGHT: Final = 1
SIDES: Final = ("left", "right")

HALF_SIZE: Final = (800, 500)
HALF_ASPECT: Final = 1.6
OVERLAP: Final = 1.1
AXIS_SEARCH: Final = 0.125  # of the width, to either side of the middle
AXIS_WIDTH: Final = 256  # width of the down-sampled copy in which the axis is sought
# The room that the robust search has beside a film (the paper's has none): a fifth of a knee.
ROOM: Final = 0.08
SMALLEST_FILM: Final = 32  # pixels a side, below which there is no knee to see


def split(film: Radiograph, *, room: float = 0.0, shift: Tensor | None = None) -> View:
    """Cut a bilateral film into its two halves, the left one mirrored.

    Args:
        film: a bilateral radiograph.
        room: how far, as a share of its width, the film is continued past its left and right edge
            by its outermost columns, for joint areas that reach past it (0 is the paper's).
        shift: (2, 2), the random translation (x, y) in training: how far the content of each half
            moves right and down, as a share of the half's width and height.

    Returns:
        pixels (2, 800, 500) and to_film (2, 3, 3).
    """
    pixels = torch.from_numpy(_large_enough(film))
    height, width = pixels.shape
    (left, inner_left), (inner_right, right) = spans(width, symmetry_axis(pixels))
    extra = round(room * width)
    both = [(left - extra, inner_left), (inner_right, right + extra)]
    frame = _frame(height, max(x1 - x0 for x0, x1 in both))
    views, rows = [], None
    for side, span in enumerate(both):
        move = (0.0, 0.0) if shift is None else (float(shift[side, 0]), float(shift[side, 1]))
        top = -((frame[0] - height) // 2 + round(move[1] * frame[0]))
        if rows is None or shift is not None:  # else both halves share their rows
            rows = stretch(pixels, 0, (top, top + frame[0]), HALF_SIZE[0])
        views.append(_half(rows, span, top, frame, mirrored=side == LEFT, move=move[0]))
    return View(
        torch.stack([view.pixels for view in views]), torch.stack([view.to_film for view in views])
    )


def single(film: Radiograph, *, mirrored: bool, room: float = 0.0) -> View:
    """The half image of a film that shows one knee: pixels (1, 800, 500), to_film (1, 3, 3).

    Mirror what would stand in the left half of a bilateral film: the patient's right knee.
    """
    pixels = torch.from_numpy(_large_enough(film))
    height, width = pixels.shape
    extra = round(room * width)
    frame = _frame(height, width + 2 * extra)
    top = -((frame[0] - height) // 2)
    rows = stretch(pixels, 0, (top, top + frame[0]), HALF_SIZE[0])
    view = _half(rows, (-extra, width + extra), top, frame, mirrored=mirrored)
    return View(view.pixels[None], view.to_film[None])


def spans(width: int, axis: float) -> tuple[tuple[int, int], tuple[int, int]]:
    """The columns (first, end) of the two overlapping halves of a film split at x = axis."""
    return (0, round(OVERLAP * axis)), (width - round(OVERLAP * (width - axis)), width)


def symmetry_axis(pixels: Tensor) -> float:
    """The x, in film pixels, about which the film (H, W) is most alike its mirror image.

    Sought in the middle quarter of the width of a down-sampled copy.
    """
    height, width = pixels.shape
    columns = min(AXIS_WIDTH, width)
    rows = max(1, round(height * columns / width))
    # Every row counts for little: of a large film, two for one of the copy will do.
    small = resize(pixels[:: max(1, height // (2 * rows))], (rows, columns))
    first = round((0.5 - AXIS_SEARCH) * columns)
    last = round((0.5 + AXIS_SEARCH) * columns)

    def distance(axis: int) -> float:
        reach = min(axis, columns - axis)
        left, right = small[:, axis - reach : axis], small[:, axis : axis + reach]
        return float((left - right.flip(1)).square().mean())

    return min(range(first, last + 1), key=distance) * width / columns


def _large_enough(film: Radiograph) -> NDArray[np.float32]:
    if min(film.size) < SMALLEST_FILM:
        raise NotARadiograph(
            f"film of {film.size[0]} x {film.size[1]} pixels; expected at least "
            f"{SMALLEST_FILM} a side; give the full-size film"
        )
    return film.pixels


def _frame(height: int, width: int) -> tuple[int, int]:
    """(height, width) in film pixels of the half that black makes of the right aspect."""
    if height < HALF_ASPECT * width:
        height = round(HALF_ASPECT * width)
    return height, round(height / HALF_ASPECT)


def _half(
    rows: Tensor,
    span: tuple[int, int],
    top: int,
    frame: tuple[int, int],
    *,
    mirrored: bool,
    move: float = 0.0,
) -> View:
    """Columns x0 to x1 of a film's rows (800, W) amid black, resized and mirrored.

    Where the columns lie outside the film, its outermost column is repeated.
    """
    x0, x1 = span
    spare = frame[1] - (x1 - x0)
    before = spare // 2 + round(move * frame[1])  # black columns, as the half will show them
    left = x0 - (spare - before if mirrored else before)
    right = left + frame[1]
    half = stretch(rows, 1, (left, right), HALF_SIZE[1], lit=span)
    return View(
        half.flip(1) if mirrored else half,
        rectangle_to_film(left, top, right, top + frame[0], mirrored=mirrored),
    )
