"""The fast exhaustive search: a bank of correlations over all poses, then Gauss-Newton.

Every scale is searched at the same detail: the half is resized until the template is BANK_WIDTH
pixels wide in it, so a small patch is judged by as many pixels as a large one. The best local
minima of each side are sharpened, paired under the symmetry penalty, and drop out one by one as
the resolution grows.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.matching.energy import Term, energy, losses, symmetry_penalty
from kneematch.matching.pose import (
    MAX_ROTATION,
    SCALE_MIN,
    SCALE_RANGE,
    pose_matrix,
    vector_from_pose,
)
from kneematch.minimisers.gauss_newton import Level, descend
from kneematch.minimisers.problem import Problem, Solution
from kneematch.minimisers.pyramid import pyramid, resize_template
from kneematch.radiograph.sampling import resize, sample

BANK_WIDTH: Final = 24  # pixels of the template in the bank
SCALES: Final = 18
ROTATIONS: Final = (-0.6 * MAX_ROTATION, 0.0, 0.6 * MAX_ROTATION)
MINIMA_A_SCALE: Final = 8
CANDIDATES: Final = 16  # sharpened, a side
# Two minima closer than this, in scale and in patch widths, are one.
SAME_SCALE: Final = 1.2
SAME_PLACE: Final = 0.15

SIDE_LEVEL: Final = Level(8, 5, 0.1)
PAIRS: Final = 8
# Pairs that stay after each level of the joint descent.
PAIR_LEVELS: Final = ((Level(4, 6, 0.05), 2), (Level(2, 6, 0.02), 1), (Level(1, 3, 0.01), 1))


def search(problem: Problem) -> Solution:
    """The lowest energy over the whole range of poses."""
    sizes = pyramid(problem, (SIDE_LEVEL.shrink, *(level.shrink for level, _ in PAIR_LEVELS)))
    small = sizes[SIDE_LEVEL.shrink]
    theta = _paired(small, _sharpened_sides(small, _minima(problem)))
    for level, keep in PAIR_LEVELS:
        theta = _best_pairs(sizes[level.shrink], theta, level, keep)
    v = vector_from_pose(theta[:, 0], problem.height_ratio)
    return Solution(v, problem.energy(v))


def _minima(problem: Problem) -> Tensor:
    """Poses of the lowest, distinct local minima of each side: (N, S, CANDIDATES, 4)."""
    step = (SCALE_MIN + SCALE_RANGE) / SCALE_MIN
    scales = [SCALE_MIN * step ** (i / (SCALES - 1)) for i in range(SCALES)]
    found = [_minima_at(problem, scale) for scale in scales]
    loss = torch.cat([loss for loss, _ in found], dim=-1)
    theta = torch.cat([theta for _, theta in found], dim=-2)
    loss = loss.masked_fill(_shadowed(loss, theta, problem.image_aspect), torch.inf)
    best = loss.topk(CANDIDATES, dim=-1, largest=False).indices
    return theta.gather(-2, best[..., None].expand(*best.shape, 4))


def _minima_at(problem: Problem, scale: float) -> tuple[Tensor, Tensor]:
    """The lowest local minima at one scale: losses (N, S, K) and poses (N, S, K, 4)."""
    width = round(BANK_WIDTH / scale)
    size = round(width * problem.image_aspect), width
    maps = [_loss_map(problem, size, rotation) for rotation in ROTATIONS]
    loss, turn = torch.stack(maps, dim=-1).min(-1)  # (N, S, h, w)
    rows, columns = loss.shape[-2:]
    around = -F.max_pool2d(-loss, 3, stride=1, padding=1)
    flat = loss.masked_fill(loss > around, torch.inf).flatten(-2)
    value, index = flat.topk(min(MINIMA_A_SCALE, rows * columns), dim=-1, largest=False)
    rotation = loss.new_tensor(ROTATIONS)[turn.flatten(-2).gather(-1, index)]
    # The centre of the patch in the turned half, and from there in the half itself.
    x = (2 * (index % columns) - columns + 1) / size[1]
    y = (2 * (index // columns) - rows + 1) / size[0]
    aspect = problem.image_aspect
    cos, sin = rotation.cos(), rotation.sin()
    theta = torch.stack(
        [
            torch.full_like(rotation, BANK_WIDTH / width),
            cos * x - aspect * sin * y,
            sin / aspect * x + cos * y,
            rotation,
        ],
        dim=-1,
    )
    return value, theta


def _loss_map(problem: Problem, size: tuple[int, int], rotation: float) -> Tensor:
    """The loss of every upright patch of the halves, resized and turned back: (N, S, h, w)."""
    total = problem.halves.new_zeros(())
    for term in problem.f.terms:
        halves = resize(term.halves, size)
        if rotation:
            turn = pose_matrix(
                halves.new_tensor([1, 0, 0, rotation]), problem.image_aspect, problem.image_aspect
            )
            halves = sample(halves, turn.expand(*halves.shape[:2], 2, 3), size)
        total = total + term.weight * _slide(replace(term, halves=halves))
    return total


def _slide(term: Term) -> Tensor:
    """L of the template at every place where it lies inside the halves: (N, S, h, w)."""
    template = resize_template(
        term.template, (round(BANK_WIDTH * term.template.aspect), BANK_WIDTH)
    )
    halves = term.halves - term.halves.mean((-2, -1), keepdim=True)
    spectrum = torch.fft.rfft2(halves)
    integrals = _integral(halves), _integral(halves.square())
    rows = halves.shape[-2] - template.size[0] + 1
    columns = halves.shape[-1] - template.size[1] + 1
    maps = []
    for window in (
        (..., slice(0, template.size[0]), slice(0, BANK_WIDTH)),
        template.red,
        template.green,
    ):
        part = template.image[window]
        part = (part - part.mean()) / (part - part.mean()).norm()
        kernel = torch.fft.rfft2(part, s=halves.shape[-2:])
        products = torch.fft.irfft2(spectrum * kernel.conj(), s=halves.shape[-2:])
        top, left = window[1].start, window[2].start
        products = products[..., top : top + rows, left : left + columns]
        total, squares = (_box_sums(i, part.shape, (top, left), (rows, columns)) for i in integrals)
        squares = squares - total.square() / part.numel()
        noise = part.numel() * term.floor.square()[..., None, None]
        maps.append(products / (squares + noise).clamp(min=1e-12).sqrt())
    whole, red, green = maps
    positive = whole + torch.minimum(red, green)
    negative = -whole - torch.maximum(red, green)
    return 1 - torch.maximum(positive, negative) / 2


def _integral(images: Tensor) -> Tensor:
    """Sums over all that lies above and to the left, (..., H + 1, W + 1)."""
    return F.pad(images, (1, 0, 1, 0)).double().cumsum(-1).cumsum(-2)


def _box_sums(
    integral: Tensor, box: tuple[int, ...], offset: tuple[int, int], count: tuple[int, int]
) -> Tensor:
    """Sums over count boxes down and across, the first of them at offset (row, column)."""
    top, left = (slice(o, o + n) for o, n in zip(offset, count, strict=True))
    bottom, right = (slice(o + b, o + b + n) for o, b, n in zip(offset, box, count, strict=True))
    return (
        integral[..., bottom, right]
        - integral[..., top, right]
        - integral[..., bottom, left]
        + integral[..., top, left]
    ).float()


def _shadowed(loss: Tensor, theta: Tensor, image_aspect: float) -> Tensor:
    """Which minima (..., M) have a lower one next to them, in place and in scale."""
    scale = theta[..., 0]
    ratio = (scale[..., :, None] / scale[..., None, :]).log().abs()
    apart = (theta[..., :, None, 1:3] - theta[..., None, :, 1:3]).abs()
    apart = apart * apart.new_tensor([1.0, image_aspect])
    near = (ratio < math.log(SAME_SCALE)) & (apart.amax(-1) < 2 * SAME_PLACE * scale[..., :, None])
    return (near & (loss[..., None, :] < loss[..., :, None])).any(-1)


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
    return Problem(replace(problem.f, terms=tuple(change(term) for term in problem.f.terms)))


def _sharpened_sides(problem: Problem, theta: Tensor) -> Tensor:
    """Descend from every pose (N, S, K, 4) on its own."""
    each = _repeat(_one_side_each(problem), theta.shape[2])
    return descend(each, theta.reshape(-1, 1, 4), SIDE_LEVEL).reshape(theta.shape)


def _paired(problem: Problem, theta: Tensor) -> Tensor:
    """Of all pairs of poses (N, S, K, 4) those of the lowest energy: (N, PAIRS, S, 4)."""
    n, sides, count = theta.shape[:3]
    each = _repeat(_one_side_each(problem), count)
    flat = theta.reshape(-1, 1, 4)
    loss = losses(each.f, flat).reshape(n, sides, count)
    grids = torch.meshgrid(*[torch.arange(count, device=theta.device)] * sides, indexing="ij")
    choice = torch.stack([grid.flatten() for grid in grids], dim=-1)  # (count^S, S)
    side = torch.arange(sides, device=theta.device)
    pairs = theta[:, side, choice]  # (N, count^S, S, 4)
    value = loss[:, side, choice].sum(-1) + symmetry_penalty(pairs, problem.f.stiffness)
    return _lowest(pairs, value, PAIRS)


def _best_pairs(problem: Problem, theta: Tensor, level: Level, keep: int) -> Tensor:
    """Descend from poses (N, M, S, 4) and keep the best: (N, keep, S, 4)."""
    n, count = theta.shape[:2]
    each = _repeat(problem, count)
    theta = descend(each, theta.flatten(0, 1), level)
    value = energy(each.f, theta)
    return _lowest(theta.reshape(n, count, *theta.shape[1:]), value.reshape(n, count), keep)


def _lowest(theta: Tensor, value: Tensor, keep: int) -> Tensor:
    best = value.topk(keep, dim=-1, largest=False).indices
    return theta.gather(1, best[..., None, None].expand(*best.shape, *theta.shape[2:]))
