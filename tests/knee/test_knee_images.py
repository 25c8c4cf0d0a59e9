"""Views: every point of every patch has one place on the film."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kneematch.knee.knee_images import knee_images
from kneematch.models.locator import VIEW_SIZE, KneeLocation, turn_upright
from kneematch.paper.pose import pose_matrix
from kneematch.sampling import View, compose, rectangle_to_film, transform

CORNERS = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]], dtype=torch.float64)
lengths = st.floats(-5000, 5000)


def test_rectangle_to_film_maps_corners_to_corners() -> None:
    found = transform(rectangle_to_film(10, 20, 110, 220), CORNERS)
    assert found.tolist() == [[10, 20], [110, 20], [110, 220], [10, 220]]


def test_rectangle_to_film_starts_at_the_right_edge_if_mirrored() -> None:
    found = transform(rectangle_to_film(10, 20, 110, 220, mirrored=True), CORNERS)
    assert found.tolist() == [[110, 20], [10, 20], [10, 220], [110, 220]]


def test_view_size_is_height_and_width() -> None:
    view = View(torch.zeros(2, 30, 20), torch.eye(3).expand(2, 3, 3))
    assert view.size == (30, 20)


@given(x0=lengths, y0=lengths, mirrored=st.booleans(), points=st.tuples(*[st.floats(-1, 1)] * 2))
def test_transform_to_the_film_and_back_is_exact(
    x0: float, y0: float, mirrored: bool, points: tuple[float, float]
) -> None:
    to_film = rectangle_to_film(x0, y0, x0 + 1500, y0 + 2400, mirrored=mirrored)
    start = torch.tensor([points], dtype=torch.float64)
    back = transform(torch.linalg.inv(to_film), transform(to_film, start))
    assert (back - start).abs().max() * 400 < 1e-3  # pixels of an 800 x 500 half


@given(theta=st.tuples(st.floats(0.15, 0.95), *[st.floats(-0.5, 0.5)] * 2, st.floats(-0.13, 0.13)))
def test_compose_equals_two_steps(
    theta: tuple[float, ...],
) -> None:
    to_film = rectangle_to_film(300, -40, 1800, 2360, mirrored=True)
    matrix = pose_matrix(torch.tensor(theta, dtype=torch.float64), 0.8, 1.6)
    direct = transform(compose(to_film, matrix), CORNERS)
    in_two = transform(to_film, transform(matrix, CORNERS))
    assert torch.allclose(direct, in_two, rtol=0, atol=1e-9)


def test_compose_takes_a_patch_of_a_patch() -> None:
    to_film = rectangle_to_film(0, 0, 1000, 1600)
    outer = pose_matrix(torch.tensor([0.5, 0.1, 0.2, 0.1], dtype=torch.float64), 1.0, 1.6)
    inner = pose_matrix(torch.tensor([0.5, -0.1, 0.0, -0.1], dtype=torch.float64), 1.0, 1.0)
    twice = compose(compose(to_film, outer), inner)
    in_three = transform(to_film, transform(outer, transform(inner, CORNERS)))
    assert torch.allclose(transform(twice, CORNERS), in_three, rtol=0, atol=1e-9)


def test_compose_keeps_double_precision_and_batches() -> None:
    to_film = rectangle_to_film(0, 0, 1000, 1600).expand(2, 3, 3)
    matrices = torch.rand(5, 2, 2, 3)
    composed = compose(to_film, matrices)
    assert composed.shape == (5, 2, 3, 3)
    assert composed.dtype == torch.float64
    assert torch.equal(composed[3, 1], compose(to_film[1], matrices[3, 1]))


def test_compose_appends_the_row_zero_zero_one() -> None:
    matrices = torch.rand(4, 2, 3)
    whole = compose(torch.eye(3), matrices)
    assert torch.equal(whole[:, :2], matrices)
    assert torch.equal(whole[:, 2], torch.tensor([0.0, 0, 1]).expand(4, 3))


def test_transform_takes_arrays_as_it_takes_tensors() -> None:
    matrices, points = torch.rand(4, 3, 3).double(), torch.rand(5, 2).double()
    found = transform(matrices.numpy(), points.numpy())
    np.testing.assert_allclose(found, transform(matrices, points).numpy())


def film_with_dots(height: int, width: int, dots: list[tuple[float, float]]) -> Tensor:
    """A black film with a soft bright dot at each point (x, y)."""
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    film = torch.zeros(height, width)
    for px, py in dots:
        film += torch.exp(-((x - px) ** 2 + (y - py) ** 2) / 18)
    return film


def brightest(view: Tensor) -> Tensor:
    """The place of the brightest pixel in a view's [-1, 1]^2."""
    row, column = divmod(int(view.argmax()), view.shape[1])
    height, width = view.shape
    return torch.tensor([2 * (column + 0.5) / width - 1, 2 * (row + 0.5) / height - 1])


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_turn_upright_maps_pixels_back_to_the_film(turns: int) -> None:
    film = torch.arange(12.0).reshape(3, 4)
    turned, back = turn_upright(film, turns)
    for row in range(turned.shape[0]):
        for column in range(turned.shape[1]):
            x, y, _ = (back @ torch.tensor([column + 0.5, row + 0.5, 1.0]).double()).tolist()
            assert film[int(y), int(x)] == turned[row, column]


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("degrees", [0.0, 20.0, -35.0])
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_cut_views_shows_what_to_film_says(mirrored: bool, degrees: float, turns: int) -> None:
    dot = (330.0, 260.0)
    film = film_with_dots(500, 600, [dot])
    place = KneeLocation(300.0, 240.0, 120.0, math.radians(degrees), mirrored, turns)
    view = knee_images(film, [place])
    assert view.pixels.shape == (1, *VIEW_SIZE)
    found = transform(view.to_film[0], brightest(view.pixels[0])[None])[0]
    assert found.tolist() == pytest.approx(dot, abs=1.0)
    assert (torch.linalg.det(view.to_film[0][:2, :2]) < 0) == mirrored


def test_cut_views_has_plateaus_of_100_pixels_in_the_middle() -> None:
    ends = torch.tensor([[250.0, 240.0], [350.0, 240.0]]).double()
    view = knee_images(
        film_with_dots(500, 600, []), [KneeLocation(300, 240, 100, 0.0, lateral_left=False)]
    )
    inside = transform(torch.linalg.inv(view.to_film[0]), ends)
    assert np.abs(inside.numpy() - [[-0.4, 0.0], [0.4, 0.0]]).max() < 0.01


def test_cut_views_is_black_below_the_film() -> None:
    view = knee_images(torch.ones(200, 300), [KneeLocation(150, 190, 100, 0.0, lateral_left=False)])
    assert view.pixels[0, -1].max() == 0
    assert view.pixels[0, 150, 125] == pytest.approx(1)
