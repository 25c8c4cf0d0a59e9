"""Levenberg-Marquardt descent (Marquardt, 1963) on a Gauss-Newton model of the energy.

1 - NCC is half the squared distance of two zero-mean, unit-length patches, so each window's cost
is a least-squares problem in the pose. All that it needs are inner products of nine images (the
patch's derivative in each entry of an affine map of its own frame, the patch, the template, and
a constant one): one Gram matrix per window.

A start that is trusted is refined with a cost of leaving it: a network that was trained on many
knees places the template correctly on a knee of another shape, where the lowest energy alone would
shift the template so that the shapes agree.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kneematch.paper.energy import TINY, Problem, Solution, Term, lower_energy, symmetry_penalty
from kneematch.paper.pose import MAX_ROTATION, SCALE_MIN, SCALE_RANGE, admissible_pose
from kneematch.sampling import resize
from kneematch.search.robust_energy import resize_template

DAMPING: Final = 1e-2  # at the start of a level
DAMPING_DECREASE: Final = 0.3  # factor after a step that lowers the energy
DAMPING_INCREASE: Final = 5.0  # factor after one that does not
FLAT: Final = 1e-6  # added to the diagonal, so that a featureless patch gives a regular matrix
PATCH, IMAGE, ONE = 6, 7, 8  # rows of the Gram matrix; 0 to 5 are the affine derivatives


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution of a coarse-to-fine descent."""

    shrink: int  # the images and the template are this many times smaller
    steps: int
    softness: float  # softness of the maximum over the two windows


# Weight of the squared distance of the corners from the start, in widths of the template: 3 % of
# the width cost as much energy as a tenth of the correlation.
PRIOR_WEIGHT: Final = 100.0
LEVELS: Final = (Level(4, 3, 0.05), Level(2, 3, 0.01))
# For detection one resolution is enough: with both, the mean IoU is 0.953 on the labelled films as
# with one, 0.982 instead of 0.984 on 40 phantoms, and a film takes longer.
QUICK_LEVELS: Final = (Level(4, 3, 0.02),)


@dataclass(frozen=True, slots=True, eq=False)
class Quadratic:
    """Value, gradient and Gauss-Newton matrix of a function of P parameters.

    The energy of a radiograph has P = 4 S, the poses of its S sides.
    """

    value: Tensor  # (...)
    gradient: Tensor  # (..., P)
    matrix: Tensor  # (..., P, P)

    def where(self, chosen: Tensor, other: "Quadratic") -> "Quadratic":
        """Return the other's entries where chosen (...) is true."""
        return Quadratic(
            torch.where(chosen, other.value, self.value),
            torch.where(chosen[..., None], other.gradient, self.gradient),
            torch.where(chosen[..., None, None], other.matrix, self.matrix),
        )


def pyramid(problem: Problem, factors: tuple[int, ...]) -> dict[int, Problem]:
    """Return the problem on images and templates that are each factor times smaller, by factor."""
    height, width = problem.images.shape[-2:]
    levels, terms = {}, problem.terms
    for factor in sorted(set(factors)):
        size = height // factor, width // factor
        rows, columns = (max(round(side / factor), 1) for side in problem.template.size)
        # Each image is made from the next larger one, so that its anti-aliasing filter is small.
        smaller = []
        for term, larger in zip(problem.terms, terms, strict=True):
            images = larger.images
            if images.shape[-2] > size[0]:
                images = resize(images, size)
            template = resize_template(term.template, (rows, columns))
            smaller.append(replace(term, images=images, template=template))
        terms = tuple(smaller)
        levels[factor] = Problem(terms)
    return levels


