"""The search: both knees of phantoms, in any company, and nothing that is not finite."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.paper.energy import MakeProblem, Problem, paper_problem
from kneematch.search.exhaustive_search import exhaustive_search
from kneematch.search.robust_energy import robust_problem

SEEDS = (9, 19, 42)  # the last is a negative
TEMPLATE = 23
ENERGY = pytest.mark.parametrize("energy", [paper_problem, robust_problem])
HEIGHT = 800  # the robust energy's fine structure is lost in smaller halves


def phantoms(knees: Callable, seeds: tuple[int, ...], energy: MakeProblem) -> Problem:
    images = torch.stack([knees(seed, HEIGHT).halves for seed in seeds])
    return energy(images, knees(TEMPLATE, HEIGHT).template)


def close(theta: Tensor, truth: Tensor) -> bool:
    """Within a tenth of the scale and of the patch's size."""
    ratio = theta[..., 0] / truth[..., 0]
    apart = (theta - truth)[..., 1:3].abs() * torch.tensor([1.0, 1.6])
    return bool((ratio.log().abs() < 0.1).all()) and bool(
        (apart.amax(-1) < 0.2 * truth[..., 0]).all()
    )


@ENERGY
def test_exhaustive_search_finds_both_knees_of_phantoms(
    knees: Callable, energy: MakeProblem
) -> None:
    assert [knees(seed, HEIGHT).negative for seed in SEEDS] == [False, False, True]
    found = exhaustive_search(phantoms(knees, SEEDS, energy=energy))
    for seed, theta in zip(SEEDS, found, strict=True):
        assert close(theta, knees(seed, HEIGHT).truth), seed
    if energy is robust_problem:  # it does not depend on the batch
        alone = exhaustive_search(phantoms(knees, SEEDS[1:2], energy=energy))
        assert ((found[1] - alone[0]).abs() * 250).max() < 0.01  # pixels


def test_exhaustive_search_is_finite_on_black_halves(knees: Callable) -> None:
    halves = torch.stack([knees(seed, HEIGHT).halves for seed in SEEDS[:2]])
    halves[0] = 0
    halves[1, 0] = 0
    found = exhaustive_search(robust_problem(halves, knees(TEMPLATE, HEIGHT).template))
    assert bool(found.isfinite().all())
