"""Exact outlines of phantoms, and random crops to learn them from: shapes, poses, exposures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from kneematch.knee.measure import Array, Outlines
from kneematch.models.outlines import JOINT_FRAME, LEG_FRAME, CropFrame
from kneephantoms.anatomy import (
    KneeShape,
    femur_border,
    femur_outline,
    spine_height,
    surface_ends,
    tibia_border,
    tibia_outline,
)
from kneephantoms.film_plan import FilmPlan, Leg, plan_film
from kneephantoms.leg import render_leg
from kneephantoms.rendering import exposed_legs, to_picture

# Readers draw borders where the film is steepest: a little inside the femur, whose edge is thin,
# and on the upper edge of the tibia's bright subchondral line. In plateau widths. The femur's is
# where profiles across it on phantom films are steepest; the tibia's, whose edge is less sharp in
# phantoms, was chosen on the 43 real crops of lab/measure.py.
FEMUR_EDGE: Final = 0.0026
TIBIA_EDGE: Final = 0.0045
# On the flanks of the spines the beam leaves the bone gradually, and the film is steepest below the
# border: by so much from this height of a spine on, and by less on lower parts.
FLANK_EDGE: Final = 0.0083
FLANK_HEIGHT: Final = 0.025
FEMUR_ENDS_V: Final = -0.13  # the sides of the femur are known above it
TIBIA_STARTS_V: Final = 0.04  # and those of the tibia below it
FARTHEST_V: Final = 1.6  # to which true outlines follow the shafts
REACH: Final = 0.4  # how far from a border its displacement is felt, in plateau widths
SMALLEST_GAP: Final = 0.003  # width of the joint space, in plateau widths
# How crops vary
MAX_ROTATION_DEG: Final = 8.0
MAX_SHIFT: Final = 0.09  # in plateau widths
MAX_ZOOM: Final = 0.16  # natural logarithm


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a knee that a map shows, and the crops that are cut from it."""

    width: float  # in plateau widths
    px: int  # pixels per plateau width
    frame: CropFrame

    @property
    def size(self) -> int:
        """Number of rows and of columns."""
        return round(self.width * self.px)


JOINT: Final = Extent(1.6, 240, JOINT_FRAME)
LEG: Final = Extent(3.8, 80, LEG_FRAME)


@dataclass(frozen=True, slots=True, eq=False)
class KneeMaps:
    """N knees, lateral on the left; positions in pixels from a map's top left corner.

    Outlines are NaN where the bone has none.
    """

    extent: Extent
    pixels: Tensor  # (N, S, S), half precision
    femur: Tensor  # (N, S) y of the lower border in each column
    tibia: Tensor  # (N, S) y of the upper border
    sides: Tensor  # (N, 2, S) x of the left and right side in each row
    margins: Tensor  # (N, 2, 2) left and right end (x, y) of the tibial plateau

    def to(self, device: str | torch.device) -> "KneeMaps":
        """Return the maps on a device."""
        names = "pixels", "femur", "tibia", "sides", "margins"
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def render_maps(
    seeds: Sequence[int],
    extent: Extent,
    apply: Callable[[Callable[[int], Any], Sequence[int]], Iterable[Any]] = map,
) -> KneeMaps:
    """Render the left knees of the phantoms of seeds.

    `apply` works as `map`; that of a pool of processes renders several knees at a time.
    """
    knees = apply(partial(_render, extent), seeds)
    parts = (torch.from_numpy(np.stack(part)) for part in zip(*knees, strict=True))
    pixels, femur, tibia, sides, margins = parts
    return KneeMaps(extent, pixels, femur.float(), tibia.float(), sides.float(), margins.float())


def _render(extent: Extent, seed: int) -> tuple[NDArray[Any], ...]:
    plan = plan_film(seed)
    legs = tuple(
        replace(leg, implant="", place=replace(leg.place, plateau_px=float(extent.px)))
        for leg in plan.legs
    )
    corner, size, shape = -extent.width / 2, (extent.size, extent.size), legs[0].shape
    attenuation = render_leg(size, (corner, corner), replace(plan, legs=legs), 0)
    places = corner + (np.arange(extent.size) + 0.5) / extent.px
    outlines = *borders(shape, places), bone_sides(shape, places), np.array(surface_ends(shape))
    return attenuation.astype(np.float16), *((each - corner) * extent.px for each in outlines)


