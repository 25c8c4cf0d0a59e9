"""The learnt minimiser: coarse, enlarge, fine, and what is made of its answer."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.models.two_stage import (
    ENLARGE,
    TwoStageNetworks,
    network_solver,
)
from kneematch.paper.pose import enlarge_pose, pose_from_vector, relative_pose, vector_from_pose
from kneematch.paper.problem import Problem, Solution, make_problem

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
    frames = both.frames(halves)
    patch = pose_from_vector(COARSE_V, COARSE / IMAGE)
    assert ENLARGE == 1.2
    assert torch.allclose(frames, enlarge_pose(patch, 1.2).expand(2, 2, 4), atol=1e-6)
    theta = both.poses(halves)
    seen = relative_pose(frames, theta, COARSE, IMAGE)
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
    asked = make_problem(clouds(3, 2), template)
    networks = TwoStageNetworks(Fixed(COARSE_V), Fixed(FINE_V), COARSE, template.aspect)
    theta = pose_from_vector(network_solver(networks)(asked), asked.height_ratio)
    assert torch.allclose(theta, networks.poses(asked.halves), atol=1e-5)


def test_network_solver_starts_a_refinement_at_the_networks_pose(
    clouds: Callable, cut: Callable
) -> None:
    template, theta = cut(clouds())
    asked = make_problem(clouds()[None, None], template)
    start = vector_from_pose(theta, asked.height_ratio).float()[None, None]

    class Given:
        def poses(self, halves: Tensor) -> Tensor:
            return theta.to(halves)[None, None]

    def sharpen(problem: Problem, v: Tensor) -> Solution:
        assert problem is asked
        assert torch.allclose(v, start, atol=1e-5)
        return Solution(v + 1, problem.energy(v + 1))

    assert torch.allclose(network_solver(Given(), sharpen)(asked), start + 1, atol=1e-5)
