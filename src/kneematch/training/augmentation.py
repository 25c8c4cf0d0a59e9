"""Random changes of exposure, so that a few training films stand for many."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_GAMMA: Final = 0.7  # largest logarithm of the exponent gamma
SHARPNESS: Final = (-0.6, 1.5)  # range of the factor of the added detail; negative values blur
FIELD: Final = 0.4  # largest smooth change of log-contrast; that of brightness is a third of it
GRAIN: Final = 0.06  # largest standard deviation of the noise
NEGATIVES: Final = 0.15  # fraction of views that are inverted
HIDDEN: Final = 0.3  # fraction of views of which a rectangle is covered
EPSILON: Final = 1e-6


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
