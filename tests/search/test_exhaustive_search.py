"""The search: both knees of phantoms, in any company, and nothing that is not finite."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.paper.pose import pose_from_vector
from kneematch.paper.problem import Problem, make_problem
from kneematch.search.exhaustive_search import exhaustive_search
from kneematch.search.ncc_bank import bank_minima

SEEDS = (9, 14, 19, 42, 47)  # 42 is a negative
TEMPLATE = 23
PAPER = pytest.mark.parametrize("paper", [True, False], ids=["printed", "robust"])
HEIGHT = 800  # the robust energy's fine structure is lost in smaller halves


def phantoms(knees: Callable, seeds: tuple[int, ...], *, paper: bool, sides: int = 2) -> Problem:
    halves = torch.stack([knees(seed, HEIGHT).halves[:sides] for seed in seeds])
    return make_problem(halves, knees(TEMPLATE, HEIGHT).template, paper=paper)


def poses(question: Problem) -> Tensor:
    return pose_from_vector(exhaustive_search(question).double(), question.height_ratio)


def close(theta: Tensor, truth: Tensor) -> bool:
    """Within a tenth of the scale and of the patch's size."""
    ratio = theta[..., 0] / truth[..., 0]
    apart = (theta - truth)[..., 1:3].abs() * torch.tensor([1.0, 1.6])
    return bool((ratio.log().abs() < 0.1).all()) and bool(
        (apart.amax(-1) < 0.2 * truth[..., 0]).all()
    )


@PAPER
def test_exhaustive_search_finds_both_knees_of_phantoms(knees: Callable, paper: bool) -> None:
    assert [knees(seed, HEIGHT).negative for seed in SEEDS] == [False] * 3 + [True, False]
    found = poses(phantoms(knees, SEEDS, paper=paper))
    missed = [
        seed
        for seed, theta in zip(SEEDS, found, strict=True)
        if not close(theta, knees(seed, HEIGHT).truth)
    ]
    assert missed == []


@PAPER
def test_exhaustive_search_finds_the_template_in_its_own_film(knees: Callable, paper: bool) -> None:
    found = poses(phantoms(knees, (TEMPLATE,), paper=paper))[0, 1]
    truth = knees(TEMPLATE, HEIGHT).truth[1]
    assert ((found - truth)[:3].abs() * 250).max() < 2  # pixels; the other knee pulls at it
    alone = make_problem(
        knees(TEMPLATE, HEIGHT).halves[None, 1:], knees(TEMPLATE, HEIGHT).template, paper=paper
    )
    assert ((poses(alone)[0, 0] - truth)[:3].abs() * 250).max() < 0.5


def test_exhaustive_search_does_not_depend_on_the_batch(knees: Callable) -> None:
    together = poses(phantoms(knees, SEEDS[:3], paper=False))
    for k in range(3):
        alone = poses(phantoms(knees, SEEDS[k : k + 1], paper=False))
        assert ((together[k] - alone[0]).abs() * 250).max() < 0.01  # pixels


def test_exhaustive_search_takes_one_side(knees: Callable) -> None:
    question = phantoms(knees, SEEDS[:2], paper=True, sides=1)
    found = exhaustive_search(question)
    assert found.shape == (2, 1, 4)
    theta = pose_from_vector(found.double(), question.height_ratio)
    truth = torch.stack([knees(seed, HEIGHT).truth[:1] for seed in SEEDS[:2]])
    assert close(theta, truth)


@PAPER
def test_exhaustive_search_is_finite_on_black_halves(knees: Callable, paper: bool) -> None:
    halves = torch.stack([knees(seed, HEIGHT).halves for seed in SEEDS[:2]])
    halves[0] = 0
    halves[1, 0] = 0
    found = exhaustive_search(make_problem(halves, knees(TEMPLATE, HEIGHT).template, paper=paper))
    assert bool(found.isfinite().all())


def test_bank_minima_are_distinct_poses_inside(knees: Callable) -> None:
    question = phantoms(knees, SEEDS[:1], paper=True)
    theta = bank_minima(question, 10)[0, 0]  # (10, 4)
    assert theta.shape == (10, 4)
    apart = (theta[:, None] - theta[None])[..., :3].abs().amax(-1)
    assert (apart + torch.eye(10)).min() > 0.01
    assert bool((theta[:, 0] > 0.14).all())
    assert bool((theta[:, 0] < 0.97).all())
