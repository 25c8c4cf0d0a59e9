"""Refinement that trusts its start: never up, and not far."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.models.two_stage import corner_distance
from kneematch.paper.energy import MakeProblem, paper_problem
from kneematch.paper.pose import pose_from_vector
from kneematch.search.anchored_refinement import LEVELS, QUICK_LEVELS, anchor, refine_anchored
from kneematch.search.gauss_newton import Quadratic, pyramid
from kneematch.search.robust_energy import robust_problem

ENERGY = pytest.mark.parametrize("energy", [paper_problem, robust_problem])
OFF = torch.tensor([0.02, 0.05, -0.03, 0.02], dtype=torch.float64)  # a tenth of the knee's width


@ENERGY
@pytest.mark.parametrize("sides", [1, 2])
def test_refine_anchored_never_ends_higher_than_it_starts(
    clouds: Callable, cut: Callable, energy: MakeProblem, sides: int
) -> None:
    template, _ = cut(clouds(seed=1))
    asked = energy(clouds(8, sides), template)
    v = torch.randn(8, sides, 4, generator=torch.Generator().manual_seed(2))
    start = pose_from_vector(v, asked.height_ratio)
    for prior_weight, levels in ((0.0, LEVELS), (1.0, QUICK_LEVELS), (100.0, LEVELS)):
        compared = pyramid(asked, (levels[-1].shrink,))[levels[-1].shrink]
        found = refine_anchored(asked, start, prior_weight=prior_weight, levels=levels)
        assert bool((found.energy <= compared.energy(start)).all())
        assert torch.allclose(found.energy, compared.energy(found.theta), atol=1e-4)


def test_refine_anchored_moves_less_with_more_prior_weight(knees: Callable) -> None:
    film, other = knees(14), knees(9)
    asked = robust_problem(other.halves[None], film.template)
    start = (other.truth + OFF).float()[None]
    aspects = asked.template.aspect, asked.image_aspect
    moved = []
    for prior_weight in (0.0, 10.0, 100.0, 1e3, 1e9):
        end = refine_anchored(asked, start, prior_weight=prior_weight).theta
        moved.append(float(corner_distance(end, start, *aspects).mean()))
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 1.5 * moved[2]
    assert moved[-1] < 1e-4


def test_anchor_costs_the_mean_squared_distance_of_the_corners() -> None:
    start = torch.tensor([[[0.4, 0.1, -0.2, 0.03], [0.5, -0.1, 0.1, 0.0]]], dtype=torch.float64)
    stay = anchor(start, 0.8, 1.6, 7.0)
    zeros = [torch.zeros(shape, dtype=torch.float64) for shape in ((1,), (1, 8), (1, 8, 8))]

    def cost(flat: Tensor) -> Tensor:
        return stay(Quadratic(*zeros), flat.reshape(1, 2, 4)).value.sum()

    for step in 1e-4 * torch.eye(4, dtype=torch.float64):
        # One parameter alone moves all corners equally far.
        apart = corner_distance(start + step, start, 0.8, 1.6)
        wanted = 7 * float(apart.square().sum())
        assert float(cost(start + step)) == pytest.approx(wanted, rel=1e-2)
    there = (start + 0.02).flatten()
    told = stay(Quadratic(*zeros), there.reshape(1, 2, 4))
    assert torch.allclose(told.gradient[0], torch.autograd.functional.jacobian(cost, there))
    assert torch.allclose(told.matrix[0], torch.autograd.functional.hessian(cost, there))
