"""Other exposures of the same films, so that a few films teach about many."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

GAMMA: Final = 0.7  # largest logarithm of the power
SOFTER, SHARPER = -0.6, 1.5  # share of the fine detail that is added
FIELD: Final = 0.4  # contrast, and a third of it brightness, that changes slowly over a view
GRAIN: Final = 0.06
NEGATIVES: Final = 0.15  # share of the views
HIDDEN: Final = 0.3  # share of the views of which a rectangle is hidden
SMALLEST: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Exposures:
    """What is drawn for K views, small or large; each (K, 1, ...)."""

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
        """Those of some views."""
        return Exposures(*(getattr(self, each.name)[rows] for each in fields(self)))


def draw_exposures(count: int, size: tuple[int, int], generator: torch.Generator) -> Exposures:
    """Draw for views of a size (height, width)."""
    device = generator.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        drawn = torch.rand(count, *(shape or (1, 1, 1)), generator=generator, device=device)
        return low + (high - low) * drawn

    grain = torch.randn(count, 1, *size, generator=generator, device=device)
    return Exposures(
        gamma=uniform(-GAMMA, GAMMA).exp(),
        sharpness=uniform(SOFTER, SHARPER),
        field=uniform(-1, 1, 1, 4, 4),
        contrast=uniform(0, FIELD),
        brightness=uniform(0, FIELD / 3),
        grain=uniform(0, GRAIN) * grain,
        hidden=_rectangles(size, uniform),
        cover=uniform(-0.2, 1.2),
        negative=uniform(0, 1) < NEGATIVES,
    )


def _rectangles(size: tuple[int, int], uniform: Callable[..., Tensor]) -> Tensor:
    """A rectangle of some views, as a marker, an implant or a shutter would hide it."""
    drawn = uniform(0, 1)
    y, x = (torch.arange(side, device=drawn.device) / side for side in size)
    largest = uniform(0.02, 0.3)
    near_y = (y[:, None] - uniform(0, 1)).abs() < largest * uniform(0.3, 1)
    near_x = (x - uniform(0, 1)).abs() < largest * uniform(0.3, 1)
    return near_y & near_x & (drawn < HIDDEN)


def exposed(views: Tensor, drawn: Exposures) -> Tensor:
    """Views (..., H, W) as other machines might have shown them; of K views in all."""
    flat = views.reshape(-1, 1, *views.shape[-2:])
    low, high = flat.amin((-2, -1), keepdim=True), flat.amax((-2, -1), keepdim=True)
    flat = ((flat - low) / (high - low).clamp(min=SMALLEST)).clamp(min=SMALLEST) ** drawn.gamma
    smooth = F.interpolate(F.avg_pool2d(flat, 8), flat.shape[-2:], mode="bilinear")
    flat = flat + drawn.sharpness * (flat - smooth)
    # Collimation, the heel effect and thick soft tissue: brightness that changes slowly.
    field = F.interpolate(drawn.field, flat.shape[-2:], mode="bicubic")
    flat = flat * (drawn.contrast * field).exp() + drawn.brightness * field + drawn.grain
    flat = torch.where(drawn.hidden, drawn.cover, flat)
    return torch.where(drawn.negative, -flat, flat).reshape(views.shape)
