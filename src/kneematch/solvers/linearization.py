"""The energy near a pose as a quadratic: value, gradient and Gauss-Newton matrix.

1 - NCC is half the squared distance of two zero-mean, unit-length patches, so each window's cost
is a least-squares problem in the pose. All that it needs are inner products of nine images (the
patch's derivative in each entry of an affine map of its own frame, the patch, the template, and
one): a Gram matrix a window.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.sampling import sample
from kneematch.matching.energy import TINY, Term, symmetry_penalty
from kneematch.solvers.problem import Problem

PATCH: Final = 6  # rows of the Gram matrix; 0 to 5 are the affine derivatives
IMAGE: Final = 7
ONE: Final = 8

Cost = tuple[Tensor, Tensor, Tensor]  # value (N, S), gradient (N, S, 6), matrix (N, S, 6, 6)


@dataclass(frozen=True, slots=True, eq=False)
class Quadratic:
    """The energy's value, gradient and Gauss-Newton matrix in the S poses of each radiograph."""

    value: Tensor  # (N,)
    gradient: Tensor  # (N, 4 S)
    matrix: Tensor  # (N, 4 S, 4 S)

    def where(self, rows: Tensor, other: "Quadratic") -> "Quadratic":
        """The other's rows where rows (N,) is true."""
        return Quadratic(
            torch.where(rows, other.value, self.value),
            torch.where(rows[:, None], other.gradient, self.gradient),
            torch.where(rows[:, None, None], other.matrix, self.matrix),
        )


def linearize(problem: Problem, theta: Tensor, softness: float) -> Quadratic:
    """The energy near poses (N, S, 4), the maximum of the two windows made soft."""
    costs = [_one_sided(term, theta, softness) for term in problem.terms]
    weights = [term.weight for term in problem.terms]
    value, gradient, matrix = (
        sum(weight * part for weight, part in zip(weights, parts, strict=True))
        for parts in zip(*costs, strict=True)
    )
    chain = _affine_from_pose(theta, problem.template.aspect, problem.image_aspect)
    sides = value, (gradient[..., None, :] @ chain)[..., 0, :], chain.mT @ matrix @ chain
    return _both_sides(sides, theta)


def _nine_images(term: Term, theta: Tensor) -> Tensor:
    """The images whose inner products the cost needs, (N, S, 9, height, width)."""
    height, width = term.template.size
    image_aspect = term.halves.shape[-2] / term.halves.shape[-1]
    matrices = pose_matrix(theta, term.template.aspect, image_aspect)
    patch = sample(term.halves, matrices, term.template.size)
    x = torch.arange(1 - width, width, 2, device=patch.device).to(patch) / width
    y = (torch.arange(1 - height, height, 2, device=patch.device).to(patch) / height)[:, None]
    images = patch.new_empty(*patch.shape[:2], 9, height, width)
    across, down = images[:, :, 2], images[:, :, 5]
    across[..., 1:-1] = (patch[..., 2:] - patch[..., :-2]) * (width / 4)
    across[..., :: width - 1].zero_()
    down[..., 1:-1, :] = (patch[..., 2:, :] - patch[..., :-2, :]) * (height / 4)
    down[..., :: height - 1, :].zero_()
    torch.mul(across, x, out=images[:, :, 0])
    torch.mul(across, y, out=images[:, :, 1])
    torch.mul(down, x, out=images[:, :, 3])
    torch.mul(down, y, out=images[:, :, 4])
    images[:, :, PATCH] = patch
    images[:, :, IMAGE] = term.template.image
    images[:, :, ONE].fill_(1)
    return images


def _window_cost(images: Tensor, floor: Tensor) -> tuple[Cost, Cost]:
    """1 - NCC and its quadratic model for the patch and for its negative, in affine entries."""
    rows = images.flatten(-2)
    gram = rows @ rows.mT
    ones = gram[..., ONE]
    gram = gram - ones[..., :, None] * ones[..., None, :] / ones[..., ONE, None, None]  # means out
    noise = ones[..., ONE] * floor.square() + TINY
    length = (gram[..., PATCH, PATCH] + noise).sqrt()[..., None]
    along = gram[..., :6, PATCH] / length
    towards = gram[..., :6, IMAGE] / gram[..., IMAGE, IMAGE, None].sqrt()
    correlation = gram[..., PATCH, IMAGE, None] / (length * gram[..., IMAGE, IMAGE, None].sqrt())
    gradient = (correlation * along - towards) / length
    matrix = (gram[..., :6, :6] - along[..., :, None] * along[..., None, :]) / length[
        ..., None
    ] ** 2
    return (
        (1 - correlation[..., 0], gradient, matrix),
        (1 + correlation[..., 0], -gradient, matrix),
    )


