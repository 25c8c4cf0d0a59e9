"""A bank of correlations: the template slid over the halves at every scale and rotation.

Every scale is searched at the same detail: the half is resized until the template is BANK_WIDTH
pixels wide in it, so a small patch is judged by as many pixels as a large one.
"""

import math
from dataclasses import replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.matching.energy import CONTRAST, TINY, Term
from kneematch.matching.pose import MAX_ROTATION, SCALE_MIN, SCALE_RANGE, pose_matrix
from kneematch.minimisers.problem import Problem
from kneematch.minimisers.pyramid import resize_template
from kneematch.radiograph.sampling import resize, sample

BANK_WIDTH: Final = 24  # pixels
SCALES: Final = 18
ROTATIONS: Final = (-0.6 * MAX_ROTATION, 0.0, 0.6 * MAX_ROTATION)
MINIMA_A_SCALE: Final = 8
# Two minima closer than this, in scale and in patch widths, are one.
SAME_SCALE: Final = 1.2
SAME_PLACE: Final = 0.15


def minima(problem: Problem, count: int) -> Tensor:
    """Poses of the lowest, distinct local minima of each side: (N, S, count, 4)."""
    step = (SCALE_MIN + SCALE_RANGE) / SCALE_MIN
    scales = [SCALE_MIN * step ** (i / (SCALES - 1)) for i in range(SCALES)]
    found = [_minima_at(problem, scale) for scale in scales]
    loss = torch.cat([loss for loss, _ in found], dim=-1)
    theta = torch.cat([theta for _, theta in found], dim=-2)
    loss = loss.masked_fill(_shadowed(loss, theta, problem.image_aspect), torch.inf)
    best = loss.topk(count, dim=-1, largest=False).indices
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
    for term in problem.terms:
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
    # So few pixels correlate with anything: here contrast counts in the paper's energy too.
    floor = term.floor.maximum(CONTRAST * halves.std((-2, -1)))
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
        noise = part.numel() * floor.square()[..., None, None] + TINY
        maps.append(products / (squares.clamp(min=0) + noise).sqrt())
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
