"""View: images cut from films, upright around located knees, and their affine maps to the film."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kneematch.devices import copy_to
from kneematch.errors import NotARadiograph
from kneematch.films.radiograph import Radiograph
from kneematch.sampling import resize_part, sample

HALF_ASPECT: Final = 1.6  # height over width of half images and of views
SIDE_MARGIN: Final = 0.08  # share of a film's width by which the robust search continues it
SMALLEST_FILM: Final = 32  # pixels a side
VIEW_WIDTH: Final = 2.5  # of a view, in widths of the tibial plateau
VIEW_SIZE: Final = (400, 250)  # the plateau has 100 pixels, about as in the network's input
SMALLEST_ROTATION: Final = 0.05  # radians; networks and refinement follow smaller ones themselves

Matrix = TypeVar("Matrix", Tensor, NDArray[np.float64])


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Images cut from films; `to_film` maps [-1, 1]^2, from edge to edge, to film pixels."""

    pixels: Tensor  # (..., H, W)
    to_film: Tensor  # (..., 3, 3) float64

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        height, width = self.pixels.shape[-2:]
        return height, width


def film_tensor(film: Radiograph) -> Tensor:
    """Return a film's pixels (H, W), or raise NotARadiograph if there are too few."""
    if min(film.size) < SMALLEST_FILM:
        raise NotARadiograph(
            f"film of {film.size[0]} x {film.size[1]} pixels; expected at least "
            f"{SMALLEST_FILM} a side; give the full-size film"
        )
    return torch.from_numpy(film.pixels)


def axes_to_film(across: Iterable[float], down: Iterable[float], centre: Iterable[float]) -> Tensor:
    """Return the map (3, 3) of [-1, 1]^2 to film pixels.

    Args:
        across: (x, y), half the width, from the centre to the right edge.
        down: (x, y), half the height.
        centre: (x, y).
    """
    columns = zip(across, down, centre, strict=True)
    return torch.tensor([*columns, (0, 0, 1)], dtype=torch.float64)


def rectangle_to_film(
    x0: float, y0: float, x1: float, y1: float, *, mirrored: bool = False
) -> Tensor:
    """Return the map (3, 3) of [-1, 1]^2 onto a rectangle of film pixels.

    x = -1 becomes the rectangle's left edge, or its right edge if mirrored.
    """
    across = (x0 - x1) / 2 if mirrored else (x1 - x0) / 2
    return axes_to_film((across, 0), (0, (y1 - y0) / 2), ((x0 + x1) / 2, (y0 + y1) / 2))


def compose(to_film: Tensor, matrices: Tensor) -> Tensor:
    """Return the product (..., 3, 3) of to_film and matrices (..., 2, 3) or (..., 3, 3)."""
    matrices = matrices.to(to_film)
    if matrices.shape[-2] == 2:
        bottom = matrices.new_tensor([0, 0, 1]).expand(*matrices.shape[:-2], 1, 3)
        matrices = torch.cat([matrices, bottom], dim=-2)
    return to_film @ matrices


def transform(matrices: Matrix, points: Matrix) -> Matrix:
    """Apply affine maps (..., 3, 3) or (..., 2, 3) to points (..., K, 2); tensors or arrays."""
    if isinstance(points, Tensor):
        points = points.to(matrices)
    return points @ matrices[..., :2, :2].swapaxes(-1, -2) + matrices[..., None, :2, 2]


@dataclass(frozen=True, slots=True)
class KneePlace:
    """Where a knee lies on a film."""

    x: float  # middle of the tibial plateau, in film pixels
    y: float
    width: float  # of the plateau, in film pixels
    rotation: float  # radians, clockwise positive, -0.7 to 0.7
    mirrored: bool  # the lateral side points to the left of the upright picture
    quarter_turns: int = 0  # clockwise, by which the film is to be turned to be upright
    score: float = 1.0  # how certain it is that a frontal knee lies here, 0 to 1


def turn_upright(pixels: Tensor, quarter_turns: int) -> tuple[Tensor, Tensor]:
    """Turn a film (H, W) clockwise; return it and the map (3, 3) of its pixels to the film's."""
    height, width = pixels.shape
    back = {
        0: [[1.0, 0, 0], [0, 1, 0]],
        1: [[0, 1.0, 0], [-1, 0, height]],
        2: [[-1.0, 0, width], [0, -1, height]],
        3: [[0, -1.0, width], [1, 0, 0]],
    }[quarter_turns]
    # rot90 would copy a film that is upright.
    turned = torch.rot90(pixels, -quarter_turns, (0, 1)) if quarter_turns else pixels
    return turned, torch.tensor([*back, [0, 0, 1]], dtype=torch.float64)


def cut_views(pixels: Tensor, knees: Sequence[KneePlace]) -> View:
    """Cut a view of the same scale around each knee: pixels (S, 400, 250), to_film (S, 3, 3).

    The knee is upright in the middle of its view, its lateral side to the right; the plateau is
    100 pixels wide.

    Args:
        pixels: (H, W), the film.
        knees: all of the same `quarter_turns`.
    """
    turned, to_film = turn_upright(pixels, knees[0].quarter_turns)
    from_film = torch.linalg.inv(to_film)
    views = [_cut_view(turned, from_film, knee) for knee in knees]
    maps = compose(to_film, torch.stack([view.to_film for view in views]))
    return View(torch.stack([view.pixels for view in views]), maps)


def _cut_view(pixels: Tensor, from_film: Tensor, knee: KneePlace) -> View:
    ((x, y),) = transform(from_film, from_film.new_tensor([[knee.x, knee.y]])).tolist()
    across, down = VIEW_WIDTH * knee.width / 2, HALF_ASPECT * VIEW_WIDTH * knee.width / 2
    if abs(knee.rotation) <= SMALLEST_ROTATION:
        return _upright_view(pixels, (x, y), (across, down), VIEW_SIZE, mirrored=knee.mirrored)
    # A view that holds the rotated one, of the same resolution.
    cos, sin = math.cos(knee.rotation), math.sin(knee.rotation)
    reach = across * cos + down * abs(sin), across * abs(sin) + down * cos
    size = round(VIEW_SIZE[0] * reach[1] / down), round(VIEW_SIZE[1] * reach[0] / across)
    large = _upright_view(pixels, (x, y), reach, size, mirrored=False)
    right = -across if knee.mirrored else across
    wanted = axes_to_film((right * cos, right * sin), (-down * sin, down * cos), (x, y))
    inside = torch.linalg.inv(large.to_film) @ wanted
    matrix = copy_to(inside[:2].to(pixels.dtype), pixels.device)
    return View(sample(large.pixels, matrix, VIEW_SIZE), wanted)


def _upright_view(
    pixels: Tensor,
    centre: tuple[float, float],
    reach: tuple[float, float],
    size: tuple[int, int],
    *,
    mirrored: bool,
) -> View:
    """Return what lies within reach (x, y) of a point, resized."""
    (x, y), (across, down) = centre, reach
    left, right, top, bottom = (round(v) for v in (x - across, x + across, y - down, y + down))
    extra = round(SIDE_MARGIN * pixels.shape[1])
    view = resize_part(
        pixels,
        (top, max(bottom, top + 1)),
        (left, max(right, left + 1)),
        size,
        replicate=(-extra, pixels.shape[1] + extra),
    )
    to_film = rectangle_to_film(left, top, right, bottom, mirrored=mirrored)
    return View(view.flip(1) if mirrored else view, to_film)
