"""The fast exhaustive search: a bank of correlations over all poses, then Gauss-Newton.

The best local minima of each side are sharpened, paired under the symmetry penalty, and drop out
one by one as the resolution grows.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.pose import vector_from_pose
from kneematch.matching.energy import Term, energy, losses, symmetry_penalty
from kneematch.solvers.gauss_newton import Level, descend
from kneematch.solvers.ncc_bank import bank_minima
from kneematch.solvers.problem import Problem, Solution
from kneematch.solvers.pyramid import pyramid

CANDIDATES: Final = 24  # minima of each side that are sharpened
SIDE_LEVEL: Final = Level(8, 5, 0.1)
PAIRS: Final = 12
# Pairs that stay after each level of the joint descent.
PAIR_LEVELS: Final = (
    (Level(4, 2, 0.05), 4),
    (Level(4, 4, 0.05), 2),
    (Level(2, 5, 0.02), 1),
    (Level(2, 3, 0.005), 1),
)


@torch.no_grad()
def exhaustive_search(problem: Problem) -> Solution:
    """The lowest energy over the whole range of poses."""
    sizes = pyramid(problem, (SIDE_LEVEL.shrink, *(level.shrink for level, _ in PAIR_LEVELS)))
    small = sizes[SIDE_LEVEL.shrink]
    theta = _paired(small, _sharpened_sides(small, bank_minima(problem, CANDIDATES)))
    for level, keep in PAIR_LEVELS:
        theta = _best_pairs(sizes[level.shrink], theta, level, keep)
    v = vector_from_pose(theta[:, 0], problem.height_ratio)
    return Solution(v, problem.energy(v))


def _repeat(problem: Problem, count: int) -> Problem:
    """Each radiograph count times over."""
    return _with_terms(
        problem,
        lambda term: replace(
            term,
            halves=term.halves.repeat_interleave(count, 0),
            floor=term.floor.repeat_interleave(count, 0),
        ),
    )


def _one_side_each(problem: Problem) -> Problem:
    """Every side as a radiograph of its own."""
    return _with_terms(
        problem,
        lambda term: replace(
            term, halves=term.halves.flatten(0, 1)[:, None], floor=term.floor.reshape(-1, 1)
        ),
    )


def _with_terms(problem: Problem, change: Callable[[Term], Term]) -> Problem:
    return Problem(tuple(change(term) for term in problem.terms))


def _sharpened_sides(problem: Problem, theta: Tensor) -> Tensor:
    """Descend from every pose (N, S, K, 4) on its own."""
    each = _repeat(_one_side_each(problem), theta.shape[2])
    return descend(each, theta.reshape(-1, 1, 4), SIDE_LEVEL).reshape(theta.shape)


def _paired(problem: Problem, theta: Tensor) -> Tensor:
    """Of all pairs of poses (N, S, K, 4) those of the lowest energy: (N, PAIRS, S, 4)."""
    n, sides, count = theta.shape[:3]
    each = _repeat(_one_side_each(problem), count)
    flat = theta.reshape(-1, 1, 4)
    loss = losses(each.terms, flat).reshape(n, sides, count)
    grids = torch.meshgrid(*[torch.arange(count, device=theta.device)] * sides, indexing="ij")
    choice = torch.stack([grid.flatten() for grid in grids], dim=-1)  # (count^S, S)
    side = torch.arange(sides, device=theta.device)
    pairs = theta[:, side, choice]  # (N, count^S, S, 4)
    value = loss[:, side, choice].sum(-1) + symmetry_penalty(pairs)
    return _lowest(pairs, value, PAIRS)


def _best_pairs(problem: Problem, theta: Tensor, level: Level, keep: int) -> Tensor:
    """Descend from poses (N, M, S, 4) and keep the best: (N, keep, S, 4)."""
    n, count = theta.shape[:2]
    each = _repeat(problem, count)
    theta = descend(each, theta.flatten(0, 1), level)
    value = energy(each.terms, theta)
    return _lowest(theta.reshape(n, count, *theta.shape[1:]), value.reshape(n, count), keep)


def _lowest(theta: Tensor, value: Tensor, keep: int) -> Tensor:
    best = value.topk(keep, dim=-1, largest=False).indices
    return theta.gather(1, best[..., None, None].expand(*best.shape, *theta.shape[2:]))