def borders(shape: KneeShape, u: Array) -> tuple[Array, Array]:
    """Return v of the femur's lower border and of the tibia's upper border at u, both (K,)."""
    flank = FLANK_EDGE * (spine_height(shape, u) / FLANK_HEIGHT).clip(0, 1)
    return femur_border(shape, u) - FEMUR_EDGE, tibia_border(shape, u) - TIBIA_EDGE + flank


def bone_sides(shape: KneeShape, v: Array) -> Array:
    """Return u of the lateral and medial side of femur and tibia at v, (2, K); NaN between."""
    sides = np.where(v < 0, femur_outline(shape, v), tibia_outline(shape, v))
    sides[:, (v > FEMUR_ENDS_V) & (v < TIBIA_STARTS_V)] = np.nan
    return sides


def true_outlines(plan: FilmPlan) -> tuple[Outlines, ...]:
    """Return the exact outlines of the knees `phantom.true_knees(plan)`, in their order."""
    return tuple(_true_outlines(plan, leg) for leg in exposed_legs(plan))


def _true_outlines(plan: FilmPlan, leg: Leg) -> Outlines:
    def in_picture(u: Array, v: Array) -> Array:
        return np.array([to_picture(plan, leg, point) for point in zip(u, v, strict=True)])

    def sides(first: float, last: float) -> tuple[Array, Array]:
        v = np.linspace(first, last, 201)
        left, right = [in_picture(side, v) for side in bone_sides(leg.shape, v)][::step]
        return left, right

    (lateral, _), (medial, _) = surface_ends(leg.shape)
    u = np.linspace(lateral, medial, 401)
    femur, tibia = (in_picture(u, line) for line in borders(leg.shape, u))
    step = 1 if tibia[0, 0] < tibia[-1, 0] else -1  # from the picture's left to its right
    return Outlines(
        femur[::step],
        tibia[::step],
        "right" if step == 1 else "left",
        femur_sides=sides(-FARTHEST_V, FEMUR_ENDS_V),
        tibia_sides=sides(TIBIA_STARTS_V, FARTHEST_V),
    )


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCrops:
    """Crops and the true positions in them, in pixels; NaN where there is nothing to learn."""

    crops: Tensor  # (N, H, W)
    borders: Tensor  # (N, 2, W) y of femur and tibia in each column
    sides: Tensor  # (N, 2, H) x of the left and right side in each row
    margins: Tensor  # (N, 2, 2) x, y


class Sampler:
    """Random numbers for a batch, each of shape (N, 1, 1)."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.count, self.generator, self.device = count, generator, generator.device

    def uniform(self, low: float, high: float) -> Tensor:
        """Return numbers between low and high."""
        share = torch.rand(self.count, 1, 1, generator=self.generator, device=self.device)
        return low + (high - low) * share

    def log_uniform(self, low: float, high: float) -> Tensor:
        """Return numbers whose logarithms are uniform."""
        bounds = torch.tensor([low, high]).log().tolist()
        return self.uniform(*bounds).exp()

    def normal(self, deviation: float, size: tuple[int, int] = (1, 1)) -> Tensor:
        """Return Gaussian numbers; with a size, Gaussian noise (N, H, W)."""
        shape = self.count, *size
        return deviation * torch.randn(shape, generator=self.generator, device=self.device)

    def bernoulli(self, probability: float) -> Tensor:
        """Return flags that are True with a probability."""
        return self.uniform(0, 1) < probability


def sample_crops(maps: KneeMaps, rows: Tensor, generator: torch.Generator) -> TrainingCrops:
    """Return one random crop of each knee `rows` (N,); the generator is on the maps' device."""
    random, frame = Sampler(len(rows), generator), maps.extent.frame
    x, y = _pose(random, maps, frame)  # (N, H, W) in pixels of the maps
    femur, tibia, displaced = _reshape(random, maps, rows, x, y)
    picture = _sample(maps.pixels[rows].float(), x, displaced)
    picture = picture + _details(random, maps, x, femur, tibia)
    mirrored = x[:, 0, 0] > x[:, 0, -1]
    sides = _lookup(maps.sides[rows], displaced) - x[:, None]  # (N, 2, H, W)
    sides = torch.where(mirrored[:, None, None, None], -sides.flip(1), sides)
    edges = _crossing(torch.stack([femur, tibia], 1).mT)  # (N, 2, W)
    margins = maps.margins[rows]
    inside = (x > margins[:, 0, 0, None, None]) & (x < margins[:, 1, 0, None, None])
    at = edges.nan_to_num(0).long().clamp(0, frame.size[0] - 1)
    covered = torch.stack([inside, inside], 1).gather(2, at[:, :, None])[:, :, 0]
    ends = find_points(margins, x, y, displaced)
    return TrainingCrops(
        expose(random, picture, frame.px),
        torch.where(covered, edges, torch.nan),
        _crossing(sides),
        torch.where(mirrored[:, None, None], ends.flip(1), ends),
    )


