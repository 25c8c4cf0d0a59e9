"""Splitting: what Sect. 2 asks for, and a map home that holds at every pixel of a half."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates
from torch import Tensor

from kneematch.paper.split import HALF_SIZE, LEFT, RIGHT, single, spans, split, symmetry_axis
from kneematch.sampling import View, transform
from kneephantoms import phantom

PHANTOMS = 20
CORNERS = torch.tensor([[-1.0, -1], [1, 1]], dtype=torch.float64)


def symmetric(height: int, width: int, axis: float) -> Tensor:
    """A film that nowhere is black and mirrors itself about an axis."""
    away = np.abs(np.arange(width) + 0.5 - axis)
    row = 0.5 + 0.3 * np.cos(away / width * 25) + 0.1 * np.cos(away / width * 57)
    down = 0.9 + 0.1 * np.sin(np.arange(height) / height * 9)
    return torch.from_numpy((down[:, None] * row).astype(np.float32))


def slope(height: int, width: int) -> Tensor:
    """A film that grows evenly brighter, on which resizing is exact but at the edges."""
    rows, columns = np.mgrid[:height, :width] + 0.5
    grey = 0.2 + 0.5 * columns / width + 0.3 * rows / height
    return torch.from_numpy(grey.astype(np.float32))


def rectangle(view: View, side: int) -> tuple[float, float, float, float]:
    """The film rectangle that a half covers: x0, y0, x1, y1."""
    (xa, ya), (xb, yb) = transform(view.to_film[side], CORNERS).tolist()
    return min(xa, xb), ya, max(xa, xb), yb


def film_places(view: View, side: int) -> np.ndarray:
    """Where on the film each pixel of a half lies: (2, 800, 500), x and y."""
    rows, columns = torch.meshgrid(
        *((torch.arange(n, dtype=torch.float64) + 0.5) / n * 2 - 1 for n in HALF_SIZE),
        indexing="ij",
    )
    points = torch.stack([columns, rows], dim=-1).reshape(-1, 2)
    return transform(view.to_film[side], points).mT.reshape(2, *HALF_SIZE).numpy()


def assert_shows_the_film(film: Tensor, view: View, side: int, span: tuple[float, float]) -> None:
    """Compare every pixel of a half with the slope at its place, and with black off the span."""
    x, y = film_places(view, side)
    x0, y0, x1, y1 = rectangle(view, side)
    reach = 2 * max((x1 - x0) / HALF_SIZE[1], (y1 - y0) / HALF_SIZE[0], 1)  # of the resizing
    height = film.shape[0]
    per_pixel = 0.5 / film.shape[1] + 0.3 / film.shape[0]  # how much brighter the slope gets
    first, end = max(span[0], x0), min(span[1], x1)  # a shift may move the content off the half
    top, bottom = max(0, y0), min(height, y1)
    inside = (x > first + reach) & (x < end - reach) & (y > top + reach) & (y < bottom - reach)
    outside = (x < span[0] - reach) | (x > span[1] + reach) | (y < -reach) | (y > height + reach)
    pixels = view.pixels[side].numpy()
    wanted = map_coordinates(film.numpy(), [y - 0.5, x - 0.5], order=1, mode="nearest")
    assert inside.sum() > 1000
    assert np.abs(pixels - wanted)[inside].max() < 0.15 * per_pixel
    assert np.all(pixels[outside] == 0)


def test_symmetry_axis_is_found_in_the_middle_quarter_only() -> None:
    for width, axis in ((256, 110), (200, 117)):
        assert symmetry_axis(symmetric(180, width, axis)) == axis
    outside = symmetric(180, 256, 60)
    assert 0.375 * 256 <= symmetry_axis(outside) <= 0.625 * 256


def test_split_separates_the_knees_of_phantoms() -> None:
    for seed in range(PHANTOMS):
        made = phantom(seed, size=(400, 500))
        left, right = made.knees
        axis = symmetry_axis(torch.from_numpy(made.pixels))
        assert left.plateau_right[0] < axis < right.plateau_left[0], f"seed {seed}"


@given(size=st.tuples(st.integers(100, 900), st.integers(100, 900)))
@settings(max_examples=10, deadline=None)
def test_split_shows_at_every_pixel_what_lies_there_on_the_film_or_black(
    size: tuple[int, int],
) -> None:
    film = slope(*size)
    axis = symmetry_axis(film)
    halves = split(film)
    width = size[1]
    shown = (0, round(1.1 * axis)), (width - round(1.1 * (width - axis)), width)
    sizes = set()
    for side, span in zip((LEFT, RIGHT), shown, strict=True):
        assert_shows_the_film(film, halves, side, span)
        x0, y0, x1, y1 = rectangle(halves, side)
        sizes.add((round(y1 - y0), round(x1 - x0)))
        assert (y1 - y0) / (x1 - x0) == pytest.approx(1.6, abs=1.6 / (x1 - x0))  # whole pixels
        assert y1 - y0 > size[0] - 0.5
        assert x1 - x0 > 1.1 * max(axis, width - axis) - 1
        assert (x0 + x1) / 2 == pytest.approx(sum(span) / 2, abs=1)
        assert (y0 + y1) / 2 == pytest.approx(size[0] / 2, abs=1)
    assert len(sizes) == 1


def test_split_continues_the_film_by_its_outermost_columns() -> None:
    film, extra = slope(640, 400), 80
    by_hand = torch.from_numpy(np.pad(film.numpy(), ((0, 0), (extra, extra)), mode="edge"))
    axis = symmetry_axis(film)
    halves = split(film, side_margin=0.2)
    for side, (x0, x1) in zip((LEFT, RIGHT), spans(400, axis), strict=True):
        span = (x0 - extra, x1) if side == LEFT else (x0, x1 + extra)
        shifted = View(halves.pixels, halves.to_film.clone())
        shifted.to_film[:, 0, 2] += extra
        assert_shows_the_film(by_hand, shifted, side, (span[0] + extra, span[1] + extra))


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("size", [(500, 200), (200, 300)])
def test_single_makes_one_half(mirrored: bool, size: tuple[int, int]) -> None:
    film = slope(*size)
    half = single(film, mirrored=mirrored)
    assert half.pixels.shape == (1, 800, 500)
    assert half.to_film.shape == (1, 3, 3)
    assert (float(half.to_film[0, 0, 0]) < 0) == mirrored
    assert_shows_the_film(film, half, 0, (0, size[1]))


@pytest.mark.parametrize("size", [(32, 32), (32, 3000), (3000, 32)])
def test_split_takes_the_smallest_and_the_slimmest_films(size: tuple[int, int]) -> None:
    halves = split(slope(*size))
    assert halves.pixels.shape == (2, *HALF_SIZE)
    assert bool(halves.pixels.isfinite().all())