def descend(
    problem: Problem,
    theta: Tensor,
    level: Level,
    change: Callable[[Quadratic, Tensor], Quadratic] = lambda here, theta: here,
) -> Tensor:
    """Return poses (N, S, 4) after the level's steps; each film accepts or rejects its own.

    `problem` has the level's resolution; `change` adds a cost to the model of the energy at given
    poses.
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
        damping = torch.where(down, damping * DAMPING_DECREASE, damping * DAMPING_INCREASE)
    return theta


def anchor(
    start: Tensor, template_aspect: float, image_aspect: float, prior_weight: float
) -> Callable[[Quadratic, Tensor], Quadratic]:
    """Return a function that adds the cost of leaving a start to a model of the energy.

    The cost is the mean squared distance of the template's corners from where they are at the
    start (N, S, 4), in template widths, to first order, times `prior_weight`.
    """
    scale = start[..., 0]
    turn = torch.full_like(scale, 1 + template_aspect**2)  # squared distance of corner and centre
    upright = torch.full_like(scale, image_aspect**2)
    weight = torch.stack([turn, torch.ones_like(scale), upright, scale.square() * turn], dim=-1)
    weight = prior_weight * weight / (4 * scale.square()[..., None])  # (N, S, 4)

    def add_cost(model: Quadratic, theta: Tensor) -> Quadratic:
        apart = theta - start
        slope = 2 * weight * apart
        return Quadratic(
            model.value + (weight * apart.square()).sum((-2, -1)),
            model.gradient + slope.flatten(1),
            model.matrix + torch.diag_embed(2 * weight.flatten(1)),
        )

    return add_cost


@torch.no_grad()
def refine_anchored(
    problem: Problem,
    start: Tensor,
    *,
    prior_weight: float = PRIOR_WEIGHT,
    levels: tuple[Level, ...] = LEVELS,
) -> Solution:
    """Descend from poses start (N, S, 4), and not far; return the better of start and end.

    Start and end are compared, and their energies given, at the resolution of the last level.
    """
    sizes = pyramid(problem, tuple(level.shrink for level in levels))
    stay = anchor(start, problem.template.aspect, problem.image_aspect, prior_weight)
    theta = start
    for level in levels:
        theta = descend(sizes[level.shrink], theta, level, stay)
    theta = admissible_pose(theta, problem.height_ratio)
    last = sizes[levels[-1].shrink]
    return lower_energy(Solution(start, last.energy(start)), Solution(theta, last.energy(theta)))


def clamp_pose(theta: Tensor, height_ratio: float, inside: float = 1.0) -> Tensor:
    """Clamp poses (..., 4) to the range of D, or to the given share of it."""
    scale, centre_x, centre_y, rotation = theta.unbind(-1)
    scale = scale.clamp(SCALE_MIN / inside, SCALE_MIN + inside * SCALE_RANGE)
    reach_x, reach_y = inside * (1 - scale), inside * (1 - scale * height_ratio)
    centre = centre_x.clamp(-reach_x, reach_x), centre_y.clamp(-reach_y, reach_y)
    rotation = rotation.clamp(-inside * MAX_ROTATION, inside * MAX_ROTATION)
    return torch.stack([scale, *centre, rotation], dim=-1)


def step(here: Quadratic, damping: Tensor) -> Tensor:
    """Return the damped Gauss-Newton step (N, S, 4)."""
    diagonal = here.matrix.diagonal(dim1=-2, dim2=-1)
    matrix = here.matrix + torch.diag_embed(damping[:, None] * diagonal + FLAT)
    # solve_ex skips the check for a singular matrix, which waits for the GPU; FLAT rules it out.
    solved: Tensor = torch.linalg.solve_ex(matrix, here.gradient).result
    return -solved.reshape(len(solved), -1, 4)


def linearize(problem: Problem, theta: Tensor, softness: float) -> Quadratic:
    """Return the model of the energy at poses (N, S, 4), with a soft maximum over both windows."""
    value = gradient = matrix = theta.new_zeros(())
    for term in problem.terms:
        cost = _one_sided(term, theta, softness)
        value = value + term.weight * cost.value
        gradient = gradient + term.weight * cost.gradient
        matrix = matrix + term.weight * cost.matrix
    chain = _affine_from_pose(theta, problem.template.aspect, problem.image_aspect)
    gradient = (gradient[..., None, :] @ chain)[..., 0, :]  # (N, S, 4)
    n, sides = theta.shape[:2]
    blocks = theta.new_zeros(n, sides, 4, sides, 4)
    blocks.diagonal(dim1=1, dim2=3).copy_((chain.mT @ matrix @ chain).permute(0, 2, 3, 1))
    value, gradient = value.sum(-1), gradient.flatten(1)
    matrix = blocks.reshape(n, 4 * sides, 4 * sides)
    if sides == 1:
        return Quadratic(value, gradient, matrix)
    weight = theta.new_zeros(4, 4)  # the symmetry penalty is quadratic
    weight.diagonal()[::2].fill_(2)  # in scale and height
    signs = 2 * torch.eye(2, dtype=theta.dtype, device=theta.device) - 1
    hessian = torch.kron(signs, weight)  # (8, 8)
    gradient = gradient + theta.flatten(1) @ hessian
    return Quadratic(value + symmetry_penalty(theta), gradient, matrix + hessian)


def _one_sided(term: Term, theta: Tensor, softness: float) -> Quadratic:
    """Return (whole + soft max(red, green)) / 2 of the polarity that costs less, P = 6.

    The parameters are the six entries of an affine map in the patch's own frame.
    """
    images = _nine_images(term, theta)
    windows = (..., term.template.red, term.template.green)
    costs = [_window_cost(images[window], term.floor) for window in windows]
    positive, negative = (
        _soft_worse(whole, red, green, softness) for whole, red, green in zip(*costs, strict=True)
    )
    return negative.where(positive.value <= negative.value, positive)


def _nine_images(term: Term, theta: Tensor) -> Tensor:
    """Return the images whose inner products the cost needs, (N, S, 9, height, width)."""
    height, width = term.template.size
    patch = term.patches(theta)
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


def _window_cost(images: Tensor, floor: Tensor) -> tuple[Quadratic, Quadratic]:
    """Return the models of 1 - NCC for the patch and for its negative.

    Given are images (N, S, 9, h, w) of one window, and the deviation (N, S) below which a patch
    fades into noise.
    """
    rows = images.flatten(-2)
    gram = rows @ rows.mT
    ones = gram[..., ONE]
    gram = gram - ones[..., :, None] * ones[..., None, :] / ones[..., ONE, None, None]  # means out
    noise = ones[..., ONE] * floor.square() + TINY
    length = (gram[..., PATCH, PATCH] + noise).sqrt()[..., None]
    along = gram[..., :6, PATCH] / length
    towards = gram[..., :6, IMAGE] / gram[..., IMAGE, IMAGE, None].sqrt()
    ncc = gram[..., PATCH, IMAGE, None] / (length * gram[..., IMAGE, IMAGE, None].sqrt())
    gradient = (ncc * along - towards) / length
    matrix = gram[..., :6, :6] - along[..., :, None] * along[..., None, :]
    matrix = matrix / length[..., None] ** 2
    return (
        Quadratic(1 - ncc[..., 0], gradient, matrix),
        Quadratic(1 + ncc[..., 0], -gradient, matrix),
    )


def _soft_worse(whole: Quadratic, red: Quadratic, green: Quadratic, softness: float) -> Quadratic:
    """Return the mean of the whole window's cost and the smooth maximum of the other two.

    The maximum is softness * logsumexp(c / softness). Its own curvature, along the difference of
    the two gradients, keeps the step on the kink that the minimum usually lies on.
    """
    weight = torch.sigmoid((red.value - green.value) / softness)
    value = softness * torch.logaddexp(red.value / softness, green.value / softness)
    apart = red.gradient - green.gradient
    bend = (weight * (1 - weight) / softness)[..., None, None]
    bend = bend * apart[..., :, None] * apart[..., None, :]
    gradient = torch.lerp(green.gradient, red.gradient, weight[..., None])
    matrix = torch.lerp(green.matrix, red.matrix, weight[..., None, None]) + bend
    return Quadratic(
        (whole.value + value) / 2, (whole.gradient + gradient) / 2, (whole.matrix + matrix) / 2
    )


def _affine_from_pose(theta: Tensor, template_aspect: float, image_aspect: float) -> Tensor:
    """Return the Jacobian (N, S, 6, 4) of an affine map in the patch's own frame by the pose.

    A(theta) is diag(1, 1/b) R diag(s, s a), so in the patch's frame a change of scale is the
    identity over s, one of rotation [[0, -a], [1/a, 0]], and a shift is rotated back by R.
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
