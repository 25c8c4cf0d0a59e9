"""Cut upright images of located knees out of a film."""

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from kneematch.devices import copy_to
from kneematch.errors import NotARadiograph
from kneematch.films.radiograph import Radiograph
from kneematch.models.locator import VIEW_SIZE, VIEW_WIDTH, KneeLocation, turn_upright
from kneematch.paper.split import HALF_ASPECT
from kneematch.sampling import (
    View,
    axes_to_film,
    compose,
    rectangle_to_film,
    resize_part,
    sample,
    transform,
)

SIDE_MARGIN: Final = 0.08  # share of a film's width by which the robust search continues it
SMALLEST_FILM: Final = 32  # pixels a side
SMALLEST_ROTATION: Final = 0.05  # radians; networks and refinement follow smaller ones themselves


def film_tensor(film: Radiograph) -> Tensor:
    """Return a film's pixels (H, W), or raise NotARadiograph if there are too few."""
    if min(film.size) < SMALLEST_FILM:
        raise NotARadiograph(
            f"The film has {film.size[0]} x {film.size[1]} pixels, but {SMALLEST_FILM} a side are "
            "needed. Give the full-size film."
        )
    return torch.from_numpy(film.pixels)


def knee_images(pixels: Tensor, knees: Sequence[KneeLocation]) -> View:
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


def _cut_view(pixels: Tensor, from_film: Tensor, knee: KneeLocation) -> View:
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
