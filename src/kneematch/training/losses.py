"""The two training losses: the paper's energy, and the distance from pseudo-labels.

The second is augmented: random exposures make a few training films stand for many.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.models.two_stage import Network
from kneematch.paper.energy import energy
from kneematch.paper.network import INPUT, crop_views
from kneematch.paper.pose import (
    PoseJitter,
    compose_pose,
    corner_distance,
    frame_from_poses,
    jitter_pose,
    pose_from_vector,
    relative_pose,
)
from kneematch.paper.problem import make_problem, pyramid
from kneematch.paper.split import HALF_ASPECT
from kneematch.training.phase import Loss, PhaseData

LOG_GAMMA: Final = 0.7  # largest logarithm of the exponent gamma
SHARPNESS: Final = (-0.6, 1.5)  # range of the factor of the added detail; negative values blur
FIELD: Final = 0.4  # largest smooth change of log-contrast; that of brightness is a third of it
GRAIN: Final = 0.06  # largest standard deviation of the noise
NEGATIVES: Final = 0.15  # fraction of views that are inverted
HIDDEN: Final = 0.3  # fraction of views of which a rectangle is covered
EPSILON: Final = 1e-6


def energy_loss(shift: float, zoom: float = 0.0) -> Loss:
    """Return the paper's loss: the energy f(u, G(u)) of randomly translated views (Sect. 5).

    Views are shifted by a fraction of their size, and their scale is changed by one, at most.
    """

    def loss(
        network: Network, data: PhaseData, rows: Tensor, local: Tensor, generator: torch.Generator
    ) -> Tensor:
        halves = data.films.halves(rows[local])
        drawn = torch.rand(len(rows), 2, 3, generator=generator, device=generator.device)
        x, y, size = (2 * drawn - 1).unbind(-1)
        scale = (size * math.log1p(zoom)).exp()
        # A view is 2 wide.
        moved = torch.stack([scale, 2 * shift * x, 2 * shift * y, torch.zeros_like(x)], dim=-1)
        frames = compose_pose(data.frames_of(rows[local]), moved[local], data.aspect, HALF_ASPECT)
        problem = make_problem(halves, data.template, paper=data.paper_energy)
        if data.shrink > 1:
            problem = pyramid(problem, (data.shrink,))[data.shrink]
        return energy(problem.terms, data.predict(network, halves, frames))

    return loss


def pose_loss(targets: Tensor, spread: PoseJitter) -> Loss:
    """Return the mean distance of the predicted corners from those of target poses (N, 2, 4).

    It is in template widths. Every call draws new views, varied by `spread`, and new exposures.
    """

    def loss(
        network: Network, data: PhaseData, rows: Tensor, local: Tensor, generator: torch.Generator
    ) -> Tensor:
        target = targets[rows.to(targets.device)]
        nominal = relative_pose(data.frames_of(rows), target, data.aspect, HALF_ASPECT)
        wanted = jitter_pose(nominal, data.height_ratio, spread, generator)
        frames = frame_from_poses(target, wanted, data.aspect, HALF_ASPECT)
        exposures = draw_exposures(2 * len(rows), INPUT, generator)
        both_sides = torch.stack([2 * local, 2 * local + 1], dim=-1).flatten()
        halves = data.films.halves(rows[local])
        views = apply_exposures(
            crop_views(halves, frames[local], data.aspect), exposures[both_sides]
        )
        found = pose_from_vector(network(views), data.height_ratio)
        return corner_distance(found, wanted[local], data.template.aspect, data.aspect).sum(-1)

    return loss


@dataclass(frozen=True, slots=True, eq=False)
class Exposures:
    """Random parameters of K views; each tensor is (K, 1, 1, 1) unless stated otherwise."""

    gamma: Tensor
    sharpness: Tensor
    field: Tensor  # (K, 1, 4, 4)
    contrast: Tensor
    brightness: Tensor
    grain: Tensor  # (K, 1, H, W)
    hidden: Tensor  # (K, 1, H, W) bool
    cover: Tensor
    negative: Tensor  # bool

    def __getitem__(self, rows: Tensor) -> "Exposures":
        """Return the parameters of some views, given by their indices (M,)."""
        return Exposures(*(getattr(self, each.name)[rows] for each in fields(self)))


def draw_exposures(count: int, size: tuple[int, int], generator: torch.Generator) -> Exposures:
    """Draw the parameters of `count` views of a size (height, width)."""
    device = generator.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        drawn = torch.rand(count, *(shape or (1, 1, 1)), generator=generator, device=device)
        return low + (high - low) * drawn

    grain = torch.randn(count, 1, *size, generator=generator, device=device)
    return Exposures(
        gamma=uniform(-LOG_GAMMA, LOG_GAMMA).exp(),
        sharpness=uniform(*SHARPNESS),
        field=uniform(-1, 1, 1, 4, 4),
        contrast=uniform(0, FIELD),
        brightness=uniform(0, FIELD / 3),
        grain=uniform(0, GRAIN) * grain,
        hidden=_rectangles(size, uniform),
        cover=uniform(-0.2, 1.2),
        negative=uniform(0, 1) < NEGATIVES,
    )


def _rectangles(size: tuple[int, int], uniform: Callable[..., Tensor]) -> Tensor:
    """Return masks (K, 1, H, W) of what a marker, an implant or a shutter might cover."""
    drawn = uniform(0, 1)
    y, x = (torch.arange(side, device=drawn.device) / side for side in size)
    largest = uniform(0.02, 0.3)
    near_y = (y[:, None] - uniform(0, 1)).abs() < largest * uniform(0.3, 1)
    near_x = (x - uniform(0, 1)).abs() < largest * uniform(0.3, 1)
    return near_y & near_x & (drawn < HIDDEN)


def apply_exposures(views: Tensor, exposures: Exposures) -> Tensor:
    """Return views (..., H, W), K in all, as other X-ray machines might have shown them."""
    flat = views.reshape(-1, 1, *views.shape[-2:])
    low, high = flat.amin((-2, -1), keepdim=True), flat.amax((-2, -1), keepdim=True)
    flat = ((flat - low) / (high - low).clamp(min=EPSILON)).clamp(min=EPSILON) ** exposures.gamma
    smooth = F.interpolate(F.avg_pool2d(flat, 8), flat.shape[-2:], mode="bilinear")
    flat = flat + exposures.sharpness * (flat - smooth)
    # Collimation, the heel effect and thick soft tissue change the brightness slowly.
    field = F.interpolate(exposures.field, flat.shape[-2:], mode="bicubic")
    flat = flat * (exposures.contrast * field).exp() + exposures.brightness * field
    flat = flat + exposures.grain
    flat = torch.where(exposures.hidden, exposures.cover, flat)
    return torch.where(exposures.negative, -flat, flat).reshape(views.shape)
