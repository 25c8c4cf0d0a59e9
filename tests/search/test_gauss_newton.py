"""The descent never ascends, and stays near a start that it trusts."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.models.two_stage import corner_distance
from kneematch.paper.energy import (
    MakeProblem,
    Problem,
    correlation,
    paper_problem,
    symmetry_penalty,
)
from kneematch.paper.pose import pose_from_vector, pose_matrix
from kneematch.sampling import sample
from kneematch.search.gauss_newton import (
    LEVELS,
    QUICK_LEVELS,
    Quadratic,
    anchor,
    linearize,
    pyramid,
    refine_anchored,
)
from kneematch.search.robust_energy import robust_problem

ENERGY = pytest.mark.parametrize("energy", [paper_problem, robust_problem])
SIDES = pytest.mark.parametrize("sides", [1, 2])

OFF = torch.tensor([0.02, 0.05, -0.03, 0.02], dtype=torch.float64)  # a tenth of the knee's width


def soft_energy(problem: Problem, theta: Tensor, softness: float) -> Tensor:
    """The energy with a soft maximum, by autograd's means alone."""
    total = symmetry_penalty(theta)
    for term in problem.terms:
        matrices = pose_matrix(theta, term.template.aspect, problem.image_aspect)
        patch, image = sample(term.images, matrices, term.template.size), term.template.image
        whole, red, green = (
            correlation(patch[window], image[window], term.floor)
            for window in (..., term.template.red, term.template.green)
        )
        losses = []
        for sign in (1, -1):
            costs = (1 - sign * red) / softness, (1 - sign * green) / softness
            losses.append((1 - sign * whole + softness * torch.logaddexp(*costs)) / 2)
        total = total + term.weight * torch.minimum(*losses).sum(-1)
    return total


@ENERGY
@SIDES
def test_linearize_has_the_value_and_nearly_the_gradient_of_the_soft_energy(
    clouds: Callable, cut: Callable, energy: MakeProblem, sides: int
) -> None:
    template, _ = cut(clouds(seed=1))
    asked = energy(clouds(8, sides).double(), template)
    v = torch.randn(8, sides, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # Patches about as large as the template: the model differentiates in the patch's own pixels.
    theta = pose_from_vector(0.3 * v - torch.tensor([0.4, 0, 0, 0]), 1 / 1.6).requires_grad_()
    for softness in (0.01, 0.1, 0.5):
        value = linearize(asked, theta.detach(), softness).value
        assert torch.allclose(value, soft_energy(asked, theta, softness), atol=1e-9)
    wanted = torch.autograd.grad(soft_energy(asked, theta, 0.1).sum(), theta)[0].flatten(1)
    found = linearize(asked, theta.detach(), 0.1).gradient
    # Central differences in the patch, none at its rim: not the derivative of bilinear sampling.
    # The rim counts for less in larger patches; here they are 50 pixels wide.
    assert ((found - wanted).norm(dim=1) / wanted.norm(dim=1)).max() < 0.25
    assert torch.cosine_similarity(found, wanted, dim=1).min() > 0.97


@ENERGY
@SIDES
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
