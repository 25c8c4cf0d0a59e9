"""Pixel grids in a knee's coordinates (u, v), chord lengths of solids on them, and filters.

Bones without a shape model, soft tissue and metal are put together from tapered rods.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kneephantoms.anatomy import Array, Point, Size

# Attenuation of a chord one unit long (79 mm): dense shell, core, core near the ends.
MATERIALS: Final = {
    "bone": (3.6, 0.15, 0.75),
    "spongy": (2.2, 0.75, 0.75),
    "soft": (1.4, 1.4, 1.4),
    "air": (-1.2, -1.2, -1.2),
    "cast": (1.6, 0.0, 0.0),
    "metal": (60.0, 60.0, 60.0),  # titanium; steel has twice as much
}
SOFT: Final = ("soft", "air")

Points = Sequence[Point]


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Pixel centres in a knee's coordinates, or a crop of such a grid."""

    columns: Array  # (W,) u in double precision, where outlines are evaluated
    rows: Array  # (H,) v
    box: tuple[slice, slice] = (slice(None), slice(None))  # part of the grid this is cropped from

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


def make_grid(size: Size, origin: Point, plateau_px: float) -> Grid:
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


@dataclass(frozen=True, slots=True)
class Rod:
    """A straight rod with round ends; it may be flat and wider at the ends than between."""

    start: Point
    end: Point
    radius: Point  # at the start and at the end
    waist: float = 1.0  # radius half way, over the mean of both ends
    wall: float = 0.2  # thickness of the shell over the radius
    material: str = "bone"
    depth: float = 1.0  # chord along the beam over that of a round rod


def chain(points: Points, radius: float, **options: float | str) -> list[Rod]:
    """Return rods along a polyline."""
    return [
        Rod(start, end, (radius, radius), **options)  # type: ignore[arg-type]
        for start, end in pairwise(points)
    ]


def place_rods(
    rods: Iterable[Rod], centre: Point, angle: float, scale: float, mirror: bool
) -> list[Rod]:
    """Scale, mirror in x, rotate clockwise by an angle in radians, and shift rods."""
    c, s = scale * np.cos(angle), scale * np.sin(angle)

    def move(point: Point) -> Point:
        x, y = (-point[0] if mirror else point[0]), point[1]
        return float(centre[0] + c * x - s * y), float(centre[1] + s * x + c * y)

    return [
        replace(
            rod,
            start=move(rod.start),
            end=move(rod.end),
            radius=(scale * rod.radius[0], scale * rod.radius[1]),
        )
        for rod in rods
    ]


def add_rods(
    grid: Grid, attenuation: Tensor, rods: Iterable[Rod], texture: Tensor | None = None
) -> None:
    """Add the rods' attenuation (H, W), in place; texture (H, W) multiplies that of the cores.

    Rods of one layer that overlap are mostly parts of one bone or limb, so that the 3-norm of their
    attenuations is added instead of their sum.
    """
    layers: dict[str, list[Rod]] = {}
    for rod in rods:
        layers.setdefault(rod.material if rod.material in SOFT else "hard", []).append(rod)
    for layer in layers.values():
        cubes = torch.zeros_like(attenuation)
        for rod in layer:
            _add_cube(grid, cubes, rod, texture)
        attenuation += cubes.abs().pow_(1 / 3).copysign_(cubes)


def _add_cube(grid: Grid, cubes: Tensor, rod: Rod, texture: Tensor | None) -> None:
    """Add the third power of a rod's attenuation (H, W), in place."""
    reach = max(rod.radius)
    (left, right), (top, bottom) = (sorted(ends) for ends in zip(rod.start, rod.end, strict=True))
    part = grid.crop(left - reach, right + reach, top - reach, bottom + reach)
    if not part.u.numel():
        return
    along, shell, core = _chords(part, rod)
    dense, middle, ends = MATERIALS[rod.material]
    density = (2 * along - 1).abs_().pow_(3).mul_(ends - middle).add_(middle)
    if texture is not None:
        density = density * texture[part.box]
    drawn = shell.mul_(dense).add_(core.mul_(density)).mul_(rod.depth)
    cubes[part.box] += drawn.square().mul_(drawn)


def _chords(grid: Grid, rod: Rod) -> tuple[Tensor, Tensor, Tensor]:
    """Return the position along a rod, 0 to 1, and the chords of its shell and its core (H, W)."""
    (x0, y0), (x1, y1), (first, second) = rod.start, rod.end, rod.radius
    dx, dy = x1 - x0, y1 - y0
    length2 = max(dx * dx + dy * dy, 1e-9)
    x, y = grid.u - x0, grid.v - y0
    along = ((x * dx + y * dy) / length2).clamp(0, 1)
    distance2 = (x - along * dx).square() + (y - along * dy).square()
    radius = along * (second - first) + first
    if rod.waist != 1.0:
        radius = radius * (1 - (1 - rod.waist) * (1 - (2 * along - 1).square()).sqrt())
    radius2 = radius.square()
    outer = (radius2 - distance2).clamp(min=0).sqrt().mul_(2)
    inner = (radius2 * (1 - rod.wall) ** 2 - distance2).clamp(min=0).sqrt().mul_(2 * (1 - rod.wall))
    if rod.wall >= 1.0:
        return along, outer, torch.zeros_like(outer)
    return along, outer.sub_(inner), inner
