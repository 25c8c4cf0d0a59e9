"""Splitting: what Sect. 2 asks for, and a map home that holds at every pixel of a half."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates
from torch import Tensor

from kneematch.errors import NotARadiograph
from kneematch.films.radiograph import Radiograph
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import (
    HALF_SIZE,
    LEFT,
    RIGHT,
    single,
    spans,
    split,
    symmetry_axis,
)
from kneematch.sampling import View, transform
from kneephantoms import phantom
from phantom_films import radiograph

PHANTOMS = 40
CORNERS = torch.tensor([[-1.0, -1], [1, 1]], dtype=torch.float64)


def symmetric(height: int, width: int, axis: float) -> Radiograph:
    """A film that nowhere is black and mirrors itself about an axis."""
    away = np.abs(np.arange(width) + 0.5 - axis)
    row = 0.5 + 0.3 * np.cos(away / width * 25) + 0.1 * np.cos(away / width * 57)
    down = 0.9 + 0.1 * np.sin(np.arange(height) / height * 9)
    return Radiograph((down[:, None] * row).astype(np.float32))


def slope(height: int, width: int) -> Radiograph:
    """A film that grows evenly brighter, on which resizing is exact but at the edges."""
    rows, columns = np.mgrid[:height, :width] + 0.5
    return Radiograph((0.2 + 0.5 * columns / width + 0.3 * rows / height).astype(np.float32))


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


def assert_shows_the_film(
    film: Radiograph, view: View, side: int, span: tuple[float, float]
) -> None:
    """Compare every pixel of a half with the slope at its place, and with black off the span."""
    x, y = film_places(view, side)
    x0, y0, x1, y1 = rectangle(view, side)
    reach = 2 * max((x1 - x0) / HALF_SIZE[1], (y1 - y0) / HALF_SIZE[0], 1)  # of the resizing
    height = film.size[0]
    per_pixel = 0.5 / film.size[1] + 0.3 / film.size[0]  # how much brighter the slope gets
    first, end = max(span[0], x0), min(span[1], x1)  # a shift may move the content off the half
    top, bottom = max(0, y0), min(height, y1)
    inside = (x > first + reach) & (x < end - reach) & (y > top + reach) & (y < bottom - reach)
    outside = (x < span[0] - reach) | (x > span[1] + reach) | (y < -reach) | (y > height + reach)
    pixels = view.pixels[side].numpy()
    wanted = map_coordinates(film.pixels, [y - 0.5, x - 0.5], order=1, mode="nearest")
    assert inside.sum() > 1000
    assert np.abs(pixels - wanted)[inside].max() < 0.15 * per_pixel
    assert np.all(pixels[outside] == 0)


@pytest.mark.parametrize(("width", "axis"), [(256, 128), (256, 110), (200, 117), (256, 155)])
def test_symmetry_axis_of_a_symmetric_film_is_found(width: int, axis: int) -> None:
    film = symmetric(180, width, axis)
    assert symmetry_axis(torch.from_numpy(film.pixels)) == axis


@pytest.mark.parametrize("axis", [900.0, 1024.0, 1130.0])
def test_symmetry_axis_of_a_large_film_is_exact_to_a_pixel_of_the_copy(axis: float) -> None:
    film = symmetric(600, 2048, axis)
    assert symmetry_axis(torch.from_numpy(film.pixels)) == pytest.approx(axis, abs=2048 / 256)


def test_symmetry_axis_is_searched_in_the_middle_quarter_only() -> None:
    film = symmetric(180, 256, 60)
    assert 0.375 * 256 <= symmetry_axis(torch.from_numpy(film.pixels)) <= 0.625 * 256


def test_split_separates_the_knees_of_phantoms() -> None:
    for seed in range(PHANTOMS):
        made = phantom(seed, size=(400, 500))
        left, right = made.knees
        axis = symmetry_axis(torch.from_numpy(made.pixels))
        assert left.plateau_right[0] < axis < right.plateau_left[0], f"seed {seed}"


def test_split_maps_points_of_phantoms_to_the_film_and_back() -> None:
    points = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = 2 * points - 1
    half_px = torch.tensor([HALF_SIZE[1], HALF_SIZE[0]]) / 2
    for seed in range(5):
        halves = split(film_tensor(radiograph(phantom(seed, size=(400, 500)))))
        there = transform(halves.to_film, points)
        back = transform(torch.linalg.inv(halves.to_film), there)
        assert ((back - points).abs() * half_px).max() < 1e-3


def test_split_returns_800_by_500_pixels_and_maps_in_double_precision() -> None:
    halves = split(film_tensor(symmetric(300, 256, 120)))
    assert halves.pixels.shape == (2, 800, 500)
    assert halves.pixels.dtype == torch.float32
    assert halves.to_film.shape == (2, 3, 3)
    assert halves.to_film.dtype == torch.float64


@pytest.mark.parametrize("size", [(200, 256), (640, 256), (900, 250), (300, 1000)])
def test_split_covers_rectangles_of_equal_size_and_aspect_1_6(
    size: tuple[int, int],
) -> None:
    halves = split(film_tensor(symmetric(*size, axis=round(0.44 * size[1]))))
    sizes = [
        (y1 - y0, x1 - x0) for x0, y0, x1, y1 in (rectangle(halves, side) for side in (LEFT, RIGHT))
    ]
    assert sizes[0] == sizes[1]
    height, width = sizes[0]
    assert height / width == pytest.approx(1.6, abs=1.6 / width)  # whole pixels
    assert height >= size[0]
    assert width >= 1.1 * 0.56 * size[1] - 0.005 * size[1] - 1  # the axis is found that well


@given(
    height=st.integers(200, 500),
    width=st.integers(150, 256),
    place=st.floats(0.4, 0.6),
)
@settings(max_examples=8, deadline=None)
def test_split_widens_each_half_by_1_1_and_pads_it_with_black(
    height: int, width: int, place: float
) -> None:
    axis = round(place * width)
    film = symmetric(height, width, axis)
    halves = split(film_tensor(film))
    spans = (0, round(1.1 * axis)), (width - round(1.1 * (width - axis)), width)
    for side, span in zip((LEFT, RIGHT), spans, strict=True):
        x, y = film_places(halves, side)
        shown = halves.pixels[side].numpy() > 0.02
        reach = 2 * max(1.0, (x.max() - x.min()) / HALF_SIZE[1])
        assert x[shown].min() == pytest.approx(span[0], abs=reach)
        assert x[shown].max() == pytest.approx(span[1], abs=reach)
        assert y[shown].min() == pytest.approx(0, abs=reach)
        assert y[shown].max() == pytest.approx(height, abs=reach)
        x0, y0, x1, y1 = rectangle(halves, side)
        assert (x0 + x1) / 2 == pytest.approx(sum(span) / 2, abs=1)
        assert (y0 + y1) / 2 == pytest.approx(height / 2, abs=1)


@given(size=st.tuples(st.integers(100, 900), st.integers(100, 900)))
@settings(max_examples=10, deadline=None)
def test_split_shows_at_every_pixel_what_lies_there_on_the_film(size: tuple[int, int]) -> None:
    film = slope(*size)
    axis = symmetry_axis(torch.from_numpy(film.pixels))
    halves = split(film_tensor(film))
    width = size[1]
    assert_shows_the_film(film, halves, LEFT, (0, round(1.1 * axis)))
    assert_shows_the_film(film, halves, RIGHT, (width - round(1.1 * (width - axis)), width))


def test_split_mirrors_the_left_half_only() -> None:
    halves = split(film_tensor(slope(400, 300)))
    row = halves.pixels[:, 400]
    assert bool((row[LEFT, 150:350].diff() < 0).all())
    assert bool((row[RIGHT, 150:350].diff() > 0).all())
    assert float(halves.to_film[LEFT, 0, 0]) < 0 < float(halves.to_film[RIGHT, 0, 0])


def test_split_makes_equal_halves_of_a_symmetric_film() -> None:
    halves = split(film_tensor(symmetric(450, 256, 128)))
    assert torch.allclose(halves.pixels[LEFT], halves.pixels[RIGHT], atol=1e-5)


def test_split_exchanges_the_halves_of_a_mirrored_film() -> None:
    film = symmetric(400, 256, 120)
    film.pixels[100:140, 30:60] = 1.0  # what only the left half shows
    there = split(film_tensor(film))
    back = split(film_tensor(Radiograph(np.ascontiguousarray(film.pixels[:, ::-1]))))
    assert torch.allclose(there.pixels, back.pixels.flip(0), atol=1e-5)


def test_split_makes_a_fine_checkerboard_grey() -> None:
    rows, columns = np.mgrid[:1600, :1600]
    halves = split(film_tensor(Radiograph(((rows + columns) % 2).astype(np.float32))))
    height = 1600 / (halves.to_film[0, 1, 1] * 2) * HALF_SIZE[0]  # of the film in the half
    inner = halves.pixels[:, 400 - int(height / 2) + 4 : 400 + int(height / 2) - 4, 50:-50]
    assert (inner - 0.5).abs().max() < 0.05


@pytest.mark.parametrize("side_margin", [0.05, 0.2])
def test_split_continues_the_film_by_its_outermost_columns(side_margin: float) -> None:
    film = slope(640, 400)
    by_hand = Radiograph(
        np.pad(film.pixels, ((0, 0), (round(400 * side_margin),) * 2), mode="edge")
    )
    axis = symmetry_axis(torch.from_numpy(film.pixels))
    halves = split(film_tensor(film), side_margin=side_margin)
    extra = round(side_margin * 400)
    for side, (x0, x1) in zip((LEFT, RIGHT), spans(400, axis), strict=True):
        span = (x0 - extra, x1) if side == LEFT else (x0, x1 + extra)
        shifted = View(halves.pixels, halves.to_film.clone())
        shifted.to_film[:, 0, 2] += extra
        assert_shows_the_film(by_hand, shifted, side, (span[0] + extra, span[1] + extra))


def test_split_without_room_ends_where_the_film_ends() -> None:
    film = slope(640, 400)
    assert torch.equal(
        split(film_tensor(film)).pixels, split(film_tensor(film), side_margin=0.0).pixels
    )
    assert not torch.equal(
        split(film_tensor(film)).pixels, split(film_tensor(film), side_margin=0.1).pixels
    )


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("size", [(500, 200), (200, 300)])
def test_single_makes_one_half(mirrored: bool, size: tuple[int, int]) -> None:
    film = slope(*size)
    half = single(film_tensor(film), mirrored=mirrored)
    assert half.pixels.shape == (1, 800, 500)
    assert half.to_film.shape == (1, 3, 3)
    assert (float(half.to_film[0, 0, 0]) < 0) == mirrored
    assert_shows_the_film(film, half, 0, (0, size[1]))


def test_single_has_room_on_both_sides() -> None:
    film = slope(500, 200)
    by_hand = Radiograph(np.pad(film.pixels, ((0, 0), (20, 20)), mode="edge"))
    there, here = (
        single(film_tensor(film), mirrored=True, side_margin=0.1),
        single(film_tensor(by_hand), mirrored=True),
    )
    assert torch.allclose(there.pixels, here.pixels, atol=1e-6)


@pytest.mark.parametrize("size", [(31, 400), (400, 31), (1, 1), (0, 0)])
def test_split_refuses_a_film_too_small_for_a_knee(size: tuple[int, int]) -> None:
    film = Radiograph(np.zeros(size, dtype=np.float32))
    with pytest.raises(NotARadiograph, match="expected at least 32"):
        split(film_tensor(film))
    with pytest.raises(NotARadiograph, match="expected at least 32"):
        single(film_tensor(film), mirrored=False)


@pytest.mark.parametrize("size", [(32, 32), (32, 3000), (3000, 32), (33, 257)])
def test_split_takes_the_smallest_and_the_slimmest_films(size: tuple[int, int]) -> None:
    halves = split(film_tensor(slope(*size)))
    assert halves.pixels.shape == (2, *HALF_SIZE)
    assert bool(halves.pixels.isfinite().all())


def test_split_leaves_the_film_as_it_was() -> None:
    film = symmetric(300, 256, 120)
    before = film.pixels.copy()
    split(film_tensor(film), side_margin=0.1)
    assert np.array_equal(film.pixels, before)


def test_split_does_not_share_memory_with_the_film() -> None:
    film = symmetric(800, 1000, 500)
    halves: Tensor = split(film_tensor(film)).pixels
    kept = halves.clone()
    film.pixels[:] = 0
    assert torch.equal(halves, kept)
