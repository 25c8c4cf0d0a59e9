"""Pixel grids in a knee's coordinates (u, v), chord lengths of solids on them, and filters.

Bones without a shape model, soft tissue and metal are put together from tapered rods.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from PIL import Image

from kneephantoms.anatomy import Array, Map, Point, Size

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
    def u(self) -> Map:
        """Return the columns in single precision, (1, W)."""
        return self.per_column(self.columns)

    @property
    def v(self) -> Map:
        """Return the rows in single precision, (H, 1)."""
        return self.per_row(self.rows)

    def crop(self, u0: float, u1: float, v0: float, v1: float) -> "Grid":
        """Return the pixels in [u0, u1] x [v0, v1], none where they are fewer than 2 x 2."""
        i0, i1 = np.searchsorted(self.rows, [v0, v1]).tolist()
        j0, j1 = np.searchsorted(self.columns, [u0, u1]).tolist()
        if i1 - i0 < 2 or j1 - j0 < 2:
            i1, j1 = i0, j0
        return Grid(self.columns[j0:j1], self.rows[i0:i1], (slice(i0, i1), slice(j0, j1)))

    def per_row(self, values: Array) -> Map:
        """Return values at the rows (..., H) in single precision, (..., H, 1)."""
        return values.astype(np.float32)[..., None]

    def per_column(self, values: Array) -> Map:
        """Return values at the columns (W,) in single precision, (1, W)."""
        return values.astype(np.float32)[None, :]

    def profile(self, v: tuple[float, ...] | Array, values: tuple[float, ...] | Array) -> Map:
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
    u: Map, sides: Map, depth: Map | float, squareness: Map | float = 0.0, softness: float = 0.0
) -> Map:
    """Return the chord (H, W) through a tube between two outlines (2, H, 1).

    The cross-section is an ellipse of that depth, closer to a rectangle when `squareness` is 1.
    `softness` blunts the steep edge, for grids too coarse to resolve it.
    """
    left, right = sides
    half = np.maximum(0.5 * (right - left), 1e-3)
    t2 = np.square(u * (1 / half) - 0.5 * (left + right) / half)
    inside = 1 - t2 - squareness * (t2 * t2 * t2 - t2)
    if softness > 0:
        # Half the sum of `inside` and `root`, which would lose all digits where they nearly cancel.
        root = np.sqrt(np.square(inside) + softness**2)
        inside = 0.5 * np.where(inside < 0, softness**2 / (root - inside), inside + root)
    chord: Map = np.sqrt(np.maximum(inside, 0)) * depth
    return chord


def rounded_end(height: Map, radius: Map | float) -> Map:
    """Return the fraction of the chord near a rounded end: 0 outside, 1 from a radius inwards.

    `height` (H, W) is the distance from the end, positive inside.
    """
    s = np.clip(height * (1 / radius), 0, 1)
    share: Map = np.sqrt(s * (2 - s))
    return share


def shell_chords(radius2: Map, wall: float) -> tuple[Map, Map]:
    """Return the chords through the shell and through the core of an ellipsoid of thickness 1.

    `radius2` (H, W) is the squared elliptic radius, 1 on the outline.
    """
    inner = (1 - wall) * np.sqrt(np.maximum(1 - radius2 * (1 / (1 - wall) ** 2), 0))
    return np.sqrt(np.maximum(1 - radius2, 0)) - inner, inner


def bright_line(height: Map, above: float, below: float) -> Map:
    """Return a line of brightness 1 at height 0 that decays as a Gaussian on either side.

    Its widths are `above` where the height is negative and `below` where it is positive.
    """
    scaled = np.maximum(height * (-1 / above), height * (1 / below))
    # Beyond 40 the exponential would be denormal, which CPUs compute slowly.
    line: Map = np.exp(-np.minimum(np.square(scaled), 40))
    return line


def segment_distance(x: Map, y: Map, ends: tuple[float, float, float, float]) -> Map:
    """Return the distance (H, W) of points x (1, W), y (H, 1) from the segment x0, y0, x1, y1."""
    x0, y0, x1, y1 = ends
    dx, dy = x1 - x0, y1 - y0
    along = np.clip(((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy), 0, 1)
    return np.hypot(x - x0 - along * dx, y - y0 - along * dy)


def convolve(picture: Map, taps: list[float], axis: int) -> Map:
    """Return the mean of neighbours (H, W) along an axis, with an odd number of symmetric weights.

    Edges are replicated.
    """
    if axis == 1:
        return convolve(picture.T, taps, 0).T
    radius, length, total = len(taps) // 2, len(picture), sum(taps)
    padded = np.pad(picture, [(radius, radius), (0, 0)], mode="edge")
    mean = picture * (taps[radius] / total)
    for start, tap in enumerate(taps[:radius]):
        end = 2 * radius - start
        pair = padded[start : start + length] + padded[end : end + length]
        pair *= tap / total
        mean += pair
    return mean


def interpolate(picture: Map, size: tuple[int, ...]) -> Map:
    """Interpolate a picture (h, w) bilinearly to a size (height, width)."""
    for axis, length in enumerate(size):
        at = (np.arange(length) + 0.5) * (picture.shape[axis] / length) - 0.5
        at = np.clip(at, 0, picture.shape[axis] - 1)
        share = np.expand_dims(at % 1, 1 - axis).astype(np.float32)
        start = np.take(picture, np.floor(at).astype(np.intp), axis)
        step = np.take(picture, np.ceil(at).astype(np.intp), axis)
        step -= start
        step *= share
        picture = start + step
    return picture


def warp(picture: Map, size: Size, to_picture: tuple[float, ...]) -> Map:
    """Sample a picture bilinearly at the pixels of a size (height, width); 0 outside of it.

    `to_picture` (a, b, c, d, e, f) maps a point (x, y) there to the point (ax + by + c,
    dx + ey + f) of the picture; pixel centres are at +0.5.
    """
    image, bilinear = Image.fromarray(picture), Image.Resampling.BILINEAR
    return np.array(image.transform(size[::-1], Image.Transform.AFFINE, to_picture, bilinear))


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


def add_rods(grid: Grid, attenuation: Map, rods: Iterable[Rod], texture: Map | None = None) -> None:
    """Add the rods' attenuation (H, W), in place; texture (H, W) multiplies that of the cores.

    Rods of one layer that overlap are mostly parts of one bone or limb, so that the 3-norm of their
    attenuations is added instead of their sum.
    """
    layers: dict[str, list[Rod]] = {}
    for rod in rods:
        layers.setdefault(rod.material if rod.material in SOFT else "hard", []).append(rod)
    for layer in layers.values():
        cubes = np.zeros_like(attenuation)
        for rod in layer:
            _add_cube(grid, cubes, rod, texture)
        attenuation += np.cbrt(cubes)


def _add_cube(grid: Grid, cubes: Map, rod: Rod, texture: Map | None) -> None:
    """Add the third power of a rod's attenuation (H, W), in place."""
    reach = max(rod.radius)
    (left, right), (top, bottom) = (sorted(ends) for ends in zip(rod.start, rod.end, strict=True))
    part = grid.crop(left - reach, right + reach, top - reach, bottom + reach)
    if not part.u.size:
        return
    along, shell, core = _chords(part, rod)
    dense, middle, ends = MATERIALS[rod.material]
    density = middle + (ends - middle) * np.abs(2 * along - 1) ** 3
    if texture is not None:
        density = density * texture[part.box]
    drawn = (dense * shell + core * density) * rod.depth
    cubes[part.box] += drawn * drawn * drawn


def _chords(grid: Grid, rod: Rod) -> tuple[Map, Map, Map]:
    """Return the position along a rod, 0 to 1, and the chords of its shell and its core (H, W)."""
    (x0, y0), (x1, y1), (first, second) = rod.start, rod.end, rod.radius
    dx, dy = x1 - x0, y1 - y0
    length2 = max(dx * dx + dy * dy, 1e-9)
    x, y = grid.u - x0, grid.v - y0
    along = np.clip((x * dx + y * dy) / length2, 0, 1)
    distance2 = np.square(x - along * dx) + np.square(y - along * dy)
    radius = along * (second - first) + first
    if rod.waist != 1.0:
        radius = radius * (1 - (1 - rod.waist) * np.sqrt(1 - np.square(2 * along - 1)))
    radius2 = np.square(radius)
    outer = 2 * np.sqrt(np.maximum(radius2 - distance2, 0))
    if rod.wall >= 1.0:
        return along, outer, np.zeros_like(outer)
    inner2 = np.maximum(radius2 * (1 - rod.wall) ** 2 - distance2, 0)
    inner = 2 * (1 - rod.wall) * np.sqrt(inner2)
    return along, outer - inner, inner
