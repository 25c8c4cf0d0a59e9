"""Levenberg-Marquardt: it never ascends, finds the truth, and does not depend on the batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.geometry.pose import pose_from_vector, vector_from_pose
from kneematch.solvers.gauss_newton import Level, descend, step
from kneematch.solvers.linearization import Quadratic, linearize
from kneematch.solvers.problem import Problem, Solution, make_problem
from kneematch.solvers.pyramid import pyramid

LEVELS = Level(8, 10, 0.1), Level(4, 8, 0.05), Level(2, 6, 0.02), Level(2, 4, 0.005)

PAPER = pytest.mark.parametrize("paper", [True, False], ids=["printed", "robust"])
OFFSETS = torch.tensor(
    [
        [1.03, 0.02, -0.015, 0.015],
        [0.975, -0.025, 0.02, -0.02],
        [1.04, -0.015, -0.015, 0.0],
        [0.965, 0.025, 0.01, 0.025],
    ],
    dtype=torch.float64,
)  # a factor of the scale, shifts, a turn: inside the valley of the lowest energy


def starts(*shape: int) -> Tensor:
    return torch.randn(*shape, 4, generator=torch.Generator().manual_seed(2))


def descend_all(question: Problem, start: Tensor) -> Solution:
    """Descend from start (N, S, 4) at one resolution after the other."""
    sizes = pyramid(question, tuple(level.shrink for level in LEVELS))
    theta = pose_from_vector(start, question.height_ratio)
    for level in LEVELS:
        theta = descend(sizes[level.shrink], theta, level)
    v = vector_from_pose(theta, question.height_ratio)
    return Solution(v, question.energy(v))


@PAPER
@pytest.mark.parametrize("sides", [1, 2])
def test_descend_never_ends_higher_than_it_starts(
    clouds: Callable, cut: Callable, paper: bool, sides: int
) -> None:
    template, _ = cut(clouds(seed=1))
    question = make_problem(clouds(12, sides), template, paper=paper)
    start = starts(12, sides)
    level = Level(1, 10, 0.1)
    before = pose_from_vector(start, question.height_ratio)
    after = descend(question, before, level)
    high, low = (linearize(question, theta, level.softness).value for theta in (before, after))
    assert bool((low <= high).all())
    assert (low < high - 0.02).sum() >= 9


@PAPER
@pytest.mark.parametrize("seed", [9, 14, 23, 42, 47])
def test_descend_returns_to_the_truth(knees: Callable, paper: bool, seed: int) -> None:
    film = knees(seed)
    count, (height, width) = len(OFFSETS), film.halves.shape[-2:]
    halves = film.halves[1].expand(count, 1, height, width)
    question = make_problem(halves, film.template, paper=paper)
    truth = film.truth[1]
    around = torch.cat([truth[:1] * OFFSETS[:, :1], truth[1:] + OFFSETS[:, 1:]], dim=1)
    start = vector_from_pose(around, question.height_ratio).float()[:, None]
    found = descend_all(question, start)
    theta = pose_from_vector(found.v.double(), question.height_ratio)[:, 0]
    apart_px = (theta - truth)[:, :3].abs() * width / 2
    assert apart_px.max() < 0.7
    assert (theta - truth)[:, 3].abs().max() < 0.01
    at_truth = question.energy(
        vector_from_pose(truth, question.height_ratio).float().expand(count, 1, 4)
    )
    assert (found.energy - at_truth).max() < 2e-3


def test_descend_does_not_depend_on_the_batch(clouds: Callable, cut: Callable) -> None:
    template, _ = cut(clouds(seed=1))
    halves, start = clouds(6, 2), starts(6, 2) / 2
    together = descend_all(make_problem(halves, template), start)
    alone = descend_all(make_problem(halves[4:5], template), start[4:5])
    one, other = (pose_from_vector(v, 1 / 1.6) for v in (together.v[4], alone.v[0]))
    assert ((one - other).abs() * 60).max() < 0.01  # pixels


@PAPER
def test_descend_is_finite_on_black_halves(clouds: Callable, cut: Callable, paper: bool) -> None:
    template, _ = cut(clouds())
    halves = clouds(2, 2)
    halves[0] = 0
    halves[1, 0] = 0
    found = descend_all(make_problem(halves, template, paper=paper), starts(2, 2))
    assert bool(found.energy.isfinite().all())
    assert bool(found.v.isfinite().all())


def test_step_without_damping_solves_a_quadratic() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, 8, 8, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(8)
    wanted = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    gradient = -(matrix @ wanted[..., None])[..., 0]
    model = Quadratic(torch.zeros(3), gradient, matrix)
    found = step(model, torch.zeros(3, dtype=torch.float64))
    assert torch.allclose(found, wanted.reshape(3, 2, 4), atol=1e-4)
    damped = step(model, torch.full((3,), 1e3, dtype=torch.float64))
    assert damped.norm() < 0.01 * found.norm()
