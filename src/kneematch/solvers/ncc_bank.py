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

from kneematch.geometry.pose import MAX_ROTATION, pose_matrix
from kneematch.geometry.sampling import resize, sample
from kneematch.matching.energy import CONTRAST, TINY, Term, Terms
from kneematch.solvers.problem import Problem
from kneematch.solvers.pyramid import resize_template

BANK_WIDTH: Final = 24  # pixels
# Widths of the half, one a scale from 0.15 to 0.96: a tenth apart, and quick to transform.
HALF_WIDTHS: Final = (160, 140, 125, 110, 100, 90, 80, 70, 60, 55, 50, 45, 40, 35, 30, 25)
ROTATIONS: Final = (0.0, -0.6 * MAX_ROTATION, 0.6 * MAX_ROTATION)
UPRIGHT_FROM: Final = 125  # in halves this wide or wider, the smallest scales, only upright ones
MINIMA_A_SCALE: Final = 8
# Two minima closer than this, in scale and in patch widths, are one.
SAME_SCALE: Final = 1.12
SAME_PLACE: Final = 0.1
WHOLE: Final = (..., slice(None), slice(None))


@torch.no_grad()
def bank_minima(problem: Problem, count: int) -> Tensor:
    """Poses of the lowest, distinct local minima of each side: (N, S, count, 4)."""
    terms = problem.terms
    found = []
    for width in HALF_WIDTHS:
        size = round(width * problem.image_aspect), width
        # From the next larger size, but for the first; each is then cheap to make.
        terms = tuple(replace(term, halves=resize(term.halves, size)) for term in terms)
        rotations = ROTATIONS if width < UPRIGHT_FROM else ROTATIONS[:1]
        found.append(_minima_in(terms, problem.image_aspect, rotations))
    loss = torch.cat([loss for loss, _ in found], dim=-1)
    theta = torch.cat([theta for _, theta in found], dim=-2)
    loss = loss.masked_fill(_shadowed(loss, theta, problem.image_aspect), torch.inf)
    best = loss.topk(count, dim=-1, largest=False).indices
    return theta.gather(-2, best[..., None].expand(*best.shape, 4))


def _minima_in(
    terms: Terms, image_aspect: float, rotations: tuple[float, ...]
) -> tuple[Tensor, Tensor]:
    """The lowest local minima at one scale: losses (N, S, K) and poses (N, S, K, 4)."""
    height, width = terms[0].halves.shape[-2:]
    turned = (_turned(term, image_aspect, rotations) for term in terms)
    maps = [term.weight * _slide(halves, term) for halves, term in zip(turned, terms, strict=True)]
    loss, turn = torch.stack(maps).sum(0).min(0)  # of (R, N, S, h, w)
    rows, columns = loss.shape[-2:]
    around = -F.max_pool2d(-loss, 3, stride=1, padding=1)
    flat = loss.masked_fill_(loss > around, torch.inf).flatten(-2)
    value, index = flat.topk(min(MINIMA_A_SCALE, rows * columns), dim=-1, largest=False)
    angles = torch.cat([loss.new_full((1,), rotation) for rotation in rotations])
    rotation = angles[turn.flatten(-2).gather(-1, index)]
    # The centre of the patch in the turned half, and from there in the half itself.
    x = (2 * (index % columns) - columns + 1) / width
    y = (2 * (index // columns) - rows + 1) / height
    cos, sin = rotation.cos(), rotation.sin()
    theta = torch.stack(
        [
            torch.full_like(rotation, BANK_WIDTH / width),
            cos * x - image_aspect * sin * y,
            sin / image_aspect * x + cos * y,
            rotation,
        ],
        dim=-1,
    )
    return value, theta


def _turned(term: Term, image_aspect: float, rotations: tuple[float, ...]) -> Tensor:
    """The halves turned back by each rotation, the first of which is none: (R, N, S, H, W)."""
    if len(rotations) == 1:
        return term.halves[None]
    poses = term.halves.new_zeros(len(rotations) - 1, 4)
    poses[:, 0].fill_(1)
    for pose, rotation in zip(poses, rotations[1:], strict=True):
        pose[3].fill_(rotation)
    turns = pose_matrix(poses, image_aspect, image_aspect)[:, None, None]
    size = term.halves.shape[-2], term.halves.shape[-1]
    turned = sample(term.halves, turns.expand(-1, *term.halves.shape[:2], 2, 3), size)
    return torch.cat([term.halves[None], turned])


def _slide(halves: Tensor, term: Term) -> Tensor:
    """L of the template at every place where it lies inside the halves: (..., h, w)."""
    size = (round(BANK_WIDTH * term.template.aspect), BANK_WIDTH)
    template = resize_template(term.template, size)
    halves = halves - halves.mean((-2, -1), keepdim=True)
    # So few pixels correlate with anything: here contrast counts in the paper's energy too.
    floor = term.floor.square().maximum((CONTRAST**2) * halves[0].square().mean((-2, -1)))
    shape = halves.shape[-2:]
    count = shape[0] - size[0] + 1, shape[1] - size[1] + 1
    spectrum = torch.fft.rfft2(halves)
    integrals = _integrals(halves)
    maps = []
    for window in (WHOLE, template.red, template.green):
        part = template.image[window]
        part = (part - part.mean()) / (part - part.mean()).norm()
        products = torch.fft.irfft2(spectrum * torch.fft.rfft2(part, s=shape).conj(), s=shape)
        top, left = window[1].start or 0, window[2].start or 0
        products = products[..., top : top + count[0], left : left + count[1]]
        sums, squares = _box_sums(integrals, part.shape, (top, left), count)
        squares.addcmul_(sums, sums, value=-1 / part.numel()).clamp_(min=0)
        squares.add_(part.numel() * floor[..., None, None] + TINY)
        maps.append(squares.rsqrt_().mul_(products))
    whole, red, green = maps
    positive = torch.minimum(red, green).add_(whole)
    negative = torch.maximum(red, green, out=red).add_(whole).neg_()
    return torch.maximum(positive, negative, out=positive).mul_(-0.5).add_(1)


def _integrals(images: Tensor) -> Tensor:
    """Sums of the images and of their squares over all above and to the left.

    Returns:
        (2, ..., H + 1, W + 1).
    """
    padded = F.pad(images, (1, 0, 1, 0))
    return torch.stack([padded, padded.square()]).cumsum(-1).cumsum(-2)


def _box_sums(
    integral: Tensor, box: tuple[int, ...], offset: tuple[int, int], count: tuple[int, int]
) -> Tensor:
    """Sums over count boxes down and across, the first of them at offset (row, column)."""
    top, left = (slice(o, o + n) for o, n in zip(offset, count, strict=True))
    bottom, right = (slice(o + b, o + b + n) for o, b, n in zip(offset, box, count, strict=True))
    band = integral[..., bottom, :] - integral[..., top, :]
    return band[..., right] - band[..., left]


def _shadowed(loss: Tensor, theta: Tensor, image_aspect: float) -> Tensor:
    """Which minima (..., M) have a lower one next to them, in place and in scale."""
    scale = theta[..., 0]
    ratio = (scale[..., :, None] / scale[..., None, :]).log().abs()
    apart = (theta[..., :, None, 1:3] - theta[..., None, :, 1:3]).abs()
    apart[..., 1] *= image_aspect
    near = (ratio < math.log(SAME_SCALE)) & (apart.amax(-1) < 2 * SAME_PLACE * scale[..., :, None])
    return (near & (loss[..., None, :] < loss[..., :, None])).any(-1)
