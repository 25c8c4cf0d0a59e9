"""Chord lengths of the solids that X-rays cross, on a pixel grid in a knee's coordinates (u, v)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kneematch.synthetic.phantom.anatomy import Array


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Pixel centres in a knee's coordinates, or a crop of such a grid."""

    u: Tensor  # (1, W)
    v: Tensor  # (H, 1)
    columns: Array  # (W,) u again, in double precision, where outlines are evaluated
    rows: Array  # (H,) v again
    plateau_px: float  # pixels per plateau width
    box: tuple[slice, slice]  # rows and columns of the grid that this one was cropped from

    def crop(self, u0: float, u1: float, v0: float, v1: float) -> "Grid | None":
        """Return the pixels in [u0, u1] x [v0, v1], or None where they are fewer than 2 x 2."""
        i0, i1 = np.searchsorted(self.rows, [v0, v1])
        j0, j1 = np.searchsorted(self.columns, [u0, u1])
        if i1 - i0 < 2 or j1 - j0 < 2:
            return None
        down, across = slice(int(i0), int(i1)), slice(int(j0), int(j1))
        columns, rows = self.columns[across], self.rows[down]
        return Grid(self.u[:, across], self.v[down], columns, rows, self.plateau_px, (down, across))

    def per_row(self, values: Array) -> Tensor:
        """Return values at the rows (H,) as a tensor (H, 1)."""
        return torch.from_numpy(values).to(self.u)[:, None]

    def per_column(self, values: Array) -> Tensor:
        """Return values at the columns (W,) as a tensor (1, W)."""
        return torch.from_numpy(values).to(self.u)[None, :]

    def profile(self, v: tuple[float, ...], values: tuple[float, ...]) -> Tensor:
        """Interpolate values that are given at some v linearly: (H, 1)."""
        return self.per_row(np.interp(self.rows, v, values))


def make_grid(size: tuple[int, int], origin: tuple[float, float], plateau_px: float) -> Grid:
    """Return a grid of a size (height, width) whose upper left corner is `origin` (u, v)."""
    rows = origin[1] + (np.arange(size[0], dtype=np.float64) + 0.5) / plateau_px
    columns = origin[0] + (np.arange(size[1], dtype=np.float64) + 0.5) / plateau_px
    u = torch.from_numpy(columns).float()[None, :]
    v = torch.from_numpy(rows).float()[:, None]
    return Grid(u, v, columns, rows, plateau_px, (slice(0, size[0]), slice(0, size[1])))


def tube_chord(
    u: Tensor,
    left: Tensor,
    right: Tensor,
    depth: Tensor | float,
    squareness: Tensor | float = 0.0,
    softness: float = 0.0,
) -> Tensor:
    """Return the chord (H, W) through a tube between two outlines (H, 1).

    The cross-section is an ellipse of that depth, closer to a rectangle when `squareness` is 1.
    `softness` blunts the steep edge, for grids too coarse to resolve it.
    """
    half = (0.5 * (right - left)).clamp(min=1e-3)
    t2 = (u * (1 / half)).sub_(0.5 * (left + right) / half).square_()
    if not isinstance(squareness, float) or squareness > 0:
        t2 = t2.lerp_(t2.square().mul_(t2), squareness)
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


def squared_radius(
    grid: Grid,
    centre: tuple[float, float],
    radii: tuple[float, float],
    *,
    taper: float = 0.0,
    boxy: bool = False,
) -> Tensor:
    """Return the squared elliptic radius (H, W) about a centre (u, v), 1 on the outline.

    The outline narrows distally by `taper`; a boxy one is a superellipse of exponent 4.
    """
    y = (grid.v - centre[1]) * (1 / radii[1])
    x = (grid.u - centre[0]) * (1 / radii[0]) / (1 - taper * y).clamp(min=0.3)
    if boxy:
        return (x.square_().square_() + y.square_().square_()).sqrt_()
    return x.square_() + y.square_()


def shell_chords(radius2: Tensor, wall: float) -> tuple[Tensor, Tensor]:
    """Return the chords through the shell and through the core of an ellipsoid of thickness 1."""
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
