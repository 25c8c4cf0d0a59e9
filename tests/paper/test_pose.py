"""Poses: D and its inverse, patches that stay inside, and matrices that do not shear."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kneematch.paper.pose import (
    MAX_ROTATION,
    SCALE_MIN,
    SCALE_RANGE,
    clamp_pose,
    compose_pose,
    corner_distance,
    enlarge_pose,
    frame_from_poses,
    pose_from_points,
    pose_from_vector,
    pose_matrix,
    relative_pose,
    vector_from_pose,
)
from kneematch.sampling import sample

HALF = (320, 200)  # 1.6, as all halves
ASPECTS = [0.5, 1.0, 1.4]

numbers = st.floats(-1e6, 1e6)
small_numbers = st.floats(-2.9, 2.9)
ratios = st.floats(0.2, 1.0)
VIEW, IMAGE, TEMPLATE = 0.9, 1.6, 0.7  # height over width

poses = st.tuples(
    st.floats(0.15, 1.2), st.floats(-1, 1), st.floats(-1, 1), st.floats(-0.3, 0.3)
).map(lambda numbers: torch.tensor(numbers, dtype=torch.float64))


def positions(theta: list[float], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The x and the y, in pixels of the half, that each pixel of a patch is sampled from."""
    height, width = HALF
    x = (torch.arange(width, dtype=torch.float64) + 0.5).expand(HALF)
    y = (torch.arange(height, dtype=torch.float64) + 0.5)[:, None].expand(HALF)
    pose = torch.tensor(theta, dtype=torch.float64)
    matrix = pose_matrix(pose, size[0] / size[1], height / width)
    sampled = sample(torch.stack([x, y]), matrix.expand(2, 2, 3), size)
    return sampled[0], sampled[1]


@given(v=st.tuples(*[small_numbers] * 4), ratio=ratios)
def test_vector_from_pose_inverts_pose_from_vector(v: tuple[float, ...], ratio: float) -> None:
    vector = torch.tensor(v, dtype=torch.float64)
    theta = pose_from_vector(vector, ratio)
    assert torch.allclose(vector_from_pose(theta, ratio), vector, atol=1e-9)


@given(
    t=st.tuples(*[st.floats(-0.99, 0.99)] * 4),
    ratio=ratios,
)
def test_pose_from_vector_inverts_vector_from_pose(t: tuple[float, ...], ratio: float) -> None:
    scale = SCALE_MIN + SCALE_RANGE * (1 + t[0]) / 2
    reach_x, reach_y = 1 - scale, 1 - scale * ratio
    theta = torch.tensor(
        [scale, reach_x * t[1], reach_y * t[2], MAX_ROTATION * t[3]], dtype=torch.float64
    )
    assert torch.allclose(pose_from_vector(vector_from_pose(theta, ratio), ratio), theta, atol=1e-9)


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


@given(v=st.tuples(*[numbers] * 4))
def test_pose_from_vector_keeps_the_papers_ranges(v: tuple[float, ...]) -> None:
    theta = pose_from_vector(torch.tensor(v, dtype=torch.float64), 0.7)
    assert 0.15 - 1e-12 <= theta[0] <= 0.95 + 1e-12
    assert abs(theta[3]) <= 0.13 + 1e-12


def test_pose_from_vector_of_zero_is_the_middle_of_every_range() -> None:
    theta = pose_from_vector(torch.zeros(4, dtype=torch.float64), 0.7)
    assert theta.tolist() == pytest.approx([0.55, 0.0, 0.0, 0.0])


def test_pose_from_vector_is_the_papers_formula() -> None:
    v = torch.tensor([0.3, -0.8, 1.1, -0.4], dtype=torch.float64)
    f = 1.6 / 0.9  # height ratio 0.9 / 1.6, the paper's 1 / f
    s1 = 0.15 + 0.8 * 0.5 * (1 + math.tanh(0.3))
    s2 = s1 / f
    a13, a23 = 0.5 * (1 + math.tanh(-0.8)), 0.5 * (1 + math.tanh(1.1))
    wanted = [
        s1,
        -1 + s1 + a13 * 2 * (1 - s1),
        -1 + s2 + a23 * 2 * (1 - s2),
        0.13 * math.tanh(-0.4),
    ]
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


