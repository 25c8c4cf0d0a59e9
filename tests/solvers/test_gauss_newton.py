"""Gauss-Newton: never up, back to the truth, and the same in any company."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.geometry.pose import pose_from_vector, vector_from_pose
from kneematch.solvers.gauss_newton import gauss_newton, inside, step
from kneematch.solvers.linearization import Quadratic
from kneematch.solvers.problem import problem

PAPER = pytest.mark.parametrize("paper", [True, False], ids=["printed", "robust"])
OFFSETS = torch.tensor(
    [
        [1.06, 0.04, -0.03, 0.03],
        [0.95, -0.05, 0.04, -0.04],
        [1.08, -0.03, -0.03, 0.0],
        [0.93, 0.05, 0.02, 0.05],
    ],
    dtype=torch.float64,
)  # a factor of the scale, shifts, a turn


def starts(*shape: int) -> Tensor:
    return torch.randn(*shape, 4, generator=torch.Generator().manual_seed(2))


@PAPER
@pytest.mark.parametrize("sides", [1, 2])
def test_the_end_is_never_higher_than_the_start(
    clouds: Callable, cut: Callable, paper: bool, sides: int
) -> None:
    template, _ = cut(clouds(seed=1))
    question = problem(clouds(12, sides), template, paper=paper)
    start = starts(12, sides)
    found = gauss_newton(question, start)
    before = question.energy(start)
    assert bool((found.energy <= before).all())
    assert (found.energy < before - 0.02).sum() >= 9
    assert torch.allclose(found.energy, question.energy(found.v), atol=1e-6)


@PAPER
@pytest.mark.parametrize("seed", [9, 14, 23, 42, 47])
def test_from_around_the_truth_it_gets_back_to_it(knees: Callable, paper: bool, seed: int) -> None:
    film = knees(seed)
    count, (height, width) = len(OFFSETS), film.halves.shape[-2:]
    halves = film.halves[1].expand(count, 1, height, width)
    question = problem(halves, film.template, paper=paper)
    truth = film.truth[1]
    around = torch.cat([truth[:1] * OFFSETS[:, :1], truth[1:] + OFFSETS[:, 1:]], dim=1)
    start = vector_from_pose(around, question.height_ratio).float()[:, None]
    found = gauss_newton(question, start)
    theta = pose_from_vector(found.v.double(), question.height_ratio)[:, 0]
    apart_px = (theta - truth)[:, :3].abs() * width / 2
    assert apart_px.max() < 0.7
    assert (theta - truth)[:, 3].abs().max() < 0.01
    at_truth = question.energy(
        vector_from_pose(truth, question.height_ratio).float().expand(count, 1, 4)
    )
    assert (found.energy - at_truth).max() < 2e-3


def test_a_film_alone_and_in_a_batch_gets_the_same_pose(clouds: Callable, cut: Callable) -> None:
    template, _ = cut(clouds(seed=1))
    halves, start = clouds(6, 2), starts(6, 2) / 2
    together = gauss_newton(problem(halves, template), start)
    alone = gauss_newton(problem(halves[4:5], template), start[4:5])
    one, other = (pose_from_vector(v, 1 / 1.6) for v in (together.v[4], alone.v[0]))
    assert ((one - other).abs() * 60).max() < 0.01  # pixels


@PAPER
def test_black_halves_give_a_finite_answer(clouds: Callable, cut: Callable, paper: bool) -> None:
    template, _ = cut(clouds())
    halves = clouds(2, 2)
    halves[0] = 0
    halves[1, 0] = 0
    found = gauss_newton(problem(halves, template, paper=paper), starts(2, 2))
    assert bool(found.energy.isfinite().all())
    assert bool(found.v.isfinite().all())


def test_a_step_without_damping_solves_a_quadratic() -> None:
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


def test_inside_moves_only_what_lies_outside() -> None:
    within = pose_from_vector(starts(20), 0.625)
    assert torch.allclose(inside(within, 0.625), within, atol=1e-6)
    moved = inside(torch.tensor([[2.0, 0.5, -0.9, 1.0]]), 0.625)
    assert torch.allclose(moved, torch.tensor([[0.95, 0.05, -0.40625, 0.13]]))
