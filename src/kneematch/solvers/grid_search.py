"""The grid initialized search: Adam from thousands of starts a radiograph (paper, Appendix)."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.pose import SCALE_MIN, SCALE_RANGE, vector_from_pose
from kneematch.solvers.adam import STEPS, adam
from kneematch.solvers.problem import Problem, Solution

N_SCALES: Final = 10
STRIDE: Final = 0.25  # r: neighbouring patches are at most this share of their size apart
ACROSS: Final = 1 / 3  # how far the right start's centre may be from the left one's, horizontally
CHUNK: Final = 256  # starts at once, of which each takes some 8 MB with a template of 280 x 280
ROUNDING: Final = 1e-9  # so that 16.000000000000004 is 16

Progress = Callable[[int, int], None]  # starts done, of how many in all


def grid_search(
    problem: Problem,
    *,
    n_scales: int = N_SCALES,
    stride: float = STRIDE,
    steps: int = STEPS,
    chunk: int = CHUNK,
    progress: Progress | None = None,
    starts: Tensor | None = None,
) -> Solution:
    """The lowest energy met on the way down from every start of the grid, film by film.

    Given starts (M, S, 4) take the place of the appendix's.
    """
    if starts is None:
        starts = grid_starts(problem, n_scales, stride)
    films, done = len(problem.halves), 0
    found = []
    for film in range(films):
        solutions = []
        for first in range(0, len(starts), chunk):
            some = starts[first : first + chunk]
            solutions.append(_lowest(adam(_many(problem, film, len(some)), some, steps=steps)))
            done += len(some)
            if progress is not None:
                progress(done, films * len(starts))
        found.append(_lowest(_joined(solutions)))
    return _joined(found)


def grid_starts(problem: Problem, n_scales: int, stride: float) -> Tensor:
    """The starts of one radiograph, (M, S, 4), at every scale.

    Right of a left start stands every start of the same scale and height whose centre is within
    a third of the left one's; a film of one side has all starts once.
    """
    ratio, sides = problem.height_ratio, problem.halves.shape[1]
    scales = torch.linspace(SCALE_MIN, SCALE_MIN + SCALE_RANGE, n_scales, dtype=torch.float64)
    starts = torch.cat([_poses(scale, ratio, stride, sides) for scale in scales.tolist()])
    return vector_from_pose(starts, ratio).to(problem.halves)


def _poses(scale: float, height_ratio: float, stride: float, sides: int) -> Tensor:
    """The unrotated poses of one scale, (M, S, 4)."""
    x, y = _centres(scale, stride), _centres(scale * height_ratio, stride)
    if sides == 1:
        across = x[:, None]
    else:
        left, right = torch.cartesian_prod(x, x).unbind(1)
        across = torch.stack([left, right], dim=1)[(left - right).abs() <= ACROSS + ROUNDING]
    across = across.repeat(len(y), 1)  # (M, S), every row of patches alike
    down = y.repeat_interleave(len(across) // len(y))[:, None].expand_as(across)
    return torch.stack(
        [torch.full_like(across, scale), across, down, torch.zeros_like(across)], dim=-1
    )


def _centres(reach: float, stride: float) -> Tensor:
    """Centres of patches from -reach to +reach around them that cover [-1, 1], edges included."""
    count = 1 + math.ceil((2 - 2 * reach) / (stride * 2 * reach) - ROUNDING)
    return torch.linspace(reach - 1, 1 - reach, count, dtype=torch.float64)


def _many(problem: Problem, film: int, count: int) -> Problem:
    """One radiograph count times over, without a copy of it."""
    return Problem(
        tuple(
            replace(
                term,
                halves=term.halves[film].expand(count, *term.halves.shape[1:]),
                floor=term.floor[film].expand(count, -1),
            )
            for term in problem.terms
        )
    )


def _joined(solutions: list[Solution]) -> Solution:
    return Solution(torch.cat([s.v for s in solutions]), torch.cat([s.energy for s in solutions]))


def _lowest(solution: Solution) -> Solution:
    """The one row of lowest energy."""
    best = int(solution.energy.argmin())
    return Solution(solution.v[best : best + 1], solution.energy[best : best + 1])
