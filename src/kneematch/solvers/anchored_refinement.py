"""Sharpening that trusts its start: the energy, and how far from the start it was lowered.

A network that has seen many knees puts the template's frame where it belongs on a knee of another
shape; the lowest energy alone fits that shape to the template's, and moves the frame.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.pose import pose_from_vector, vector_from_pose
from kneematch.solvers.gauss_newton import Level, descend
from kneematch.solvers.linearization import Quadratic
from kneematch.solvers.problem import Problem, Solution, lower_energy
from kneematch.solvers.pyramid import pyramid

# Of the squared distance of the corners from where they were, in widths of the template: 3 % of
# the width cost as much energy as a tenth of the correlation.
TRUST: Final = 100.0
LEVELS: Final = (Level(4, 3, 0.05), Level(2, 3, 0.01))
# For detection one resolution is enough: with both, the mean IoU of the labelled films is 0.0001
# higher, that of phantoms 0.0013 lower, and a film takes 28 ms longer (benchmarks/refinement.py).
QUICK_LEVELS: Final = (Level(4, 3, 0.02),)


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """Poses to stay near, and the cost of leaving them."""

    theta: Tensor  # (N, S, 4)
    weight: Tensor  # (N, S, 4), of each parameter's squared change

    def __call__(self, here: Quadratic, theta: Tensor) -> Quadratic:
        """The energy near poses (N, S, 4) with the cost of having left."""
        apart = theta - self.theta
        slope = 2 * self.weight * apart
        return Quadratic(
            here.value + (self.weight * apart.square()).sum((-2, -1)),
            here.gradient + slope.flatten(1),
            here.matrix + torch.diag_embed(2 * self.weight.flatten(1)),
        )


def anchor(theta: Tensor, template_aspect: float, image_aspect: float, trust: float) -> Anchor:
    """The mean squared distance of the corners from poses (N, S, 4), to first order."""
    scale = theta[..., 0]
    turn = torch.full_like(scale, 1 + template_aspect**2)  # of a corner from the centre, squared
    upright = torch.full_like(scale, image_aspect**2)
    weight = torch.stack([turn, torch.ones_like(scale), upright, scale.square() * turn], dim=-1)
    return Anchor(theta, trust * weight / (4 * scale.square()[..., None]))


@torch.no_grad()
def refine_anchored(
    problem: Problem,
    start: Tensor,
    *,
    trust: float = TRUST,
    levels: tuple[Level, ...] = LEVELS,
) -> Solution:
    """Descend from start (N, S, 4), and not far; return the better of start and end.

    Start and end are compared, and their energies given, at the resolution of the last level.
    """
    sizes = pyramid(problem, tuple(level.shrink for level in levels))
    theta = pose_from_vector(start, problem.height_ratio)
    stay = anchor(theta, problem.template.aspect, problem.image_aspect, trust)
    for level in levels:
        theta = descend(sizes[level.shrink], theta, level, stay)
    v = vector_from_pose(theta, problem.height_ratio)
    last = sizes[levels[-1].shrink]
    return lower_energy(Solution(start, last.energy(start)), Solution(v, last.energy(v)))
