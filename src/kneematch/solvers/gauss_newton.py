"""Levenberg-Marquardt descent (Marquardt, 1963) on the Gauss-Newton model of the energy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.pose import clamp_pose
from kneematch.solvers.linearization import Quadratic, linearize
from kneematch.solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution of a coarse-to-fine descent."""

    shrink: int  # the halves and the template are this many times smaller
    steps: int
    softness: float  # of the maximum over the two windows


DAMPING: Final = 1e-2  # at the start of a level
EASE, STIFFEN = 0.3, 5.0  # factors of the damping after a step that lowers the energy, or does not
FLAT: Final = 1e-6  # added to the diagonal, so that a featureless patch gives a regular matrix


def descend(
    problem: Problem,
    theta: Tensor,
    level: Level,
    change: Callable[[Quadratic, Tensor], Quadratic] = lambda here, theta: here,
) -> Tensor:
    """Return poses (N, S, 4) after the level's steps; each film accepts or rejects its own.

    Args:
        problem: at the level's resolution.
        theta: (N, S, 4), the poses to start from.
        level: number of steps and softness.
        change: adds to the energy's model at given poses before it is lowered.
    """

    def at(theta: Tensor) -> Quadratic:
        return change(linearize(problem, theta, level.softness), theta)

    here = at(theta)
    damping = theta.new_full((len(theta),), DAMPING)
    for _ in range(level.steps):
        next_theta = clamp_pose(theta + step(here, damping), problem.height_ratio)
        there = at(next_theta)
        down = there.value < here.value
        theta = torch.where(down[:, None, None], next_theta, theta)
        here = here.where(down, there)
        damping = torch.where(down, damping * EASE, damping * STIFFEN)
    return theta


def step(here: Quadratic, damping: Tensor) -> Tensor:
    """Return the damped Gauss-Newton step (N, S, 4)."""
    diagonal = here.matrix.diagonal(dim1=-2, dim2=-1)
    matrix = here.matrix + torch.diag_embed(damping[:, None] * diagonal + FLAT)
    # solve_ex skips the check for a singular matrix, which waits for the GPU; FLAT rules it out.
    solved: Tensor = torch.linalg.solve_ex(matrix, here.gradient).result
    return -solved.reshape(len(solved), -1, 4)