def _pose(random: Sampler, maps: KneeMaps, frame: CropFrame) -> tuple[Tensor, Tensor]:
    """Return where the pixels of rotated, shifted and enlarged crops lie in their maps."""
    px = maps.extent.px
    angle = torch.deg2rad(random.uniform(-MAX_ROTATION_DEG, MAX_ROTATION_DEG))
    step = px / frame.px * random.uniform(-MAX_ZOOM, MAX_ZOOM).exp()
    flip = torch.where(random.bernoulli(0.5), -1.0, 1.0)
    down, across = from_centre(frame.size, angle.device)
    across = across * flip
    middle = maps.extent.size / 2
    shift_x, shift_y = (px * random.uniform(-MAX_SHIFT, MAX_SHIFT) for _ in range(2))
    x = middle + shift_x + step * (angle.cos() * across - angle.sin() * down)
    y = middle + shift_y + step * (angle.sin() * across + angle.cos() * down)
    return x, y


def _reshape(
    random: Sampler, maps: KneeMaps, rows: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the joint another shape by moving both borders up or down in each column.

    Returns:
        Height (N, H, W) of the new femoral border above each pixel, negative inside the femur, the
        same of the tibia, and the y (N, H, W) where the maps show what is at each pixel now.
    """
    px = maps.extent.px
    u = (x - maps.extent.size / 2) / px
    femur, tibia = (_lookup(line[rows][:, None], x)[:, 0] for line in (maps.femur, maps.tibia))
    gap = (tibia - femur) / px
    new_tibia = tibia + px * _lower_tibia(random, u)
    new_femur = new_tibia - px * _new_gap(random, u, gap)
    # Above the femoral border and below the tibial one the displacement fades; between them it is
    # linear, so that the joint space is stretched.
    between = ((y - new_femur) / (new_tibia - new_femur)).clamp(0, 1)
    fade_up = (1 - (new_femur - y) / (REACH * px)).clamp(0, 1)
    fade_down = (1 - (y - new_tibia) / (REACH * px)).clamp(0, 1)
    moved = (new_femur - femur) * fade_up * (1 - between)
    moved = moved + (new_tibia - tibia) * fade_down * between
    return y - new_femur, y - new_tibia, y - moved


def _lower_tibia(random: Sampler, u: Tensor) -> Tensor:
    """Return how much lower than drawn the plateau lies at u (N, H, W), in plateau widths."""
    lower = _bumps(random, u, 4, 0.006) + random.normal(0.015) * u + random.normal(0.02) * u.abs()
    # The eminence between the compartments becomes higher or lower, and its sides steeper.
    left, right = -0.11 + random.normal(0.025), 0.13 + random.normal(0.025)
    steep = random.log_uniform(0.008, 0.05)
    eminence = ((u - left) / steep).sigmoid() - ((u - right) / steep).sigmoid()
    return lower - random.uniform(-0.05, 0.03) * eminence


def _new_gap(random: Sampler, u: Tensor, gap: Tensor) -> Tensor:
    """Return another width of the joint space at u (N, H, W), given the drawn one.

    A compartment in four is narrowed, down to bone on bone, and the notch is higher or lower.
    """
    lateral, medial = (
        torch.where(random.bernoulli(0.25), random.uniform(0.0, 0.7), random.log_uniform(0.6, 1.4))
        for _ in range(2)
    )
    factor = lateral + (medial - lateral) * (u / random.uniform(0.03, 0.12)).sigmoid()
    middle = (-((u - 0.02 - random.normal(0.02)) / random.uniform(0.10, 0.30)).abs().pow(2.5)).exp()
    notch = (-((u - 0.02 - random.normal(0.02)) / random.uniform(0.05, 0.12)).square()).exp()
    gap = gap * (factor + (1 - factor) * middle) + _bumps(random, u, 3, 0.005)
    gap = gap + random.uniform(-0.02, 0.05) * middle + random.uniform(-0.01, 0.06) * notch
    return gap.clamp(min=SMALLEST_GAP)


def _details(random: Sampler, maps: KneeMaps, x: Tensor, femur: Tensor, tibia: Tensor) -> Tensor:
    """Return the attenuation (N, H, W) of cortical lines along both borders and of plateau rims.

    A rim lies above the border wherever the plateau is tilted against the beam, and the bone
    between both is faint. `x`, and the heights of femoral and tibial border above each pixel, are
    (N, H, W) in pixels of the maps.
    """
    px = maps.extent.px
    u, femur, tibia = (x - maps.extent.size / 2) / px, femur / px, tibia / px
    plate = random.uniform(-0.05, 0.15) * (-((femur + 0.008) / 0.008).square()).exp()
    floor = random.uniform(-0.05, 0.20) * (-((tibia - 0.006) / 0.008).square()).exp()
    total = (plate + floor) * (1 + _bumps(random, u, 3, 0.7))
    for side in (-1, 1):
        above = tibia + random.uniform(0.01, 0.08)  # height of the rim above each pixel
        rim = random.uniform(0.0, 0.12) * (-(above / 0.006).square()).exp()
        bone = random.uniform(0.0, 0.10) * (above / 0.004).sigmoid() * (-tibia / 0.004).sigmoid()
        compartment = ((side * u - 0.12) / 0.02).sigmoid()
        total = total + random.bernoulli(0.5) * compartment * (rim + bone)
    return total * ((0.48 - u.abs()) / 0.01).sigmoid()


def _bumps(random: Sampler, u: Tensor, count: int, height: float) -> Tensor:
    """Return a sum of Gaussian bumps at u (N, H, W)."""
    total = torch.zeros_like(u)
    for _ in range(count):
        centre, width = random.uniform(-0.5, 0.5), random.log_uniform(0.03, 0.2)
        total += random.normal(height) * (-((u - centre) / width).square()).exp()
    return total


def _sample(pictures: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Sample pictures (N, S, S) at pixels x, y (N, H, W)."""
    grid = torch.stack([x, y], -1) * (2 / pictures.shape[-1]) - 1
    sampled = F.grid_sample(pictures[:, None], grid, padding_mode="border", align_corners=False)
    return sampled[:, 0]


def _lookup(lines: Tensor, places: Tensor) -> Tensor:
    """Interpolate lines (N, C, S), given at pixel centres, at places (N, H, W): (N, C, H, W)."""
    count, kinds, length = lines.shape
    at = (places - 0.5).clamp(0, length - 1.001)
    first = at.floor().long()
    index = first.reshape(count, 1, -1).expand(-1, kinds, -1)
    low, high = lines.gather(2, index), lines.gather(2, index + 1)
    share = (at - first).reshape(count, 1, -1)
    return (low + share * (high - low)).reshape(count, kinds, *places.shape[1:])


def _crossing(values: Tensor) -> Tensor:
    """Return where values (N, C, L, K) change from negative to positive along the last axis.

    In pixels from the first one's outer edge, (N, C, L); NaN where they do not, or where values
    are missing there. A side that lies to the right is positive first: signs are reversed.
    """
    rising = values * torch.where(values[..., -1:].nan_to_num(1.0) < 0, -1.0, 1.0)
    change = (rising[..., :-1] < 0) & (rising[..., 1:] >= 0)
    first = change.float().argmax(-1, keepdim=True)
    low, high = rising.gather(-1, first), rising.gather(-1, first + 1)
    place = first + 0.5 - low / (high - low)
    return torch.where(change.any(-1, keepdim=True), place, torch.nan)[..., 0]


def find_points(points: Tensor, x: Tensor, y: Tensor, displaced: Tensor) -> Tensor:
    """Return where crops show points (N, K, 2) of the maps, in pixels (N, K, 2).

    The crops' pixels lie at x, y (N, H, W) of the maps and show what is at x, `displaced`.
    """
    axes = [[each[:, i, j] - each[:, 0, 0] for each in (x, y)] for i, j in ((0, 1), (1, 0))]
    found = []
    for point in points.unbind(1):
        off_x, off_y = point[:, :1, None] - x, point[:, 1:, None] - displaced
        nearest = (off_x.square() + off_y.square()).flatten(1).argmin(1, keepdim=True)
        off_x, off_y = (off.flatten(1).gather(1, nearest)[:, 0] for off in (off_x, off_y))
        pixel = nearest[:, 0] % x.shape[-1], nearest[:, 0] // x.shape[-1]
        places = [
            at + 0.5 + (off_x * dx + off_y * dy) / (dx.square() + dy.square())
            for at, (dx, dy) in zip(pixel, axes, strict=True)
        ]
        found.append(torch.stack(places, -1))
    return torch.stack(found, 1)


def expose(random: Sampler, attenuation: Tensor, px: float) -> Tensor:
    """Turn attenuation (N, H, W) into films: objects, scatter, noise, processing, window, gamma.

    `px` are the pixels per plateau width.
    """
    size = attenuation.shape[-2], attenuation.shape[-1]
    attenuation = attenuation * random.uniform(0.5, 1.3) + _clutter(random, size, px)
    light = (-attenuation).exp()
    scatter = blur(light, 0.3 * px).mean((-2, -1), keepdim=True) * random.uniform(0, 0.15)
    grey = -(light + scatter).log()
    narrow, wide = blur(grey, 0.03 * px), blur(grey, 0.2 * px)
    grey = grey + random.uniform(0, 1.5) * (grey - narrow) - random.uniform(0, 0.7) * wide
    noise = random.normal(1.0, size)
    grain = torch.where(random.bernoulli(0.5), noise, blur(noise, 1.0) * 3)
    grey = grey + random.log_uniform(0.002, 0.05) * grain
    soft = torch.where(random.bernoulli(0.5), blur(grey, 0.7), blur(grey, 1.6))
    grey = grey + random.uniform(0, 1) * (soft - grey) + _ramps(random, size, 0.1)
    levels = torch.tensor([0.03, 0.97], device=grey.device)
    low, high = grey[:, ::4, ::4].flatten(1).quantile(levels, dim=1)[..., None, None].unbind()
    black = low + (high - low) * random.uniform(-0.3, 0.3)
    white = high + (high - low) * random.uniform(-0.25, 0.5)
    film = ((grey - black) / (white - black)).clamp(0, 1)
    film = (film + 1e-3).pow(random.log_uniform(0.4, 2.2))
    greys = random.log_uniform(40, 1000)
    return (film * greys).round() / greys


def _ramps(random: Sampler, size: tuple[int, int], deviation: float) -> Tensor:
    """Return brightness (N, H, W) that rises or falls across and down a crop."""
    y, x = from_centre(size, random.device)
    return random.normal(2 * deviation / size[1]) * x + random.normal(2 * deviation / size[0]) * y


def _clutter(random: Sampler, size: tuple[int, int], px: float) -> Tensor:
    """Return faint discs and lines (N, H, W) that are no borders of the joint space."""
    y, x = (places / px for places in from_centre(size, random.device))
    total = torch.zeros(random.count, *size, device=x.device)
    for _ in range(3):
        angle, bend = random.uniform(0, torch.pi), random.normal(1.0)
        along = x * angle.cos() + y * angle.sin() - random.uniform(-0.6, 0.6)
        across = y * angle.cos() - x * angle.sin() - random.uniform(-0.6, 0.6)
        line = -((across - bend * along.square()) / random.log_uniform(0.004, 0.02)).square()
        length = -(along / random.uniform(0.05, 0.4)).square()
        total += random.bernoulli(0.6) * random.normal(0.06) * (line + length).exp()
        radii = random.uniform(0.1, 0.5), random.uniform(0.1, 0.5)
        inside = 1 - (along / radii[0]).square() - (across / radii[1]).square()
        strength = random.bernoulli(0.6) * random.normal(0.08)
        total += strength * (inside / random.log_uniform(0.02, 0.3)).sigmoid()
    return total


def blur(pictures: Tensor, sigma: float) -> Tensor:
    """Blur pictures (N, H, W) with a Gaussian."""
    cell = max(int(sigma / 2), 1)
    small = pictures[:, None]
    if cell > 1:
        small = F.avg_pool2d(small, cell, ceil_mode=True, count_include_pad=False)
    sigma = sigma / cell
    radius = int(3 * sigma + 0.5)
    taps = torch.arange(-radius, radius + 1, device=pictures.device) / sigma
    taps = (-0.5 * taps.square()).softmax(0)
    small = F.pad(small, (radius, radius, radius, radius), mode="replicate")
    small = F.conv2d(F.conv2d(small, taps[None, None, None, :]), taps[None, None, :, None])
    if cell > 1:
        small = F.interpolate(small, pictures.shape[-2:], mode="bilinear")
    return small[:, 0]


def from_centre(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the distances y (1, H, 1) and x (1, 1, W) of pixels from the centre of a crop."""
    y, x = (torch.arange(length, device=device) + 0.5 - length / 2 for length in size)
    return y[None, :, None], x[None, None, :]
