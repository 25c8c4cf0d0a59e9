"""A search over the whole range of poses: a bank of correlations, then Gauss-Newton descents.

The best local minima of each side are refined and paired under the symmetry penalty; the pairs
are descended from at growing resolutions, of which each keeps fewer.
"""

from typing import Final

import torch
from torch import Tensor

from kneematch.paper.energy import Problem, symmetry_penalty
from kneematch.paper.pose import admissible_pose
from kneematch.search.gauss_newton import Level, descend
from kneematch.search.ncc_bank import bank_minima
from kneematch.search.pyramid import pyramid

CANDIDATES: Final = 24  # minima of each side that are refined
SIDE_LEVEL: Final = Level(8, 5, 0.1)
PAIRS: Final = 12
# Levels of the joint descent, and the number of pairs that each of them keeps.
PAIR_LEVELS: Final = (
    (Level(4, 2, 0.05), 4),
    (Level(4, 4, 0.05), 2),
    (Level(2, 5, 0.02), 1),
    (Level(2, 3, 0.005), 1),
)


@torch.no_grad()
def exhaustive_search(problem: Problem) -> Tensor:
    """Return the poses (N, S, 4) of lowest energy over the whole range of poses."""
    sizes = pyramid(problem, (SIDE_LEVEL.shrink, *(level.shrink for level, _ in PAIR_LEVELS)))
    theta = _best_pairs(sizes[SIDE_LEVEL.shrink], bank_minima(problem, CANDIDATES))
    for level, keep in PAIR_LEVELS:
        theta = _descend_pairs(sizes[level.shrink], theta, level, keep)
    return admissible_pose(theta[:, 0], problem.height_ratio)


def _best_pairs(problem: Problem, theta: Tensor) -> Tensor:
    """Refine each pose (N, S, K, 4) alone; return the pairs of lowest energy, (N, PAIRS, S, 4)."""
    n, sides, count = theta.shape[:3]
    # Every candidate of every side as a radiograph of its own: (N * S * K, 1, ...).
    each = problem.rearrange(lambda t: t.flatten(0, 1)[:, None].repeat_interleave(count, 0))
    flat = descend(each, theta.reshape(-1, 1, 4), SIDE_LEVEL)
    theta, loss = flat.reshape(theta.shape), each.losses(flat).reshape(n, sides, count)
    index = torch.arange(count, device=theta.device)
    choice = torch.cartesian_prod(*[index] * sides).reshape(-1, sides)  # (K^S, S)
    side = torch.arange(sides, device=theta.device)
    pairs = theta[:, side, choice]  # (N, K^S, S, 4)
    return _lowest(pairs, loss[:, side, choice].sum(-1) + symmetry_penalty(pairs), PAIRS)


def _descend_pairs(problem: Problem, theta: Tensor, level: Level, keep: int) -> Tensor:
    """Descend from poses (N, M, S, 4) and keep the best: (N, keep, S, 4)."""
    shape = theta.shape
    each = problem.rearrange(lambda t: t.repeat_interleave(shape[1], 0))
    theta = descend(each, theta.flatten(0, 1), level)
    return _lowest(theta.reshape(shape), each.energy(theta).reshape(shape[:2]), keep)


def _lowest(theta: Tensor, value: Tensor, keep: int) -> Tensor:
    """Return the poses (N, keep, S, 4) of the lowest values (N, M), of poses (N, M, S, 4)."""
    best = value.topk(keep, dim=-1, largest=False).indices
    return theta.gather(1, best[..., None, None].expand(*best.shape, *theta.shape[2:]))