def test_pose_matrix_takes_batches() -> None:
    theta = torch.rand(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = pose_matrix(theta, 0.8, 1.6)
    assert together.shape == (3, 2, 2, 3)
    assert torch.equal(together[2, 1], pose_matrix(theta[2, 1], 0.8, 1.6))


@pytest.mark.parametrize("aspect", ASPECTS)
def test_pose_matrix_gives_the_templates_shape_and_square_pixels(aspect: float) -> None:
    size = (round(aspect * 60), 60)
    x, y = positions([0.4, 0.05, -0.1, 0.13], size)
    assert x.shape == size
    along = torch.tensor([x[5, 6] - x[5, 5], y[5, 6] - y[5, 5]])
    down = torch.tensor([x[6, 5] - x[5, 5], y[6, 5] - y[5, 5]])
    pitch = 0.4 * HALF[1] / size[1]
    assert float(along @ down) == pytest.approx(0, abs=1e-9)
    assert float(along.norm()) == pytest.approx(pitch, abs=1e-9)
    assert float(down.norm()) == pytest.approx(pitch, abs=1e-9)


def test_pose_matrix_rotates_clockwise_for_positive_angles() -> None:
    x, y = positions([0.4, 0.0, 0.0, 0.1], (40, 60))
    turned = math.atan2(float(y[20, 50] - y[20, 10]), float(x[20, 50] - x[20, 10]))
    assert turned == pytest.approx(0.1, abs=1e-9)  # y grows down


def test_pose_matrix_maps_the_middle_of_a_patch_to_its_centre() -> None:
    x, y = positions([0.4, 0.2, -0.3, 0.07], (41, 61))
    assert float(x[20, 30]) == pytest.approx((0.2 + 1) / 2 * HALF[1])
    assert float(y[20, 30]) == pytest.approx((-0.3 + 1) / 2 * HALF[0])


@pytest.mark.parametrize("aspect", ASPECTS)
def test_pose_matrix_keeps_discs_round(aspect: float) -> None:
    size = (round(aspect * 80), 80)
    rows, columns = torch.meshgrid(*(torch.arange(n) + 0.5 for n in HALF), indexing="ij")
    disc = torch.sigmoid(14 - torch.hypot(rows - HALF[0] / 2, columns - HALF[1] / 2))
    theta = torch.tensor([0.4, 0.0, 0.0, 0.13])
    patch = sample(disc, pose_matrix(theta, size[0] / size[1], HALF[0] / HALF[1]), size)
    i, j = torch.meshgrid(*(torch.arange(n) + 0.5 - n / 2 for n in size), indexing="ij")
    mass = patch.sum()
    spread_x, spread_y, slant = ((patch * m).sum() / mass for m in (j * j, i * i, i * j))
    assert float(spread_y / spread_x) == pytest.approx(1, abs=0.005)
    assert float(slant / spread_x) == pytest.approx(0, abs=0.005)


@pytest.mark.parametrize("aspect", ASPECTS)
def test_pose_matrix_keeps_right_angles(aspect: float) -> None:
    size = (round(aspect * 80), 80)
    corners_px = torch.tensor([[80.0, 140], [120, 140], [120, 180], [80, 180]], dtype=torch.float64)
    theta = torch.tensor([0.4, 0.0, 0.0, 0.13], dtype=torch.float64)
    matrix = pose_matrix(theta, size[0] / size[1], HALF[0] / HALF[1])
    half = corners_px / torch.tensor([HALF[1], HALF[0]]) * 2 - 1
    patch = torch.linalg.solve(matrix[:, :2], (half - matrix[:, 2]).mT).mT
    seen = (patch + 1) / 2 * torch.tensor([size[1], size[0]])
    edges = seen.roll(-1, 0) - seen
    assert torch.allclose((edges * edges.roll(-1, 0)).sum(1), torch.zeros(4).double(), atol=1e-9)
    assert torch.allclose(edges.norm(dim=1), edges[0].norm().expand(4), atol=1e-9)


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


@pytest.mark.parametrize("inside", [1.0, 0.97])
def test_clamp_pose_changes_only_poses_outside_the_range(inside: float) -> None:
    v = torch.randn(20, 4, generator=torch.Generator().manual_seed(2))
    theta = pose_from_vector(0.8 * v.clamp(-2, 2), 0.625)
    assert torch.allclose(clamp_pose(theta, 0.625, inside), theta, atol=1e-6)
    clamped = clamp_pose(torch.tensor([[2.0, 0.5, -0.9, 1.0]]), 0.625, inside)
    scale = 0.15 + inside * 0.8
    expected = [scale, inside * (1 - scale), -inside * (1 - 0.625 * scale), inside * 0.13]
    assert clamped[0].tolist() == pytest.approx(expected)


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
