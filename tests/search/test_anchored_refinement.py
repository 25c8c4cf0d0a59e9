"""Sharpening that trusts its start: never up, and not far."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.paper.pose import corner_distance, pose_from_vector, vector_from_pose
from kneematch.paper.problem import Problem, make_problem, pyramid
from kneematch.search.anchored_refinement import LEVELS, QUICK_LEVELS, anchor, refine_anchored
from kneematch.search.gauss_newton import Quadratic

PAPER = pytest.mark.parametrize("paper", [True, False], ids=["printed", "robust"])
OFF = torch.tensor([0.02, 0.05, -0.03, 0.02], dtype=torch.float64)  # a tenth of the knee's width


def moved(asked: Problem, start: Tensor, end: Tensor) -> float:
    """How far the corners went, in widths of the template."""
    ends = [pose_from_vector(v, asked.height_ratio) for v in (end, start)]
    return float(corner_distance(*ends, asked.template.aspect, asked.image_aspect).mean())


@pytest.fixture(scope="module")
def astray(knees: Callable) -> tuple[Problem, Tensor]:
    """Another phantom of the family, and a start that is off on it."""
    film, other = knees(14), knees(9)
    asked = make_problem(other.halves[None], film.template)
    start = vector_from_pose(other.truth + OFF, asked.height_ratio).float()[None]
    return asked, start


@PAPER
@pytest.mark.parametrize("sides", [1, 2])
def test_refine_anchored_never_ends_higher_than_it_starts(
    clouds: Callable, cut: Callable, paper: bool, sides: int
) -> None:
    template, _ = cut(clouds(seed=1))
    asked = make_problem(clouds(8, sides), template, paper=paper)
    start = torch.randn(8, sides, 4, generator=torch.Generator().manual_seed(2))
    for trust, levels in itertools.product((0.0, 1.0, 100.0), (LEVELS, QUICK_LEVELS)):
        compared = pyramid(asked, (levels[-1].shrink,))[levels[-1].shrink]
        found = refine_anchored(asked, start, trust=trust, levels=levels)
        assert bool((found.energy <= compared.energy(start)).all())
        assert torch.allclose(found.energy, compared.energy(found.v), atol=1e-4)


def test_refine_anchored_stays_nearer_to_its_start_than_without_an_anchor(
    astray: tuple[Problem, Tensor],
) -> None:
    asked, start = astray
    near, far = refine_anchored(asked, start), refine_anchored(asked, start, trust=0.0)
    assert float(near.energy) < float(asked.energy(start)) - 0.02
    assert 0 < moved(asked, start, near.v) < 0.8 * moved(asked, start, far.v)


def test_refine_anchored_moves_less_with_more_trust(astray: tuple[Problem, Tensor]) -> None:
    asked, start = astray
    ways = [
        moved(asked, start, refine_anchored(asked, start, trust=t).v)
        for t in (0.0, 10.0, 100.0, 1e3)
    ]
    assert ways == sorted(ways, reverse=True)
    assert ways[0] > 1.5 * ways[2]
    assert moved(asked, start, refine_anchored(asked, start, trust=1e9).v) < 1e-4


def test_refine_anchored_without_trust_descends_to_the_knee(knees: Callable) -> None:
    film = knees(9)
    asked = make_problem(film.halves[None, 1:], film.template)
    truth, start = (
        vector_from_pose(theta, asked.height_ratio).float()[None, None]
        for theta in (film.truth[1], film.truth[1] + OFF / 3)
    )
    found = refine_anchored(asked, start, trust=0.0)
    assert moved(asked, truth, found.v) < 0.1 * moved(asked, truth, start)


def test_refine_anchored_keeps_a_start_at_the_template(clouds: Callable, cut: Callable) -> None:
    half = clouds()
    template, theta = cut(half)
    asked = make_problem(half.expand(1, 2, 192, 120), template)
    start = vector_from_pose(theta, 1 / 1.6).float().expand(1, 2, 4)
    found = refine_anchored(asked, start)
    assert moved(asked, start, found.v) < 2e-3


def test_anchor_costs_the_mean_squared_distance_of_the_corners() -> None:
    template_aspect, image_aspect, trust = 0.8, 1.6, 7.0
    theta = torch.tensor([[[0.4, 0.1, -0.2, 0.03], [0.5, -0.1, 0.1, 0.0]]], dtype=torch.float64)
    stay = anchor(theta, template_aspect, image_aspect, trust)
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
        assert cost == pytest.approx(trust * float(apart.square().sum()), rel=1e-2)


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
    found = refine_anchored(make_problem(halves, template), torch.full((2, 2, 4), 0.1))
    assert bool(found.energy.isfinite().all())
    assert bool(found.v.isfinite().all())
