"""Pixel grids in a knee's coordinates (u, v), chord lengths of solids on them, and filters."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.synthetic.anatomy import Array


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Pixel centres in a knee's coordinates, or a crop of such a grid."""

    columns: Array  # (W,) u in double precision, where outlines are evaluated
    rows: Array  # (H,) v
    box: tuple[slice, slice] = (slice(None), slice(None))  # of the grid this is cropped from

    @property
    def u(self) -> Tensor:
        """Return the columns in single precision, (1, W)."""
        return self.per_column(self.columns)

    @property
    def v(self) -> Tensor:
        """Return the rows in single precision, (H, 1)."""
        return self.per_row(self.rows)

    def crop(self, u0: float, u1: float, v0: float, v1: float) -> "Grid":
        """Return the pixels in [u0, u1] x [v0, v1], none where they are fewer than 2 x 2."""
        i0, i1 = np.searchsorted(self.rows, [v0, v1]).tolist()
        j0, j1 = np.searchsorted(self.columns, [u0, u1]).tolist()
        if i1 - i0 < 2 or j1 - j0 < 2:
            i1, j1 = i0, j0
        return Grid(self.columns[j0:j1], self.rows[i0:i1], (slice(i0, i1), slice(j0, j1)))

    def per_row(self, values: Array) -> Tensor:
        """Return values at the rows (..., H) as a tensor (..., H, 1)."""
        return torch.from_numpy(values).float()[..., None]

    def per_column(self, values: Array) -> Tensor:
        """Return values at the columns (W,) as a tensor (1, W)."""
        return torch.from_numpy(values).float()[None, :]

    def profile(self, v: tuple[float, ...] | Array, values: tuple[float, ...] | Array) -> Tensor:
        """Interpolate values that are given at some v linearly: (H, 1)."""
        return self.per_row(np.interp(self.rows, v, values))


def make_grid(size: tuple[int, int], origin: tuple[float, float], plateau_px: float) -> Grid:
    """Return a grid of a size (height, width) whose upper left corner is `origin` (u, v)."""
    rows, columns = (
        start + (np.arange(length, dtype=np.float64) + 0.5) / plateau_px
        for length, start in zip(size, origin[::-1], strict=True)
    )
    return Grid(columns, rows)


def tube_chord(
    u: Tensor,
    sides: Tensor,
    depth: Tensor | float,
    squareness: Tensor | float = 0.0,
    softness: float = 0.0,
) -> Tensor:
    """Return the chord (H, W) through a tube between two outlines (2, H, 1).

    The cross-section is an ellipse of that depth, closer to a rectangle when `squareness` is 1.
    `softness` blunts the steep edge, for grids too coarse to resolve it.
    """
    left, right = sides.unbind()
    half = (0.5 * (right - left)).clamp(min=1e-3)
    t2 = (u * (1 / half)).sub_(0.5 * (left + right) / half).square_()
    t2.lerp_(t2.square().mul_(t2), squareness)
    inside = t2.neg_().add_(1)
    if softness > 0:
        inside = (inside.square() + softness**2).sqrt_().add_(inside).mul_(0.5)
    return inside.clamp_(min=0).sqrt_().mul_(depth)


def rounded_end(height: Tensor, radius: Tensor | float) -> Tensor:
    """Return the fraction of the chord near a rounded end: 0 outside, 1 from a radius inwards.

    `height` (H, W) is the distance from the end, positive inside.
    """
    s = (height * (1 / radius)).clamp_(0, 1)
    return (s * (2 - s)).sqrt_()


def shell_chords(radius2: Tensor, wall: float) -> tuple[Tensor, Tensor]:
    """Return the chords through the shell and through the core of an ellipsoid of thickness 1.

    `radius2` (H, W) is the squared elliptic radius, 1 on the outline.
    """
    inner = (1 - radius2 * (1 / (1 - wall) ** 2)).clamp_(min=0).sqrt_().mul_(1 - wall)
    outer = (1 - radius2).clamp_(min=0).sqrt_()
    return outer.sub_(inner), inner


def bright_line(height: Tensor, above: float, below: float) -> Tensor:
    """Return a line of brightness 1 at height 0 that decays as a Gaussian on either side.

    Its widths are `above` where the height is negative and `below` where it is positive.
    """
    scaled = torch.where(height < 0, height * (1 / above), height * (1 / below))
    # Beyond 40 the exponential would be denormal, which CPUs compute slowly.
    return scaled.square_().clamp_(max=40).neg_().exp_()


def segment_distance(x: Tensor, y: Tensor, ends: tuple[float, float, float, float]) -> Tensor:
    """Return the distance (H, W) of points x (1, W), y (H, 1) from the segment x0, y0, x1, y1."""
    x0, y0, x1, y1 = ends
    dx, dy = x1 - x0, y1 - y0
    along = (((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy)).clamp(0, 1)
    return torch.hypot(x - x0 - along * dx, y - y0 - along * dy)


def convolve(picture: Tensor, taps: list[float], axis: int) -> Tensor:
    """Return the weighted mean of neighbours (H, W) along an axis; edges are replicated."""
    radius, length = len(taps) // 2, picture.shape[axis]
    pad = (0, 0, radius, radius) if axis == 0 else (radius, radius)
    padded = F.pad(picture[None], pad, mode="replicate")[0]
    mean = padded.narrow(axis, 0, length) * (taps[0] / sum(taps))
    for k, tap in enumerate(taps[1:], start=1):
        mean.add_(padded.narrow(axis, k, length), alpha=tap / sum(taps))
    return mean


def interpolate(picture: Tensor, size: tuple[int, ...]) -> Tensor:
    """Interpolate a picture (h, w) bilinearly to a size (height, width)."""
    return F.interpolate(picture[None, None], size, mode="bilinear")[0, 0]
