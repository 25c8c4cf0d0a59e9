"""Distances of poses, crops that place them, and poses near others."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kneematch.models.two_stage import (
    PoseJitter,
    corner_distance,
    crop_pose_from,
    jitter_pose,
)
from kneematch.paper.pose import compose_pose

CROP, IMAGE = 0.9, 1.6  # height over width

poses = st.tuples(
    st.floats(0.15, 1.2), st.floats(-1, 1), st.floats(-1, 1), st.floats(-0.3, 0.3)
).map(lambda numbers: torch.tensor(numbers, dtype=torch.float64))


def test_corner_distance_of_equal_poses_is_zero() -> None:
    theta = torch.tensor([0.4, 0.2, -0.3, 0.1], dtype=torch.float64)
    assert float(corner_distance(theta, theta, 0.8, 1.6)) == pytest.approx(0, abs=1e-5)


def test_corner_distance_is_in_widths_of_the_target() -> None:
    target = torch.tensor([0.4, 0.2, -0.3, 0.1], dtype=torch.float64)
    for change, distance in [
        ([0, 0.4, 0, 0], 0.4 / 0.8),  # 0.4 half widths of the image; the target is 0.8 wide
        ([0, 0, 0.25, 0], 0.25 * 1.6 / 0.8),  # pixels are square, so that a height is 1.6 widths
        ([0.2, 0, 0, 0], 0.5 * math.hypot(1, 0.8) / 2),  # half as large again
        ([0, 0, 0, 0.1], math.sin(0.05) * math.hypot(1, 0.8)),  # a chord
    ]:
        found = target + torch.tensor(change, dtype=torch.float64)
        told = float(corner_distance(found, target, 0.8, 1.6))
        assert told == pytest.approx(distance, abs=1e-6), change


def test_corner_distance_has_a_finite_gradient_at_zero() -> None:
    target = torch.tensor([[0.4, 0.2, -0.3, 0.1], [0.5, 0.0, 0.0, 0.0]])
    found = target.clone().requires_grad_()
    distance = corner_distance(found, target, 0.8, 1.6)
    assert distance.shape == (2,)
    distance.sum().backward()
    assert found.grad is not None
    assert bool(found.grad.isfinite().all())


@given(target=poses, wanted=poses)
def test_crop_pose_from_maps_one_pose_to_the_other(target: Tensor, wanted: Tensor) -> None:
    crop = crop_pose_from(target, wanted, CROP, IMAGE)
    assert torch.allclose(compose_pose(crop, wanted, CROP, IMAGE), target, rtol=0, atol=1e-9)


def test_jitter_pose_stays_near_and_inside() -> None:
    theta = torch.tensor([0.4, 0.1, -0.2, 0.02]).expand(500, 4)
    jitter = PoseJitter(0.2, 0.1, 0.05)
    found = jitter_pose(theta, 0.6, jitter, torch.Generator().manual_seed(0))
    reach = (found - theta).abs().amax(0)
    assert reach.tolist() == pytest.approx([0.4 * math.expm1(0.2), 0.1, 0.1, 0.05], rel=0.03)
    wild = jitter_pose(theta, 0.6, PoseJitter(3.0, 2.0, 1.0), torch.Generator().manual_seed(0))
    assert bool((wild[:, 1].abs() <= 1 - wild[:, 0]).all())
    assert bool((wild[:, 3].abs() <= 0.13).all())
