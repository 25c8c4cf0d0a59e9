"""The fast sharpening: damped Gauss-Newton steps, coarse to fine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.pose import (
    MAX_ROTATION,
    SCALE_MIN,
    SCALE_RANGE,
    pose_from_vector,
    vector_from_pose,
)
from kneematch.matching.energy import energy
from kneematch.solvers.linearization import Quadratic, quadratic
from kneematch.solvers.problem import Problem, Solution, lower
from kneematch.solvers.pyramid import pyramid


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution of the descent."""

    shrink: int  # the halves and the template are this many times smaller
    steps: int
    softness: float  # of the maximum over the two windows
    upright: float = 0.0  # stiffness against turning


# From afar: at low resolution, where the valley is wide, and on the film as it is alone.
FAR: Final = (Level(16, 12, 0.3), Level(8, 10, 0.1))
# The same without turning, which is hardly to be seen there, and may lead astray.
UPRIGHT: Final = (Level(16, 12, 0.3, upright=100.0), Level(8, 10, 0.1, upright=100.0))
# Finer than half the resolution there is nothing to gain: the minimum hardly moves any more.
NEAR: Final = (Level(4, 8, 0.05), Level(2, 6, 0.02), Level(2, 4, 0.005))
DAMPING: Final = 1e-2  # Levenberg-Marquardt's, at the start of a level
EASE, STIFFEN = 0.3, 5.0  # what a step down and a step up do to it
FLAT: Final = 1e-6  # added to the diagonal, for poses that nothing in the patch resists


@torch.no_grad()
def gauss_newton(problem: Problem, start: Tensor) -> Solution:
    """Descend from start (N, S, 4); the better of start and end.

    Low resolution leads far, and now and then astray: at the first level of NEAR, the start itself
    and where FAR and UPRIGHT led from it all descend, and the lowest goes on.
    """
    sizes = pyramid(problem, tuple(level.shrink for level in (*FAR, *NEAR)))
    rough = {factor: Problem(small.terms[:1]) for factor, small in sizes.items()}
    theta = pose_from_vector(start, problem.height_ratio)
    ways = [_along(way, rough, theta) for way in ((), FAR, UPRIGHT)]
    theta = _along(NEAR[1:], sizes, _lowest_end(sizes[NEAR[0].shrink], ways))
    v = vector_from_pose(theta, problem.height_ratio)
    return lower(Solution(start, problem.energy(start)), Solution(v, problem.energy(v)))


def _along(levels: tuple[Level, ...], sizes: dict[int, Problem], theta: Tensor) -> Tensor:
    """Descend from poses (N, S, 4) at one level after the other."""
    for level in levels:
        theta = descend(sizes[level.shrink], theta, level)
    return theta


def _lowest_end(problem: Problem, starts: list[Tensor]) -> Tensor:
    """Descend from each of several poses (N, S, 4) and take, row by row, the lowest end."""
    ends = [descend(problem, theta, NEAR[0]) for theta in starts]
    values = torch.stack([energy(problem.terms, theta) for theta in ends])
    return torch.stack(ends)[values.argmin(0), torch.arange(len(ends[0]), device=values.device)]


def descend(
    problem: Problem,
    theta: Tensor,
    level: Level,
    change: Callable[[Quadratic, Tensor], Quadratic] = lambda here, theta: here,
) -> Tensor:
    """Levenberg-Marquardt steps from poses (N, S, 4), each row accepting its own.

    The energy at poses may be changed before it is lowered.
    """

    def at(theta: Tensor) -> Quadratic:
        return change(quadratic(problem, theta, level.softness), theta)

    here = at(theta)
    damping = theta.new_full((len(theta),), DAMPING)
    for _ in range(level.steps):
        next_theta = inside(theta + step(here, damping, level.upright), problem.height_ratio)
        there = at(next_theta)
        down = there.value < here.value
        theta = torch.where(down[:, None, None], next_theta, theta)
        here = here.where(down, there)
        damping = torch.where(down, damping * EASE, damping * STIFFEN)
    return theta


def step(here: Quadratic, damping: Tensor, upright: float = 0.0) -> Tensor:
    """The damped Gauss-Newton step, (N, S, 4)."""
    diagonal = here.matrix.diagonal(dim1=-2, dim2=-1)
    matrix = here.matrix + torch.diag_embed(damping[:, None] * diagonal + FLAT)
    matrix.diagonal(dim1=-2, dim2=-1)[:, 3::4].add_(upright)
    # solve_ex does not wait for the device to say that all went well, and with FLAT it does.
    solved: Tensor = torch.linalg.solve_ex(matrix, here.gradient).result
    return -solved.reshape(len(solved), -1, 4)


def inside(theta: Tensor, height_ratio: float) -> Tensor:
    """The nearest poses in D's range."""
    scale = theta[..., 0].clamp(SCALE_MIN, SCALE_MIN + SCALE_RANGE)
    reach_x, reach_y = 1 - scale, 1 - scale * height_ratio
    return torch.stack(
        [
            scale,
            theta[..., 1].clamp(-reach_x, reach_x),
            theta[..., 2].clamp(-reach_y, reach_y),
            theta[..., 3].clamp(-MAX_ROTATION, MAX_ROTATION),
        ],
        dim=-1,
    )
