"""Random views of phantom knees: shapes of the joint, poses and exposures, drawn on any device."""

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.models.outlines import CropFrame
from kneematch.training.exposure import Draw, expose, expose_again, from_centre
from kneematch.training.phantom_crops import KneeMaps

MAX_ROTATION_DEG: Final = 8.0
MAX_SHIFT: Final = 0.09  # in plateau widths
MAX_ZOOM: Final = 0.16  # natural logarithm
REACH: Final = 0.4  # how far from a border its displacement is felt, in plateau widths
SMALLEST_GAP: Final = 0.003  # of the joint space, in plateau widths


@dataclass(frozen=True, slots=True, eq=False)
class Views:
    """Crops and the true positions in them, in pixels; NaN where there is nothing to learn."""

    crops: Tensor  # (N, H, W)
    borders: Tensor  # (N, 2, W) y of femur and tibia in each column
    sides: Tensor  # (N, 2, H) x of the left and right side in each row
    margins: Tensor  # (N, 2, 2) x, y


def draw_views(
    maps: KneeMaps,
    rows: Tensor,
    frame: CropFrame,
    generator: torch.Generator,
    *,
    real: bool = False,
) -> Views:
    """Draw one view of each knee `rows` (N,).

    Args:
        maps: the knees.
        rows: indices of knees.
        frame: extent of the crops.
        generator: on the maps' device.
        real: the maps hold the grey of real films instead of attenuation; joints keep their shape.
    """
    draw = Draw(len(rows), generator)
    x, y = _pose(draw, maps, frame)  # (N, H, W) in pixels of the maps
    femur, tibia, displaced = _reshape(draw, maps, rows, x, y, amount=0.0 if real else 1.0)
    picture = _sample(maps.attenuation[rows].float(), x, displaced)
    if not real:
        picture = picture + _details(draw, maps, x, femur, tibia)
    mirrored = x[:, 0, 0] > x[:, 0, -1]
    sides = _lookup(maps.sides[rows], displaced) - x[:, None]  # (N, 2, H, W)
    sides = torch.where(mirrored[:, None, None, None], -sides.flip(1), sides)
    edges = _crossing(torch.stack([femur, tibia], 1).mT)  # (N, 2, W)
    margins = maps.margins[rows]
    inside = (x > margins[:, 0, 0, None, None]) & (x < margins[:, 1, 0, None, None])
    at = edges.nan_to_num(0).long().clamp(0, frame.size[0] - 1)
    covered = torch.stack([inside, inside], 1).gather(2, at[:, :, None])[:, :, 0]
    ends = find_points(margins, x, y, displaced)
    return Views(
        expose_again(draw, picture) if real else expose(draw, picture, frame.px),
        torch.where(covered, edges, torch.nan),
        _crossing(sides),
        torch.where(mirrored[:, None, None], ends.flip(1), ends),
    )


def _pose(draw: Draw, maps: KneeMaps, frame: CropFrame) -> tuple[Tensor, Tensor]:
    """Return where the pixels of rotated, shifted and enlarged crops lie in their maps."""
    px = maps.extent.px
    angle = torch.deg2rad(draw.uniform(-MAX_ROTATION_DEG, MAX_ROTATION_DEG))
    step = px / frame.px * draw.uniform(-MAX_ZOOM, MAX_ZOOM).exp()
    flip = torch.where(draw.bernoulli(0.5), -1.0, 1.0)
    down, across = from_centre(frame.size, angle.device)
    across = across * flip
    middle = maps.extent.size / 2
    shift_x, shift_y = (px * draw.uniform(-MAX_SHIFT, MAX_SHIFT) for _ in range(2))
    x = middle + shift_x + step * (angle.cos() * across - angle.sin() * down)
    y = middle + shift_y + step * (angle.sin() * across + angle.cos() * down)
    return x, y


