"""Tapered rods, from which bones without a shape model, soft tissue and metal are put together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kneematch.synthetic.solids import Grid

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


@dataclass(frozen=True, slots=True)
class Rod:
    """A straight rod with round ends; it may be flat and wider at the ends than between."""

    start: tuple[float, float]
    end: tuple[float, float]
    radius: tuple[float, float]  # at the start and at the end
    waist: float = 1.0  # radius half way, over the mean of both ends
    wall: float = 0.2  # thickness of the shell over the radius
    material: str = "bone"
    depth: float = 1.0  # chord along the beam over that of a round rod


Points = Sequence[tuple[float, float]]


def chain(points: Points, radius: float, **options: float | str) -> list[Rod]:
    """Return rods along a polyline."""
    return [
        Rod(start, end, (radius, radius), **options)  # type: ignore[arg-type]
        for start, end in pairwise(points)
    ]


def place_rods(
    rods: Iterable[Rod], centre: tuple[float, float], angle: float, scale: float, mirror: bool
) -> list[Rod]:
    """Scale, mirror in x, rotate clockwise by an angle in radians, and shift rods."""
    c, s = scale * np.cos(angle), scale * np.sin(angle)

    def move(point: tuple[float, float]) -> tuple[float, float]:
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


def _axis(grid: Grid, rod: Rod) -> tuple[Tensor, Tensor]:
    """Return the position along the axis, 0 to 1, and the squared distance from it, (H, W)."""
    (x0, y0), (x1, y1) = rod.start, rod.end
    dx, dy = x1 - x0, y1 - y0
    length2 = max(dx * dx + dy * dy, 1e-9)
    x, y = grid.u - x0, grid.v - y0
    along = ((x * dx + y * dy) / length2).clamp(0, 1)
    return along, (x - along * dx).square() + (y - along * dy).square()


def _chords(grid: Grid, rod: Rod) -> tuple[Tensor, Tensor, Tensor]:
    """Return the position along a rod, 0 to 1, and the chords of its shell and its core (H, W)."""
    along, distance2 = _axis(grid, rod)
    first, second = rod.radius
    radius = along * (second - first) + first
    if rod.waist != 1.0:
        radius = radius * (1 - (1 - rod.waist) * (1 - (2 * along - 1).square()).sqrt())
    radius2 = radius.square()
    outer = (radius2 - distance2).clamp(min=0).sqrt().mul_(2)
    inner = (radius2 * (1 - rod.wall) ** 2 - distance2).clamp(min=0).sqrt().mul_(2 * (1 - rod.wall))
    if rod.wall >= 1.0:
        return along, outer, torch.zeros_like(outer)
    return along, outer.sub_(inner), inner
