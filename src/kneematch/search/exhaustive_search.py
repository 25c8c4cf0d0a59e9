"""A search over the whole range of poses: a bank of correlations, then Gauss-Newton descents.

The bank holds normalised cross-correlations with the template at every scale and rotation. For
every scale the image is resized until the template is BANK_WIDTH pixels wide in it, so that small
and large patches are compared by the same number of pixels. The best local minima of each side are
refined and paired under the symmetry penalty; the pairs are descended from at growing resolutions,
of which each keeps fewer.
"""

import math
from dataclasses import replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.paper.energy import TINY, Problem, Term, symmetry_penalty
from kneematch.paper.pose import MAX_ROTATION, admissible_pose, pose_matrix
from kneematch.sampling import resize, sample
from kneematch.search.gauss_newton import Level, descend, pyramid
from kneematch.search.robust_energy import CONTRAST, resize_template

BANK_WIDTH: Final = 24  # pixels
# Widths of the image, one for each scale from 0.15 to 0.96: about a tenth apart, with fast FFTs.
IMAGE_WIDTHS: Final = (160, 140, 125, 110, 100, 90, 80, 70, 60, 55, 50, 45, 40, 35, 30, 25)
ROTATIONS: Final = (0.0, -0.6 * MAX_ROTATION, 0.6 * MAX_ROTATION)
UPRIGHT_FROM: Final = 125  # no rotations at the smallest scales, in images this wide or wider
MINIMA_PER_SCALE: Final = 8
ALL_SCALES: Final = (0.0, 1.0)
OVERLAP_COST: Final = 1.0
# Two minima that are closer than this, in scale and in patch widths, count as one.
SAME_SCALE: Final = 1.12
SAME_PLACE: Final = 0.1
WHOLE: Final = (..., slice(None), slice(None))
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
def exhaustive_search(
    problem: Problem, *, scales: tuple[float, float] = ALL_SCALES, apart: bool = False
) -> Tensor:
    """Return the poses (N, S, 4) of lowest energy over the whole range of poses, or of scales.

    `apart`: the two sides are a film's mirror image and the film itself, and a pair must not be the
    same place twice.
    """
    sizes = pyramid(problem, (SIDE_LEVEL.shrink, *(level.shrink for level, _ in PAIR_LEVELS)))
    minima = bank_minima(problem, CANDIDATES, scales)
    theta = _best_pairs(sizes[SIDE_LEVEL.shrink], minima, apart=apart)
    for level, keep in PAIR_LEVELS:
        theta = _descend_pairs(sizes[level.shrink], theta, level, keep, apart=apart)
    return admissible_pose(theta[:, 0], problem.height_ratio)