def _one_sided(term: Term, theta: Tensor, softness: float) -> Cost:
    """(whole + soft max(red, green)) / 2 of the polarity that costs less."""
    images = _nine_images(term, theta)
    windows = (..., term.template.red, term.template.green)
    costs = [_window_cost(images[window], term.floor) for window in windows]
    positive, negative = (
        _soft_worse(whole, red, green, softness) for whole, red, green in zip(*costs, strict=True)
    )
    better = positive[0] <= negative[0]
    return (
        torch.where(better, positive[0], negative[0]),
        torch.where(better[..., None], positive[1], negative[1]),
        torch.where(better[..., None, None], positive[2], negative[2]),
    )


def _soft_worse(whole: Cost, red: Cost, green: Cost, softness: float) -> Cost:
    """The mean of the whole window's cost and the smooth maximum of the other two's.

    softness * logsumexp(c / softness), whose own curvature along the difference of the two
    gradients keeps the step on the kink that the minimum usually lies on.
    """
    weight = torch.sigmoid((red[0] - green[0]) / softness)
    value = softness * torch.logaddexp(red[0] / softness, green[0] / softness)
    apart = red[1] - green[1]
    bend = (
        (weight * (1 - weight) / softness)[..., None, None]
        * apart[..., :, None]
        * apart[..., None, :]
    )
    gradient = torch.lerp(green[1], red[1], weight[..., None])
    matrix = torch.lerp(green[2], red[2], weight[..., None, None]) + bend
    return (whole[0] + value) / 2, (whole[1] + gradient) / 2, (whole[2] + matrix) / 2


def _affine_from_pose(theta: Tensor, template_aspect: float, image_aspect: float) -> Tensor:
    """How the six entries of an affine map in the patch's own frame move with the pose.

    A(theta) is diag(1, 1/b) R diag(s, s a), so in the patch's frame a change of scale is the
    identity over s, one of rotation [[0, -a], [1/a, 0]], and a shift is turned back by R.

    Returns:
        (N, S, 6, 4).
    """
    scale, _, _, rotation = theta.unbind(-1)
    cos, sin = rotation.cos() / scale, rotation.sin() / scale
    a, b = template_aspect, image_aspect
    zero, one = torch.zeros_like(scale), torch.ones_like(scale)
    rows = [
        [1 / scale, zero, zero, zero],  # across, along x
        [zero, zero, zero, -a * one],  # across, along y
        [zero, cos, b * sin, zero],  # across
        [zero, zero, zero, one / a],  # down, along x
        [1 / scale, zero, zero, zero],  # down, along y
        [zero, -sin / a, b * cos / a, zero],  # down
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def _both_sides(costs: Cost, theta: Tensor) -> Quadratic:
    """Sum the sides and add the symmetry penalty."""
    value, gradient, matrix = costs
    n, sides = theta.shape[:2]
    gradient, whole = gradient.flatten(1), theta.new_zeros(n, 4 * sides, 4 * sides)
    for side in range(sides):
        block = slice(4 * side, 4 * side + 4)
        whole[:, block, block] = matrix[:, side]
    if sides == 2:
        weight = theta.new_zeros(4, 4)
        weight.diagonal()[::2].fill_(2)  # twice the weights of the squared differences
        whole = whole + torch.cat(
            [torch.cat([weight, -weight], dim=1), torch.cat([-weight, weight], dim=1)]
        )
        pull = (theta[:, 0] - theta[:, 1]) @ weight
        gradient = gradient + torch.cat([pull, -pull], dim=1)
    return Quadratic(value.sum(-1) + symmetry_penalty(theta), gradient, whole)