def _reshape(
    draw: Draw, maps: KneeMaps, rows: Tensor, x: Tensor, y: Tensor, amount: float
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
    new_tibia = tibia + amount * px * _lower_tibia(draw, u)
    new_femur = new_tibia - px * gap.lerp(_new_gap(draw, u, gap), amount)
    # Above the femoral border and below the tibial one the displacement fades; between them it is
    # linear, so that the joint space is stretched.
    between = ((y - new_femur) / (new_tibia - new_femur)).clamp(0, 1)
    fade_up = (1 - (new_femur - y) / (REACH * px)).clamp(0, 1)
    fade_down = (1 - (y - new_tibia) / (REACH * px)).clamp(0, 1)
    moved = (new_femur - femur) * fade_up * (1 - between)
    moved = moved + (new_tibia - tibia) * fade_down * between
    return y - new_femur, y - new_tibia, y - moved


def _lower_tibia(draw: Draw, u: Tensor) -> Tensor:
    """Return how much lower than drawn the plateau lies at u (N, H, W), in plateau widths."""
    lower = _bumps(draw, u, 4, 0.006) + draw.normal(0.015) * u + draw.normal(0.02) * u.abs()
    # The eminence between the compartments becomes higher or lower, and its sides steeper.
    left, right = -0.11 + draw.normal(0.025), 0.13 + draw.normal(0.025)
    steep = draw.log_uniform(0.008, 0.05)
    eminence = ((u - left) / steep).sigmoid() - ((u - right) / steep).sigmoid()
    return lower - draw.uniform(-0.05, 0.03) * eminence


def _new_gap(draw: Draw, u: Tensor, gap: Tensor) -> Tensor:
    """Return another width of the joint space at u (N, H, W), given the drawn one.

    A compartment in four is narrowed, down to bone on bone, and the notch is higher or lower.
    """
    lateral, medial = (
        torch.where(draw.bernoulli(0.25), draw.uniform(0.0, 0.7), draw.log_uniform(0.6, 1.4))
        for _ in range(2)
    )
    factor = lateral + (medial - lateral) * (u / draw.uniform(0.03, 0.12)).sigmoid()
    middle = (-((u - 0.02 - draw.normal(0.02)) / draw.uniform(0.10, 0.30)).abs().pow(2.5)).exp()
    notch = (-((u - 0.02 - draw.normal(0.02)) / draw.uniform(0.05, 0.12)).square()).exp()
    gap = gap * (factor + (1 - factor) * middle) + _bumps(draw, u, 3, 0.005)
    gap = gap + draw.uniform(-0.02, 0.05) * middle + draw.uniform(-0.01, 0.06) * notch
    return gap.clamp(min=SMALLEST_GAP)


def _details(draw: Draw, maps: KneeMaps, x: Tensor, femur: Tensor, tibia: Tensor) -> Tensor:
    """Return the attenuation (N, H, W) of cortical lines along both borders and of plateau rims.

    A rim lies above the border wherever the plateau is tilted against the beam, and the bone
    between both is faint.

    Args:
        draw: random numbers.
        maps: the knees.
        x: (N, H, W) in pixels of the maps.
        femur: (N, H, W) height of the femoral border above each pixel, in pixels of the maps.
        tibia: the same of the tibial border.
    """
    px = maps.extent.px
    u, femur, tibia = (x - maps.extent.size / 2) / px, femur / px, tibia / px
    plate = draw.uniform(-0.05, 0.15) * (-((femur + 0.008) / 0.008).square()).exp()
    floor = draw.uniform(-0.05, 0.20) * (-((tibia - 0.006) / 0.008).square()).exp()
    total = (plate + floor) * (1 + _bumps(draw, u, 3, 0.7))
    for side in (-1, 1):
        above = tibia + draw.uniform(0.01, 0.08)  # height of the rim above each pixel
        rim = draw.uniform(0.0, 0.12) * (-(above / 0.006).square()).exp()
        bone = draw.uniform(0.0, 0.10) * (above / 0.004).sigmoid() * (-tibia / 0.004).sigmoid()
        compartment = ((side * u - 0.12) / 0.02).sigmoid()
        total = total + draw.bernoulli(0.5) * compartment * (rim + bone)
    return total * ((0.48 - u.abs()) / 0.01).sigmoid()


def _bumps(draw: Draw, u: Tensor, count: int, height: float) -> Tensor:
    """Return a sum of Gaussian bumps at u (N, H, W)."""
    total = torch.zeros_like(u)
    for _ in range(count):
        centre, width = draw.uniform(-0.5, 0.5), draw.log_uniform(0.03, 0.2)
        total += draw.normal(height) * (-((u - centre) / width).square()).exp()
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

    Args:
        points: (x, y) in pixels of the maps.
        x: (N, H, W) of each pixel of the crops in pixels of the maps.
        y: the same.
        displaced: y, changed by moving the borders, which hardly bends a pixel.
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
