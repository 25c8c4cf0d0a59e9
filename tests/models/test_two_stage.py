"""The learnt minimiser: coarse, enlarge, fine, and what is made of its answer."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.models.two_stage import TwoStageNetworks, network_solver, paper_solver
from kneematch.paper.algorithm2 import ENLARGE
from kneematch.paper.energy import Problem, Solution, paper_problem
from kneematch.paper.pose import enlarge_pose, pose_from_vector, relative_pose

COARSE, FINE, IMAGE = 1.1, 0.9, 1.6  # height over width
COARSE_V = torch.tensor([0.2, -0.3, 0.1, 0.4])
FINE_V = torch.tensor([0.6, 0.1, -0.2, -0.3])


class Fixed:
    """A network that says the same of any image, and remembers the images."""

    def __init__(self, v: Tensor) -> None:
        self.v, self.seen = v, []

    def __call__(self, images: Tensor) -> Tensor:
        self.seen.append(images)
        return self.v.expand(*images.shape[:-2], 4)


def test_two_stage_networks_enlarge_the_coarse_patch(clouds: Callable) -> None:
    halves = clouds(2, 2)
    coarse, fine = Fixed(COARSE_V), Fixed(FINE_V)
    both = TwoStageNetworks(coarse, fine, COARSE, FINE)
    crops = both.crop_poses(halves)
    patch = pose_from_vector(COARSE_V, COARSE / IMAGE)
    assert ENLARGE == 1.2
    assert torch.allclose(crops, enlarge_pose(patch, 1.2).expand(2, 2, 4), atol=1e-6)
    theta = both.poses(halves)
    seen = relative_pose(crops, theta, COARSE, IMAGE)
    assert torch.allclose(seen, pose_from_vector(FINE_V, FINE / COARSE).expand(2, 2, 4), atol=1e-5)
    assert coarse.seen[0].shape == fine.seen[0].shape == (2, 2, 224, 224)


def test_two_stage_networks_show_the_half_and_then_its_frame() -> None:
    y, x = torch.meshgrid(torch.linspace(-1, 1, 320), torch.linspace(-1, 1, 200), indexing="ij")
    halves = torch.stack([x, y])[None]  # grey says where one is
    coarse, fine = Fixed(torch.zeros(4)), Fixed(FINE_V)
    TwoStageNetworks(coarse, fine, 1.6, FINE).poses(halves)
    middle = slice(28, 197, 168)  # two pixels, 168 of 224 apart
    for network, width in ((coarse, 2.0), (fine, 0.66 * 2)):  # D(0) is 0.55, enlarged 0.66
        across, down = network.seen[0][0]
        apart = across[112, middle].diff(), down[middle, 112].diff()
        assert [float(each) for each in apart] == pytest.approx([0.75 * width] * 2, rel=0.01)


def test_network_solver_returns_the_networks_pose(clouds: Callable, cut: Callable) -> None:
    template, _ = cut(clouds(seed=1))
    asked = paper_problem(clouds(3, 2), template)
    networks = TwoStageNetworks(Fixed(COARSE_V), Fixed(FINE_V), COARSE, template.aspect)
    theta = network_solver(networks)(asked)
    assert torch.allclose(theta, networks.poses(asked.images), atol=1e-5)


def solved(problem: Problem, theta: Tensor) -> Solution:
    """A refinement that turns poses a little."""
    moved = theta + torch.tensor([0.0, 0.0, 0.0, 0.01])
    return Solution(moved, problem.energy(moved))


def test_network_solver_starts_a_refinement_at_the_networks_pose(
    clouds: Callable, cut: Callable
) -> None:
    template, _ = cut(clouds())
    asked = paper_problem(clouds(1, 2), template)
    networks = TwoStageNetworks(Fixed(COARSE_V), Fixed(FINE_V), COARSE, template.aspect)
    start, found = (network_solver(networks, each)(asked) for each in (None, solved))
    assert torch.allclose(found, solved(asked, start).theta, atol=1e-6)


def test_paper_solver_refines_in_the_enlarged_patches(clouds: Callable, cut: Callable) -> None:
    template, _ = cut(clouds())
    asked = paper_problem(clouds(1, 2), template)
    networks = TwoStageNetworks(Fixed(COARSE_V), Fixed(FINE_V), COARSE, template.aspect)
    seen: list[tuple[Problem, Tensor]] = []

    def refine(problem: Problem, theta: Tensor) -> Solution:
        seen.append((problem, theta))
        return solved(problem, theta)

    found = paper_solver(networks, (66, 60), refine)(asked)
    (problem, start), wanted = seen[0], solved(asked, networks.poses(asked.images)).theta
    assert problem.images.shape == (1, 2, 66, 60)
    inside = pose_from_vector(FINE_V, template.aspect / COARSE).expand(1, 2, 4)
    assert torch.allclose(start, inside, atol=1e-5)
    assert torch.allclose(found, wanted, atol=1e-5)  # a rotation in the patch is one in the image
