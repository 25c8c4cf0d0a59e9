"""Solids that X-rays cross: chord lengths of tubes and rounded ends, and smooth outlines."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Canvas:
    """Pixels in a knee's frame, or a box of them: u (1, W) across, v (H, 1) along the leg."""

    u: Tensor
    v: Tensor
    columns: Array  # u and v again, where the curves are evaluated
    rows: Array
    px: float  # pixels in a plateau's width
    box: tuple[slice, slice]  # of the canvas that this was cut from

    def part(self, u0: float, u1: float, v0: float, v1: float) -> "Canvas | None":
        """Cut out the box [u0, u1] x [v0, v1]; None where the canvas does not reach it."""
        i0, i1 = np.searchsorted(self.rows, [v0, v1])
        j0, j1 = np.searchsorted(self.columns, [u0, u1])
        if i1 - i0 < 2 or j1 - j0 < 2:
            return None
        down, across = slice(int(i0), int(i1)), slice(int(j0), int(j1))
        return Canvas(
            self.u[:, across],
            self.v[down],
            self.columns[across],
            self.rows[down],
            self.px,
            (down, across),
        )

    def along(self, values: Array) -> Tensor:
        """Put values at the rows into a tensor (H, 1)."""
        return torch.from_numpy(values).to(self.u)[:, None]

    def across(self, values: Array) -> Tensor:
        """Put values at the columns into a tensor (1, W)."""
        return torch.from_numpy(values).to(self.u)[None, :]

    def profile(self, at: tuple[float, ...], values: tuple[float, ...]) -> Tensor:
        """Interpolate over v, as (H, 1)."""
        return self.along(np.interp(self.rows, at, values))


def make_canvas(
    size: tuple[int, int], origin: tuple[float, float], px: float, device: torch.device
) -> Canvas:
    """Lay pixels over a knee's frame; `origin` (u, v) is the corner of the first one."""
    rows = origin[1] + (np.arange(size[0], dtype=np.float64) + 0.5) / px
    columns = origin[0] + (np.arange(size[1], dtype=np.float64) + 0.5) / px
    u = torch.from_numpy(columns).float().to(device)[None, :]
    v = torch.from_numpy(rows).float().to(device)[:, None]
    return Canvas(u, v, columns, rows, px, (slice(0, size[0]), slice(0, size[1])))


def spline(x: Array, at: Array, through: Array) -> Array:
    """Evaluate the cubic that passes the points with Catmull-Rom tangents, constant outside."""
    secant = (through[2:] - through[:-2]) / (at[2:] - at[:-2])
    first, last = ((through[k + 1] - through[k]) / (at[k + 1] - at[k]) for k in (0, -2))
    slope = np.concatenate([[first], secant, [last]])
    x = np.clip(x, at[0], at[-1])
    k = np.clip(np.searchsorted(at, x) - 1, 0, len(at) - 2)
    step = (at[1:] - at[:-1])[k]
    t = (x - at[k]) / step
    smooth = t * t * (3 - 2 * t)
    ends: Array = through[k] * (1 - smooth) + through[k + 1] * smooth
    bends: Array = step * t * (1 - t) * (slope[k] * (1 - t) - slope[k + 1] * t)
    return ends + bends


def bump(x: Array, centre: float, width: float, size: float) -> Array:
    """A bell of a given size."""
    bell: Array = size * np.exp(-(((x - centre) / width) ** 2))
    return bell


def tube(
    u: Tensor,
    left: Tensor,
    right: Tensor,
    depth: Tensor | float,
    square: Tensor | float = 0.0,
    feather: float = 0.0,
) -> Tensor:
    """Chord through a tube between two outlines: an ellipse across, squarer when `square` is 1.

    `feather` blunts the steep edge, for grids too coarse to draw it.
    """
    half = (0.5 * (right - left)).clamp(min=1e-3)
    t2 = (u * (1 / half)).sub_(0.5 * (left + right) / half).square_()
    if not isinstance(square, float) or square > 0:
        t2 = t2.lerp_(t2.square().mul_(t2), square)
    inside = t2.neg_().add_(1)
    if feather > 0:
        inside = (inside.square() + feather**2).sqrt_().add_(inside).mul_(0.5)
    return inside.clamp_(min=0).sqrt_().mul_(depth)


def dome(height: Tensor, radius: Tensor | float) -> Tensor:
    """Part of the chord left at a height inside a rounded end: 0 outside, 1 a radius deep."""
    s = (height * (1 / radius)).clamp_(0, 1)
    return (s * (2 - s)).sqrt_()


def ellipsoid(
    canvas: Canvas,
    centre: tuple[float, float],
    radii: tuple[float, float],
    *,
    taper: float = 0.0,
    boxy: bool = False,
) -> Tensor:
    """Squared radius about a centre, 1 on the outline, which narrows downwards by `taper`."""
    y = (canvas.v - centre[1]) * (1 / radii[1])
    x = (canvas.u - centre[0]) * (1 / radii[0]) / (1 - taper * y).clamp(min=0.3)
    if boxy:
        return (x.square_().square_() + y.square_().square_()).sqrt_()
    return x.square_() + y.square_()


def shell(radius2: Tensor, wall: float) -> tuple[Tensor, Tensor]:
    """Chords through the shell and the core of an ellipsoid, in parts of its thickness."""
    inner = (1 - radius2 * (1 / (1 - wall) ** 2)).clamp_(min=0).sqrt_().mul_(1 - wall)
    outer = (1 - radius2).clamp_(min=0).sqrt_()
    return outer.sub_(inner), inner


def ridge(height: Tensor, above: float, below: float) -> Tensor:
    """A bright line at height 0 that fades over `above` where negative, `below` where positive."""
    scaled = torch.where(height < 0, height * (1 / above), height * (1 / below))
    # Beyond 40 the exponential would be denormal, which CPUs compute slowly.
    return scaled.square_().clamp_(max=40).neg_().exp_()
