"""The learnt solver: coarse, enlarge, fine; a user's template; poses in crops."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kneematch.models.cpu_inference import float_network
from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.two_stage import (
    PoseJitter,
    TwoStageNetworks,
    corner_distance,
    crop_pose_from,
    jitter_pose,
    network_solver,
    transfer_template,
)
from kneematch.paper.energy import Problem, Solution, paper_problem
from kneematch.paper.pose import compose_pose, enlarge_pose, pose_from_vector, relative_pose

COARSE, FINE, IMAGE = 1.1, 0.9, 1.6  # height over width
COARSE_V = torch.tensor([0.2, -0.3, 0.1, 0.4])
FINE_V = torch.tensor([0.6, 0.1, -0.2, -0.3])
NOTHING = torch.tensor([1.0, 0, 0, 0])

poses = st.tuples(
    st.floats(0.15, 1.2), st.floats(-1, 1), st.floats(-1, 1), st.floats(-0.3, 0.3)
).map(lambda numbers: torch.tensor(numbers, dtype=torch.float64))


class Fixed:
    """A network that says the same of any image, and remembers the images."""

    def __init__(self, v: Tensor) -> None:
        self.v, self.seen = v, []

    def __call__(self, images: Tensor) -> Tensor:
        self.seen.append(images)
        return self.v.expand(*images.shape[:-2], 4)


def solved(problem: Problem, theta: Tensor) -> Solution:
    """A refinement that turns poses a little."""
    moved = theta + torch.tensor([0.0, 0.0, 0.0, 0.01])
    return Solution(moved, problem.energy(moved))


def test_two_stage_networks_show_the_half_and_then_its_enlarged_patch() -> None:
    y, x = torch.meshgrid(torch.linspace(-1, 1, 320), torch.linspace(-1, 1, 200), indexing="ij")
    halves = torch.stack([x, y])[None]  # grey says where one is
    coarse, fine = Fixed(torch.zeros(4)), Fixed(FINE_V)
    both = TwoStageNetworks(coarse, fine, IMAGE, FINE)
    theta, crops = both.poses(halves), both.crop_poses(halves)
    patch = pose_from_vector(torch.zeros(4), 1.0)
    assert torch.allclose(crops, enlarge_pose(patch, 1.2).expand(1, 2, 4), atol=1e-6)
    seen = relative_pose(crops, theta, IMAGE, IMAGE)
    assert torch.allclose(seen, pose_from_vector(FINE_V, FINE / IMAGE).expand(1, 2, 4), atol=1e-5)
    middle = slice(28, 197, 168)  # two pixels, 168 of 224 apart
    for network, width in ((coarse, 2.0), (fine, 0.66 * 2)):  # D(0) is 0.55, enlarged 0.66
        across, down = network.seen[0][0]
        apart = across[112, middle].diff(), down[middle, 112].diff()
        assert [float(each) for each in apart] == pytest.approx([0.75 * width] * 2, rel=0.01)


def test_network_solver_refines_in_the_enlarged_patches(clouds: Callable, cut: Callable) -> None:
    template, _ = cut(clouds())
    asked = paper_problem(clouds(1, 2), template)
    networks = TwoStageNetworks(Fixed(COARSE_V), Fixed(FINE_V), COARSE, template.aspect)
    inside = pose_from_vector(FINE_V, template.aspect / COARSE).expand(1, 2, 4)

    def refine(problem: Problem, theta: Tensor) -> Solution:
        assert problem.images.shape == (1, 2, 66, 60)
        assert torch.allclose(theta, inside, atol=1e-5)
        return solved(problem, theta)

    found = network_solver(networks, refine, (66, 60))(asked)
    start = network_solver(networks)(asked)
    assert torch.allclose(start, networks.poses(asked.images), atol=1e-5)
    # A rotation in the patch is one in the image.
    assert torch.allclose(found, solved(asked, start).theta, atol=1e-5)


@pytest.fixture(scope="module")
def networks() -> TwoStageNetworks:
    """In float32, which is quicker to make."""
    model = load_model(builtin_model())
    aspects = model.coarse_template.aspect, model.fine_template.aspect
    return TwoStageNetworks(float_network(model.coarse), float_network(model.fine), *aspects)


def test_transfer_template_finds_a_drawn_template_on_another_film(
    networks: TwoStageNetworks, knees: Callable
) -> None:
    drawn, other = knees(5, 800), knees(6, 800)
    # Smaller than the model's template, and off its middle.
    wanted, truth = (
        (each.truth * torch.tensor([0.8, 1, 1, 1]) + torch.tensor([0, 0.04, -0.03, 0.02])).float()
        for each in (other, drawn)
    )
    aspects = drawn.template.aspect, IMAGE
    found = transfer_template(networks, drawn.halves[1], truth[1]).poses(other.halves[None])[0]
    assert float(corner_distance(found, wanted, *aspects).max()) < 0.08
    # The networks' own template lies elsewhere.
    own = networks.poses(other.halves[None])[0]
    assert float(corner_distance(own, wanted, *aspects).min()) > 0.1


def test_corner_distance_is_in_widths_of_the_target() -> None:
    target = torch.tensor([0.4, 0.2, -0.3, 0.1], dtype=torch.float64)
    for change, distance in [
        ([0, 0, 0, 0], 0),
        ([0, 0.4, 0, 0], 0.4 / 0.8),  # 0.4 half widths of the image; the target is 0.8 wide
        ([0, 0, 0.25, 0], 0.25 * 1.6 / 0.8),  # pixels are square, so that a height is 1.6 widths
        ([0.2, 0, 0, 0], 0.5 * math.hypot(1, 0.8) / 2),  # half as large again
        ([0, 0, 0, 0.1], math.sin(0.05) * math.hypot(1, 0.8)),  # a chord
    ]:
        found = (target + torch.tensor(change, dtype=torch.float64)).requires_grad_()
        told = corner_distance(found, target, 0.8, IMAGE)
        told.backward()
        assert float(told.detach()) == pytest.approx(distance, abs=2e-6), change
        assert bool(found.grad.isfinite().all())


@given(target=poses, wanted=poses)
def test_crop_pose_from_maps_one_pose_to_the_other(target: Tensor, wanted: Tensor) -> None:
    crop = crop_pose_from(target, wanted, FINE, IMAGE)
    assert torch.allclose(compose_pose(crop, wanted, FINE, IMAGE), target, rtol=0, atol=1e-9)


def test_jitter_pose_stays_near_and_inside() -> None:
    theta = torch.tensor([0.4, 0.1, -0.2, 0.02]).expand(500, 4)
    jitter = PoseJitter(0.2, 0.1, 0.05)
    found = jitter_pose(theta, 0.6, jitter, torch.Generator().manual_seed(0))
    reach = (found - theta).abs().amax(0)
    assert reach.tolist() == pytest.approx([0.4 * math.expm1(0.2), 0.1, 0.1, 0.05], rel=0.03)
    wild = jitter_pose(theta, 0.6, PoseJitter(3.0, 2.0, 1.0), torch.Generator().manual_seed(0))
    assert bool((wild[:, 1].abs() <= 1 - wild[:, 0]).all())
    assert bool((wild[:, 3].abs() <= 0.13).all())
