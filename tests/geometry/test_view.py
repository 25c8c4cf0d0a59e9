"""Views: every point of every patch has one place on the film."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.view import View, compose, homogeneous, rectangle_to_film, transform

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


def test_homogeneous_appends_the_row_zero_zero_one() -> None:
    whole = homogeneous(torch.rand(4, 2, 3))
    assert torch.equal(whole[:, 2], torch.tensor([0.0, 0, 1]).expand(4, 3))
    assert homogeneous(whole) is whole
