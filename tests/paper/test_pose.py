"""Poses: D and its inverse, patches that stay inside, and matrices that do not shear."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kneematch.paper.pose import (
    admissible_pose,
    compose_pose,
    pose_from_points,
    pose_from_vector,
    pose_matrix,
    relative_pose,
    vector_from_pose,
)

ASPECTS = [0.5, 1.0, 1.4]

numbers = st.floats(-1e6, 1e6)
small_numbers = st.floats(-2.9, 2.9)
ratios = st.floats(0.2, 1.0)
CROP, IMAGE, TEMPLATE = 0.9, 1.6, 0.7  # height over width

poses = st.tuples(
    st.floats(0.15, 1.2), st.floats(-1, 1), st.floats(-1, 1), st.floats(-0.3, 0.3)
).map(lambda numbers: torch.tensor(numbers, dtype=torch.float64))


@given(v=st.tuples(*[small_numbers] * 4), ratio=ratios)
def test_vector_from_pose_inverts_pose_from_vector(v: tuple[float, ...], ratio: float) -> None:
    vector = torch.tensor(v, dtype=torch.float64)
    theta = pose_from_vector(vector, ratio)
    assert torch.allclose(vector_from_pose(theta, ratio), vector, atol=1e-9)
    assert torch.allclose(admissible_pose(theta, ratio), theta, atol=1e-9)


@given(theta=st.tuples(*[st.floats(-5, 5)] * 4), ratio=ratios)
def test_vector_from_pose_is_finite_outside_the_range(
    theta: tuple[float, ...], ratio: float
) -> None:
    v = vector_from_pose(torch.tensor(theta, dtype=torch.float64), ratio)
    assert bool(v.isfinite().all())
    assert v.abs().max() <= 3 + 1e-9


@given(v=st.tuples(numbers, numbers, numbers), aspect=st.floats(0.3, 1.6))
def test_pose_from_vector_keeps_every_unrotated_patch_inside(
    v: tuple[float, ...], aspect: float
) -> None:
    vector = torch.tensor([*v, 0.0], dtype=torch.float64)
    matrix = pose_matrix(pose_from_vector(vector, aspect / 1.6), aspect, 1.6)
    corners = torch.tensor([[-1, -1, 1], [1, -1, 1], [1, 1, 1], [-1, 1, 1]], dtype=torch.float64)
    assert (corners @ matrix.mT).abs().max() <= 1 + 1e-12


def test_admissible_pose_moves_poses_outside_the_range_inside() -> None:
    outside = admissible_pose(torch.tensor([2.0, 0.9, -0.9, -1.0], dtype=torch.float64), 0.7)
    scale, x, y, rotation = outside.tolist()
    assert 0.94 < scale < 0.95
    assert 0 < x < 1 - scale
    assert scale * 0.7 - 1 < y < 0
    assert -0.13 < rotation < -0.129


def test_pose_from_vector_is_the_papers_formula() -> None:
    v = torch.tensor([0.3, -0.8, 1.1, -0.4], dtype=torch.float64)
    f = 1.6 / 0.9  # height ratio 0.9 / 1.6, the paper's 1 / f
    s1 = 0.15 + 0.8 * 0.5 * (1 + math.tanh(0.3))
    s2 = s1 / f
    a13, a23 = 0.5 * (1 + math.tanh(-0.8)), 0.5 * (1 + math.tanh(1.1))
    centre = -1 + s1 + a13 * 2 * (1 - s1), -1 + s2 + a23 * 2 * (1 - s2)
    wanted = [s1, *centre, 0.13 * math.tanh(-0.4)]
    assert pose_from_vector(v, 1 / f).tolist() == pytest.approx(wanted, abs=1e-12)


def test_pose_matrix_of_a_square_template_is_the_papers() -> None:
    s, x, y, r = 0.4, 0.1, -0.2, 0.11
    f = 1.6
    paper = [
        [s * math.cos(r), -s * math.sin(r), x],
        [(s / f) * math.sin(r), (s / f) * math.cos(r), y],
    ]
    found = pose_matrix(torch.tensor([s, x, y, r], dtype=torch.float64), 1.0, 1.6)
    assert torch.allclose(found, torch.tensor(paper, dtype=torch.float64), rtol=0, atol=1e-15)


@given(
    theta=st.tuples(st.floats(0.1, 1), st.floats(-1, 1), st.floats(-1, 1), st.floats(-0.5, 0.5)),
    aspect=st.sampled_from(ASPECTS),
)
def test_pose_from_points_returns_the_pose_of_the_points(
    theta: tuple[float, ...], aspect: float
) -> None:
    pose = torch.tensor(theta, dtype=torch.float64)
    landmarks = torch.tensor([[-0.6, 0.1], [0.7, 0.3]], dtype=torch.float64)
    matrix = pose_matrix(pose, aspect, 1.6)
    points = landmarks @ matrix[:, :2].mT + matrix[:, 2]
    found = pose_from_points(points, landmarks, aspect, 1.6)
    assert torch.allclose(found, pose, rtol=0, atol=1e-9)
    together = pose_from_points(points.expand(3, 2, 2, 2), landmarks, aspect, 1.6)
    assert torch.allclose(together, pose.expand(3, 2, 4), rtol=0, atol=1e-9)


def square(theta: Tensor, template_aspect: float, image_aspect: float) -> Tensor:
    """A(theta) with the row that makes a product a composition: (..., 3, 3)."""
    matrix = pose_matrix(theta, template_aspect, image_aspect)
    last = matrix.new_tensor([0, 0, 1]).expand(*matrix.shape[:-2], 1, 3)
    return torch.cat([matrix, last], dim=-2)


@given(crop=poses, theta=poses)
def test_compose_pose_is_the_product_of_both_maps(crop: Tensor, theta: Tensor) -> None:
    product = square(crop, CROP, IMAGE) @ square(theta, TEMPLATE, CROP)
    together = square(compose_pose(crop, theta, CROP, IMAGE), TEMPLATE, IMAGE)
    assert torch.allclose(together, product, rtol=0, atol=1e-12)


@given(crop=poses, theta=poses)
def test_relative_pose_is_the_inverse_of_compose_pose(crop: Tensor, theta: Tensor) -> None:
    there = compose_pose(crop, theta, CROP, IMAGE)
    assert torch.allclose(relative_pose(crop, there, CROP, IMAGE), theta, rtol=0, atol=1e-9)
    here = relative_pose(crop, theta, CROP, IMAGE)
    assert torch.allclose(compose_pose(crop, here, CROP, IMAGE), theta, rtol=0, atol=1e-9)
