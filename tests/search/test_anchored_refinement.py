"""Sharpening that prior_weights its start: never up, and not far."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.models.two_stage import corner_distance
from kneematch.paper.energy import MakeProblem, Problem, paper_problem
from kneematch.paper.pose import pose_from_vector
from kneematch.search.anchored_refinement import LEVELS, QUICK_LEVELS, anchor, refine_anchored
from kneematch.search.gauss_newton import Quadratic, pyramid
from kneematch.search.robust_energy import robust_problem

ENERGY = pytest.mark.parametrize("energy", [paper_problem, robust_problem])
OFF = torch.tensor([0.02, 0.05, -0.03, 0.02], dtype=torch.float64)  # a tenth of the knee's width


def moved(asked: Problem, start: Tensor, end: Tensor) -> float:
    """How far the corners went, in widths of the template."""
    aspects = asked.template.aspect, asked.image_aspect
    return float(corner_distance(end, start, *aspects).mean())


@pytest.fixture(scope="module")
def astray(knees: Callable) -> tuple[Problem, Tensor]:
    """Another phantom of the family, and a start that is off on it."""
    film, other = knees(14), knees(9)
    asked = robust_problem(other.halves[None], film.template)
    start = (other.truth + OFF).float()[None]
    return asked, start


@ENERGY
@pytest.mark.parametrize("sides", [1, 2])
def test_refine_anchored_never_ends_higher_than_it_starts(
    clouds: Callable, cut: Callable, energy: MakeProblem, sides: int
) -> None:
    template, _ = cut(clouds(seed=1))
    asked = energy(clouds(8, sides), template)
    v = torch.randn(8, sides, 4, generator=torch.Generator().manual_seed(2))
    start = pose_from_vector(v, asked.height_ratio)
    for prior_weight, levels in itertools.product((0.0, 1.0, 100.0), (LEVELS, QUICK_LEVELS)):
        compared = pyramid(asked, (levels[-1].shrink,))[levels[-1].shrink]
        found = refine_anchored(asked, start, prior_weight=prior_weight, levels=levels)
        assert bool((found.energy <= compared.energy(start)).all())
        assert torch.allclose(found.energy, compared.energy(found.theta), atol=1e-4)


def test_refine_anchored_moves_less_with_more_prior_weight(astray: tuple[Problem, Tensor]) -> None:
    asked, start = astray
    ways = [
        moved(asked, start, refine_anchored(asked, start, prior_weight=t).theta)
        for t in (0.0, 10.0, 100.0, 1e3)
    ]
    assert ways == sorted(ways, reverse=True)
    assert ways[0] > 1.5 * ways[2]
    assert moved(asked, start, refine_anchored(asked, start, prior_weight=1e9).theta) < 1e-4


def test_anchor_costs_the_mean_squared_distance_of_the_corners() -> None:
    template_aspect, image_aspect, prior_weight = 0.8, 1.6, 7.0
    theta = torch.tensor([[[0.4, 0.1, -0.2, 0.03], [0.5, -0.1, 0.1, 0.0]]], dtype=torch.float64)
    stay = anchor(theta, template_aspect, image_aspect, prior_weight)
    nothing = Quadratic(
        torch.zeros(1, dtype=torch.float64),
        torch.zeros(1, 8, dtype=torch.float64),
        torch.zeros(1, 8, 8, dtype=torch.float64),
    )
    for axis in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[axis] = 1e-4
        cost = float(stay(nothing, theta + step).value)
        # One parameter alone moves all corners equally far.
        apart = corner_distance(theta + step, theta, template_aspect, image_aspect)
        assert cost == pytest.approx(prior_weight * float(apart.square().sum()), rel=1e-2)


def test_anchor_has_the_gradient_and_hessian_of_its_value() -> None:
    theta = torch.tensor([[[0.4, 0.1, -0.2, 0.03], [0.5, -0.1, 0.1, 0.0]]], dtype=torch.float64)
    stay = anchor(theta, 0.8, 1.6, 7.0)
    zeros = [torch.zeros(shape, dtype=torch.float64) for shape in ((1,), (1, 8), (1, 8, 8))]
    here = (theta + 0.02).requires_grad_()
    told = stay(Quadratic(*zeros), here)
    (slope,) = torch.autograd.grad(told.value.sum(), here)
    assert torch.allclose(told.gradient, slope.flatten(1))

    def value(flat: Tensor) -> Tensor:
        return stay(Quadratic(*zeros), flat.reshape(1, 2, 4)).value.sum()

    curvature = torch.autograd.functional.hessian(value, here.detach().flatten())
    assert torch.allclose(told.matrix[0], curvature)


def test_refine_anchored_is_finite_on_black_halves(clouds: Callable, cut: Callable) -> None:
    template, _ = cut(clouds())
    halves = clouds(2, 2)
    halves[0] = 0
    found = refine_anchored(
        robust_problem(halves, template), torch.tensor([0.4, 0.1, 0.1, 0.1]).expand(2, 2, 4)
    )
    assert bool(found.energy.isfinite().all())
    assert bool(found.theta.isfinite().all())
