"""View: images cut from films, and the affine maps from their coordinates to film pixels."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Images cut from films; `to_film` maps [-1, 1]^2, from edge to edge, to film pixels."""

    pixels: Tensor  # (..., H, W)
    to_film: Tensor  # (..., 3, 3) float64

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        height, width = self.pixels.shape[-2:]
        return height, width


def rectangle_to_film(
    x0: float, y0: float, x1: float, y1: float, *, mirrored: bool = False
) -> Tensor:
    """Return the map (3, 3) of [-1, 1]^2 onto a rectangle of film pixels.

    x = -1 becomes the rectangle's left edge, or its right edge if mirrored.
    """
    flip = -1.0 if mirrored else 1.0
    return torch.tensor(
        [[flip * (x1 - x0) / 2, 0, (x0 + x1) / 2], [0, (y1 - y0) / 2, (y0 + y1) / 2], [0, 0, 1]],
        dtype=torch.float64,
    )


def compose(to_film: Tensor, matrices: Tensor) -> Tensor:
    """Return the product (..., 3, 3) of to_film and matrices (..., 2, 3) or (..., 3, 3)."""
    return to_film @ homogeneous(matrices.to(to_film))


def homogeneous(matrices: Tensor) -> Tensor:
    """Return affine matrices (..., 2, 3) or (..., 3, 3) as (..., 3, 3)."""
    if matrices.shape[-2] == 3:
        return matrices
    bottom = matrices.new_tensor([0, 0, 1]).expand(*matrices.shape[:-2], 1, 3)
    return torch.cat([matrices, bottom], dim=-2)


def transform(matrices: Tensor, points: Tensor) -> Tensor:
    """Apply affine maps (..., 3, 3) or (..., 2, 3) to points (..., K, 2)."""
    matrices = matrices[..., :2, :]
    return points.to(matrices) @ matrices[..., :2].mT + matrices[..., None, :, 2]
