"""Frames: poses seen from within other poses, there and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kneematch.geometry.frames import compose_pose, enlarge_pose, frame_from_poses, relative_pose
from kneematch.geometry.pose import pose_matrix

VIEW, IMAGE, TEMPLATE = 0.9, 1.6, 0.7  # height over width

poses = st.tuples(
    st.floats(0.15, 1.2), st.floats(-1, 1), st.floats(-1, 1), st.floats(-0.3, 0.3)
).map(lambda numbers: torch.tensor(numbers, dtype=torch.float64))


def square(theta: Tensor, template_aspect: float, image_aspect: float) -> Tensor:
    """A(theta) with the row that makes a product a composition: (..., 3, 3)."""
    matrix = pose_matrix(theta, template_aspect, image_aspect)
    last = matrix.new_tensor([0, 0, 1]).expand(*matrix.shape[:-2], 1, 3)
    return torch.cat([matrix, last], dim=-2)


@given(frame=poses, theta=poses)
def test_compose_pose_is_the_product_of_both_maps(frame: Tensor, theta: Tensor) -> None:
    product = square(frame, VIEW, IMAGE) @ square(theta, TEMPLATE, VIEW)
    together = square(compose_pose(frame, theta, VIEW, IMAGE), TEMPLATE, IMAGE)
    assert torch.allclose(together, product, rtol=0, atol=1e-12)


@given(frame=poses, theta=poses)
def test_relative_pose_is_the_inverse_of_compose_pose(frame: Tensor, theta: Tensor) -> None:
    there = compose_pose(frame, theta, VIEW, IMAGE)
    assert torch.allclose(relative_pose(frame, there, VIEW, IMAGE), theta, rtol=0, atol=1e-9)
    here = relative_pose(frame, theta, VIEW, IMAGE)
    assert torch.allclose(compose_pose(frame, here, VIEW, IMAGE), theta, rtol=0, atol=1e-9)


@given(target=poses, wanted=poses)
def test_frame_from_poses_maps_one_pose_to_the_other(target: Tensor, wanted: Tensor) -> None:
    frame = frame_from_poses(target, wanted, VIEW, IMAGE)
    assert torch.allclose(compose_pose(frame, wanted, VIEW, IMAGE), target, rtol=0, atol=1e-9)


def test_compose_pose_with_the_whole_image_changes_nothing() -> None:
    whole = torch.tensor([1.0, 0, 0, 0])
    theta = torch.tensor([0.4, 0.1, -0.3, 0.05])
    assert torch.allclose(compose_pose(whole, theta, IMAGE, IMAGE), theta)
    assert torch.allclose(relative_pose(whole, theta, IMAGE, IMAGE), theta)


def test_compose_pose_of_a_pose_that_fills_the_frame_is_the_frame() -> None:
    frame = torch.tensor([0.4, 0.1, -0.3, 0.05])
    assert torch.allclose(compose_pose(frame, torch.tensor([1.0, 0, 0, 0]), VIEW, IMAGE), frame)


def test_frames_take_batches() -> None:
    drawn = torch.Generator().manual_seed(0)
    frames, thetas = 0.2 + 0.5 * torch.rand(2, 3, 2, 4, generator=drawn, dtype=torch.float64)
    for function in (compose_pose, relative_pose, frame_from_poses):
        together = function(frames, thetas, VIEW, IMAGE)
        assert together.shape == (3, 2, 4)
        alone = function(frames[2, 1], thetas[2, 1], VIEW, IMAGE)
        assert torch.allclose(together[2, 1], alone, rtol=0, atol=1e-12)


def test_enlarge_pose_keeps_centre_and_rotation() -> None:
    theta = torch.tensor([[0.4, 0.1, -0.3, 0.05]], dtype=torch.float64)
    large = enlarge_pose(theta, 1.2)
    assert large.tolist()[0] == pytest.approx([0.48, 0.1, -0.3, 0.05])
    small = pose_matrix(theta, TEMPLATE, IMAGE)
    assert torch.allclose(pose_matrix(large, TEMPLATE, IMAGE)[..., :2], 1.2 * small[..., :2])
    # In the enlarged patch the patch itself is upright, in the middle, and 1 / 1.2 as large.
    assert relative_pose(large, theta, TEMPLATE, IMAGE).tolist()[0] == pytest.approx(
        [1 / 1.2, 0, 0, 0]
    )
