"""The grid initialized search: Adam from thousands of starts per radiograph (paper, Appendix)."""

import math
from typing import Final

import torch
from torch import Tensor

from kneematch.paper.energy import Problem
from kneematch.paper.pose import SCALE_MIN, SCALE_RANGE
from kneematch.paper.sharpening import STEPS, sharpen

N_SCALES: Final = 10  # N_s, the number of scales; not in the paper
STRIDE: Final = 0.25  # r: neighbouring patches are at most this share of their size apart
ACROSS: Final = 1 / 3  # largest horizontal distance of the right start's centre from the left one's
CHUNK: Final = 256  # starts at once; each takes some 8 MB with a template of 280 x 280
ROUNDING: Final = 1e-9  # so that 16.000000000000004 counts as 16


def grid_search(
    problem: Problem,
    *,
    n_scales: int = N_SCALES,
    stride: float = STRIDE,
    steps: int = STEPS,
) -> Tensor:
    """Return the poses (N, S, 4) of lowest energy on the way down from every start of the grid.

    The grid has N_s scales and the stride r; `steps` are those of Adam from every start.
    """
    starts, best = grid_starts(problem, n_scales, stride), []
    for film in range(len(problem.images)):
        found = [
            sharpen(_copies(problem, film, len(some)), some, steps=steps)
            for some in torch.split(starts, CHUNK)
        ]
        lowest = torch.cat([solution.energy for solution in found]).argmin()
        best.append(torch.cat([solution.theta for solution in found])[lowest])
    return torch.stack(best)


def grid_starts(problem: Problem, n_scales: int, stride: float) -> Tensor:
    """Return the poses (M, S, 4) to start from on one radiograph.

    A left start is paired with every right start of the same scale and height within ACROSS.
    """
    ratio, sides = problem.height_ratio, problem.images.shape[1]
    scales = torch.linspace(SCALE_MIN, SCALE_MIN + SCALE_RANGE, n_scales, dtype=torch.float64)
    starts = torch.cat([_poses(scale, ratio, stride, sides) for scale in scales.tolist()])
    return starts.to(problem.images)


def _poses(scale: float, height_ratio: float, stride: float, sides: int) -> Tensor:
    """Return the poses (M, S, 4) of one scale, none of them rotated."""
    x, y = _centres(scale, stride), _centres(scale * height_ratio, stride)
    across = torch.cartesian_prod(*[x] * sides).reshape(-1, sides)
    across = across[(across[:, 0] - across[:, -1]).abs() <= ACROSS + ROUNDING]
    across = across.repeat(len(y), 1)  # (M, S), the same in every row of patches
    down = y.repeat_interleave(len(across) // len(y))[:, None].expand_as(across)
    return torch.stack(
        [torch.full_like(across, scale), across, down, torch.zeros_like(across)], dim=-1
    )


def _centres(reach: float, stride: float) -> Tensor:
    """Return the centres (K,) of patches of half width `reach` that cover [-1, 1]."""
    count = 1 + math.ceil((2 - 2 * reach) / (stride * 2 * reach) - ROUNDING)
    return torch.linspace(reach - 1, 1 - reach, count, dtype=torch.float64)


def _copies(problem: Problem, film: int, count: int) -> Problem:
    """Return one radiograph count times, without copying it in memory."""
    return problem.rearrange(lambda tensor: tensor[film].expand(count, *tensor.shape[1:]))