@torch.no_grad()
def all_minima(
    problem: Problem, *, scales: tuple[float, float] = ALL_SCALES
) -> tuple[Tensor, Tensor]:
    """Return the lowest minima of each image by itself: poses (N, S, K, 4) and losses (N, S, K)."""
    levels = [SIDE_LEVEL, *(level for level, _ in PAIR_LEVELS[1:-1])]
    sizes = pyramid(problem, tuple(level.shrink for level in levels))
    theta = bank_minima(problem, CANDIDATES // 2, scales)
    for level in levels:
        theta, loss = _descend_each(sizes[level.shrink], theta, level)
    return admissible_pose(theta, problem.height_ratio), loss


def _descend_each(problem: Problem, theta: Tensor, level: Level) -> tuple[Tensor, Tensor]:
    """Descend from each pose (N, S, K, 4) alone; return poses and losses (N, S, K)."""
    count = theta.shape[2]
    # Every candidate of every side as a radiograph of its own: (N * S * K, 1, ...).
    each = problem.rearrange(lambda t: t.flatten(0, 1)[:, None].repeat_interleave(count, 0))
    flat = descend(each, theta.reshape(-1, 1, 4), level)
    return flat.reshape(theta.shape), each.losses(flat).reshape(theta.shape[:3])


def _best_pairs(problem: Problem, theta: Tensor, *, apart: bool) -> Tensor:
    """Refine each pose (N, S, K, 4) alone; return the pairs of lowest energy, (N, PAIRS, S, 4)."""
    sides, count = theta.shape[1:3]
    theta, loss = _descend_each(problem, theta, SIDE_LEVEL)
    index = torch.arange(count, device=theta.device)
    choice = torch.cartesian_prod(*[index] * sides).reshape(-1, sides)  # (K^S, S)
    side = torch.arange(sides, device=theta.device)
    pairs = theta[:, side, choice]  # (N, K^S, S, 4)
    energy = loss[:, side, choice].sum(-1) + symmetry_penalty(pairs)
    return _lowest(pairs, energy + _overlap_cost(pairs, apart=apart), PAIRS)


def _overlap_cost(pairs: Tensor, *, apart: bool) -> Tensor | float:
    """Return what pairs (..., 2, 4) cost that overlap by half; x of the first side is mirrored."""
    if not apart:
        return 0.0
    distance = pairs[..., 0, 1] + pairs[..., 1, 1]
    return OVERLAP_COST * (distance < pairs[..., 0].mean(-1))


def _descend_pairs(
    problem: Problem, theta: Tensor, level: Level, keep: int, *, apart: bool
) -> Tensor:
    """Descend from poses (N, M, S, 4) and keep the best: (N, keep, S, 4)."""
    shape = theta.shape
    each = problem.rearrange(lambda t: t.repeat_interleave(shape[1], 0))
    theta = descend(each, theta.flatten(0, 1), level)
    theta, energy = theta.reshape(shape), each.energy(theta).reshape(shape[:2])
    return _lowest(theta, energy + _overlap_cost(theta, apart=apart), keep)


def _lowest(theta: Tensor, value: Tensor, keep: int) -> Tensor:
    """Return the poses (N, keep, S, 4) of the lowest values (N, M), of poses (N, M, S, 4)."""
    best = value.topk(min(keep, value.shape[-1]), dim=-1, largest=False).indices
    return theta.gather(1, best[..., None, None].expand(*best.shape, *theta.shape[2:]))


@torch.no_grad()
def bank_minima(problem: Problem, count: int, scales: tuple[float, float] = ALL_SCALES) -> Tensor:
    """Return the poses of the lowest distinct local minima of each side: (N, S, count, 4)."""
    terms = problem.terms
    found = []
    for width in _widths(scales):
        size = round(width * problem.image_aspect), width
        # Each from the next larger one, so that the anti-aliasing filter is small.
        terms = tuple(replace(term, images=resize(term.images, size)) for term in terms)
        rotations = ROTATIONS if width < UPRIGHT_FROM else ROTATIONS[:1]
        found.append(_minima_at_scale(terms, problem.image_aspect, rotations))
    loss = torch.cat([loss for loss, _ in found], dim=-1)
    theta = torch.cat([theta for _, theta in found], dim=-2)
    loss = loss.masked_fill(_has_lower_neighbour(loss, theta, problem.image_aspect), torch.inf)
    best = loss.topk(min(count, loss.shape[-1]), dim=-1, largest=False).indices
    return theta.gather(-2, best[..., None].expand(*best.shape, 4))


def _widths(scales: tuple[float, float]) -> list[int]:
    """Return the widths of the image for a range of scales, which may lie between two of them."""
    inside = [width for width in IMAGE_WIDTHS if scales[0] <= BANK_WIDTH / width <= scales[1]]
    return inside or [min(IMAGE_WIDTHS, key=lambda width: abs(BANK_WIDTH / width - scales[1]))]


def _minima_at_scale(
    terms: tuple[Term, ...], image_aspect: float, rotations: tuple[float, ...]
) -> tuple[Tensor, Tensor]:
    """Return the lowest local minima at one scale: losses (N, S, K) and poses (N, S, K, 4)."""
    height, width = terms[0].images.shape[-2:]
    maps = [
        term.weight * _loss_map(_rotate(term.images, image_aspect, rotations), term)
        for term in terms
    ]
    loss, turn = torch.stack(maps).sum(0).min(0)  # over the rotations of (R, N, S, h, w)
    rows, columns = loss.shape[-2:]
    around = -F.max_pool2d(-loss, 3, stride=1, padding=1)
    flat = loss.masked_fill_(loss > around, torch.inf).flatten(-2)
    value, index = flat.topk(min(MINIMA_PER_SCALE, rows * columns), dim=-1, largest=False)
    rotation = loss.new_tensor(rotations)[turn.flatten(-2).gather(-1, index)]
    # The centre of the patch in the rotated image, and then in the image itself.
    x = (2 * (index % columns) - columns + 1) / width
    y = (2 * (index // columns) - rows + 1) / height
    cos, sin = rotation.cos(), rotation.sin()
    centre = cos * x - image_aspect * sin * y, sin / image_aspect * x + cos * y
    scale = torch.full_like(rotation, BANK_WIDTH / width)
    return value, torch.stack([scale, *centre, rotation], dim=-1)


def _rotate(images: Tensor, image_aspect: float, rotations: tuple[float, ...]) -> Tensor:
    """Rotate images (N, S, H, W) back by R rotations, the first of which is 0: (R, N, S, H, W)."""
    if len(rotations) == 1:
        return images[None]
    poses = images.new_tensor([[1, 0, 0, rotation] for rotation in rotations[1:]])
    matrices = pose_matrix(poses, image_aspect, image_aspect)[:, None, None]
    size = images.shape[-2], images.shape[-1]
    rotated = sample(images, matrices.expand(-1, *images.shape[:2], 2, 3), size)
    return torch.cat([images[None], rotated])


def _loss_map(images: Tensor, term: Term) -> Tensor:
    """Return L at every position of the template inside images (R, N, S, H, W): (R, N, S, h, w)."""
    size = (round(BANK_WIDTH * term.template.aspect), BANK_WIDTH)
    template = resize_template(term.template, size)
    images = images - images.mean((-2, -1), keepdim=True)
    # So few pixels correlate with noise: contrast counts here in the paper's energy, too.
    floor = term.floor.square().maximum((CONTRAST**2) * images[0].square().mean((-2, -1)))
    shape = images.shape[-2:]
    count = shape[0] - size[0] + 1, shape[1] - size[1] + 1
    spectrum = torch.fft.rfft2(images)
    padded = F.pad(images, (1, 0, 1, 0))
    integrals = torch.stack([padded, padded.square()]).cumsum(-1).cumsum(-2)
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


def _box_sums(
    integral: Tensor, box: tuple[int, ...], offset: tuple[int, int], count: tuple[int, int]
) -> Tensor:
    """Return sums (..., *count) over boxes (height, width) of integral images (..., H, W).

    The first box has the offset (row, column); `count` (down, across) of them are a pixel apart.
    """
    top, left = (slice(o, o + n) for o, n in zip(offset, count, strict=True))
    bottom, right = (slice(o + b, o + b + n) for o, b, n in zip(offset, box, count, strict=True))
    band = integral[..., bottom, :] - integral[..., top, :]
    return band[..., right] - band[..., left]


def _has_lower_neighbour(loss: Tensor, theta: Tensor, image_aspect: float) -> Tensor:
    """Return which minima (..., M) have a lower one nearby, in position and scale: (..., M)."""
    scale = theta[..., 0]
    ratio = (scale[..., :, None] / scale[..., None, :]).log().abs()
    apart = (theta[..., :, None, 1:3] - theta[..., None, :, 1:3]).abs()
    apart[..., 1] *= image_aspect
    near = (ratio < math.log(SAME_SCALE)) & (apart.amax(-1) < 2 * SAME_PLACE * scale[..., :, None])
    return (near & (loss[..., None, :] < loss[..., :, None])).any(-1)
