"""Random views of knees with metal and growth plates, put together from legs and hardware."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.models.findings import COLUMNS, ROWS, STRIDE
from kneematch.models.locator import VIEW_SIZE
from phantom_hardware import PX, SIZE, draw_beside, draw_hardware, render_bones, render_other
from phantom_outlines import Sampler, blur, expose, from_centre

METAL_SHARE, CHILD_SHARE = 0.45, 0.35  # share of views with metal, with growth plates
OTHER_SHARE = 0.08  # share of views of other parts of the body
COARSER = 8  # groups of a batch, each of another resolution
LEAST_PX = 60  # visible metal that counts, in pixels of a view; less is left out
CELL_PX = 8  # and in a cell
CLEAR_METAL, CLEAR_PLATES = 0.07, 0.03  # contrast to what surrounds them; less is left out


@dataclass(frozen=True, eq=False)
class Parts:
    """What views are put together from, maps (N, 500, 320) and views (N, 400, 250)."""

    soft: Tensor
    bones: Tensor
    metal: Tensor  # masks, bytes
    beside: Tensor  # the same of things beside the bones
    others: Tensor  # views of other parts of the body, bytes

    def rows(self, name: str, random: Sampler) -> Tensor:
        """Draw indices (B,) of maps."""
        high, generator = len(getattr(self, name)), random.generator
        return torch.randint(high, (random.count,), generator=generator, device=generator.device)

    def draw(self, name: str, rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Sample maps of random knees at places x, y (B, H, W), in pixels of a map."""
        chosen = getattr(self, name)[rows].float()[:, None]
        grid = torch.stack([x * (2 / SIZE[1]) - 1, y * (2 / SIZE[0]) - 1], -1)
        return F.grid_sample(chosen, grid, align_corners=False, padding_mode="border")[:, 0]


def render_parts(count: int, workers: int, device: str) -> Parts:
    """Render legs, hardware and other things in worker processes."""
    with ProcessPoolExecutor(
        workers, get_context("fork"), torch.set_num_threads, initargs=(1,)
    ) as pool:
        soft, bones = zip(*pool.map(render_bones, range(count), chunksize=8), strict=True)
        metal = list(pool.map(draw_hardware, range(2 * count), chunksize=16))
        beside = list(pool.map(draw_beside, range(count), chunksize=16))
        others = list(pool.map(render_other, range(count // 4), chunksize=4))
    maps = (np.stack(each) for each in (soft, bones, metal, beside, others))
    return Parts(*(torch.from_numpy(each).to(device) for each in maps))


@dataclass(frozen=True, eq=False)
class Batch:
    """Views and what they show; NaN where it is not clear."""

    views: Tensor  # (B, 400, 250)
    cells: Tensor  # (B, 2, 19, 14)
    whole: Tensor  # (B, 2)


def sample_batch(parts: Parts, count: int, generator: torch.Generator) -> Batch:
    """Return random views."""
    random = Sampler(count, generator)
    child = random.bernoulli(CHILD_SHARE)
    has_metal = random.bernoulli(METAL_SHARE) & (~child | random.bernoulli(0.1))
    x, y = sample_pose(random, child)
    leg, plates = draw_leg(random, parts, x, y, child)
    mask = has_metal * draw_metal(random, parts, x, y)
    uneven = 1 + random.uniform(0, 0.4) * smooth_noise(random, 12)
    leg = leg + mask * random.log_uniform(0.8, 5.0) * uneven.clamp(0.4, 1.6)
    beside = random.bernoulli(0.4) * parts.draw("beside", parts.rows("beside", random), x, y) / 255
    painted = random.bernoulli(0.5)
    views = expose(random, leg + ~painted * beside * random.log_uniform(0.5, 4.0), PX)
    # Some films are made for the metal, so that all else is dark.
    dim = torch.where(random.bernoulli(0.4), random.log_uniform(0.2, 0.9), 1.0)
    views = torch.lerp(dim * views, random.uniform(0.85, 1.0), blur(mask, 0.8) * (dim < 1))
    views = torch.where(painted, torch.lerp(views, random.uniform(0.7, 1.0), beside), views)
    other = random.bernoulli(OTHER_SHARE)
    views = torch.where(other, parts.others[parts.rows("others", random)].float() / 255, views)
    child, has_metal, mask, plates = (each * ~other for each in (child, has_metal, mask, plates))
    views, (mask, plates) = degrade(random, views, (mask, plates))
    metal = targets(mask, has_metal[:, 0, 0] > 0, contrast(views, mask) > CLEAR_METAL)
    growing = targets(plates, child[:, 0, 0] > 0, contrast(views, plates) > CLEAR_PLATES)
    return Batch(views, *(torch.stack(each, 1) for each in zip(metal, growing, strict=True)))


def draw_leg(
    random: Sampler, parts: Parts, x: Tensor, y: Tensor, child: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the attenuation of legs at x, y (B, H, W), and the growth plates of children."""
    legs = parts.rows("soft", random)
    paler = torch.where(child, random.uniform(0.4, 1.0), 1.0)
    bones = parts.draw("bones", legs, x, y) * random.uniform(0.6, 1.4) * paler
    soft = parts.draw("soft", legs, x, y) * random.uniform(0.4, 1.2)
    bones, plates = grow(random, bones, (x - SIZE[1] / 2) / PX, (y - SIZE[0] / 2) / PX, child)
    bones = fracture(random, bones, x / PX, y / PX)
    for cells in (20, 50):
        dense = random.bernoulli(0.3) * random.uniform(0, 0.6) * smooth_noise(random, cells)
        bones = bones * (1 + dense.clamp(min=0))
    # Bright lines under the joint's surfaces look like the edges of metal.
    lines = random.bernoulli(0.5) * random.uniform(0.0, 4.0)
    bones = bones + lines * (bones - blur(bones, 4.0)).clamp(min=0)
    legs, away = parts.rows("soft", random), random.uniform(1.3, 2.6) * PX
    across = SIZE[1] - x + torch.where(random.bernoulli(0.5), away, -away)
    second = random.bernoulli(0.25) & (across > 0) & (across < SIZE[1])
    other = parts.draw("soft", legs, across, y) + parts.draw("bones", legs, across, y)
    return soft + bones + second * other, plates


def draw_metal(random: Sampler, parts: Parts, x: Tensor, y: Tensor) -> Tensor:
    """Return masks of hardware at x, y (B, H, W), moved a little."""
    zoom, flip = random.uniform(-0.1, 0.1).exp(), torch.where(random.bernoulli(0.5), -1.0, 1.0)
    x = SIZE[1] / 2 + flip * zoom * (x - SIZE[1] / 2) + random.normal(3)
    y = SIZE[0] / 2 + zoom * (y - SIZE[0] / 2) + random.normal(3)
    return parts.draw("metal", parts.rows("metal", random), x, y) / 255


def sample_pose(random: Sampler, child: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the pixels of views lie in the maps, (B, 400, 250); a child may be larger."""
    down, across = from_centre(VIEW_SIZE, random.device)
    angle = torch.deg2rad(random.normal(4))
    far = random.bernoulli(0.15)
    zoom = torch.where(far, random.uniform(-0.35, 0.35), random.normal(0.07))
    step = (zoom + child * random.uniform(-0.2, 0.2)).exp()
    shift = torch.where(far, 0.2 * PX, 0.05 * PX)
    across = across * torch.where(random.bernoulli(0.5), -1.0, 1.0)
    x = SIZE[1] / 2 + random.normal(1) * shift + step * (angle.cos() * across - angle.sin() * down)
    y = SIZE[0] / 2 + random.normal(1) * shift + step * (angle.sin() * across + angle.cos() * down)
    return x, y


def grow(
    random: Sampler, bones: Tensor, u: Tensor, v: Tensor, child: Tensor
) -> tuple[Tensor, Tensor]:
    """Open the growth plates of children; return their bones and the plates (B, H, W).

    The epiphyses of young children are small and round.
    """
    young = random.bernoulli(0.7) * random.uniform(0, 1)
    dark, edge = random.uniform(0.55, 1.0), random.uniform(0.0, 0.6)
    wide = random.log_uniform(0.012, 0.035) * (1 + 1.5 * young)
    made, plates = bones, torch.zeros_like(bones)
    middle = random.normal(0.03)
    for at, reach in ((random.uniform(-0.6, -0.27), 1), (random.uniform(0.11, 0.4), -1)):
        bend, period, phase = random.normal(0.025), random.uniform(4, 14), random.uniform(0, 6.3)
        arch = random.normal(0.15) * u.square() + random.normal(0.06) * u
        height = reach * (v - at + arch + bend * (u * period + phase).cos())  # towards the joint
        band = (-(height / wide).square().square()).exp()
        lines = (-(((height.abs() - 1.5 * wide) / 0.014).square())).exp()
        end = -at.abs() * reach if reach > 0 else at
        half = 0.5 * end.abs() - wide * 0.5 + 0.02
        radius = ((u - middle) / (0.56 - 0.3 * young)).abs().pow(3) + (
            (height - wide - half) / (half * (1.15 - 0.4 * young))
        ).abs().pow(3)
        inside = ((1 - radius) * 12).sigmoid()
        rim = (-(((radius - 0.95) / 0.12).square())).exp() * 0.25
        nearer = (height > wide) & (reach * v < (0.0 if reach > 0 else 0.1))
        shrunk = torch.where(
            nearer & (young > 0), made * inside * (1 + rim) + 0.1 * rim * young, made
        )
        plates = plates + band * (bones > 0.12) * (u.abs() < 0.6 - 0.2 * young)
        made = shrunk * (1 - dark * band + edge * lines)
    return torch.where(child, made, bones), plates.clamp(max=1) * child


def fracture(random: Sampler, bones: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Draw a dark, oblique line through the bones of some legs (B, H, W)."""
    angle = random.uniform(0.5, 2.6)
    off = (x - SIZE[1] / PX * random.uniform(0.3, 0.7)) * angle.sin() + (
        y - SIZE[0] / PX * random.uniform(0.3, 0.7)
    ) * angle.cos()
    off = off + 0.03 * smooth_noise(random, 4)
    line = (-((off / random.log_uniform(0.008, 0.04)).square())).exp()
    return bones * (1 - random.bernoulli(0.2) * random.uniform(0.2, 0.9) * line)


def smooth_noise(random: Sampler, cells: int) -> Tensor:
    """Return noise (B, 400, 250) of that many cells across, of deviation 1 or less."""
    coarse = random.normal(1.0, (cells * 8 // 5, cells))[:, None]
    return F.interpolate(coarse, VIEW_SIZE, mode="bicubic")[:, 0]


def contrast(views: Tensor, mask: Tensor) -> Tensor:
    """Return by how much the brightness of masks and what lies around them differ, (B,)."""
    inner, ring = (mask > 0.6).float(), ((blur(mask, 5.0) > 0.05) & (mask < 0.02)).float()
    inner_mean, ring_mean = (
        (views * each).sum((-2, -1)) / each.sum((-2, -1)).clamp(min=1) for each in (inner, ring)
    )
    return (inner_mean - ring_mean).abs()


def degrade(
    random: Sampler, views: Tensor, masks: tuple[Tensor, ...]
) -> tuple[Tensor, list[Tensor]]:
    """Process, saturate, reduce, frame, cut and invert some of the views (B, 400, 250)."""
    local = views - blur(views, 24.0)
    even = local / (blur(local.square(), 24.0).sqrt() + 0.1)
    views = torch.where(
        random.bernoulli(0.25), torch.lerp(views, 0.5 + 0.3 * even, random.uniform(0.2, 1.0)), views
    )
    sharper = random.bernoulli(0.3) * random.uniform(0.0, 2.5)
    views = views + sharper * (views - blur(views, 2.5))
    views = torch.where(random.bernoulli(0.1), blur(views, 4.0), views)
    gain = torch.where(random.bernoulli(0.3), random.uniform(1.0, 2.2), 1.0)
    toe = torch.where(random.bernoulli(0.2), random.uniform(0.0, 0.4), 0.0)
    views = ((views - toe) * gain).clamp(0, 1)
    pieces = list(views.tensor_split(COARSER))
    for k, factor in enumerate(random.normal(0.5)[:COARSER].flatten().abs().tolist()):
        size = [round(side * max(0.25, 1 - factor)) for side in VIEW_SIZE]
        small = F.interpolate(pieces[k][:, None], size, mode="bilinear", antialias=True)
        pieces[k] = F.interpolate(small, VIEW_SIZE, mode="bicubic")[:, 0]
    views = torch.cat(pieces)
    for continued in (False, True):  # unexposed borders, then edges of the film
        views, masks = frame(random, views, masks, continued=continued)
    views = views + random.log_uniform(0.001, 0.02) * random.normal(1.0, VIEW_SIZE)
    return torch.where(random.bernoulli(0.08), 1 - views, views), list(masks)


def frame(
    random: Sampler, views: Tensor, masks: tuple[Tensor, ...], *, continued: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Keep a rectangle of some views; what lies beyond is even, or the edge is continued."""
    (height, width), device = VIEW_SIZE, views.device
    top, bottom, left, right = (
        random.bernoulli(0.33) * random.uniform(0.0, most) for most in (0.44, 0.44, 0.22, 0.22)
    )
    y, x = torch.arange(height, device=device)[:, None], torch.arange(width, device=device)
    near_y = torch.minimum(torch.maximum(y, height * top), height * (1 - bottom) - 1).long()
    near_x = torch.minimum(torch.maximum(x, width * left), width * (1 - right) - 1).long()
    outside = (near_y != y) | (near_x != x)
    if continued:
        index = (near_y * width + near_x).flatten(1)
        views = views.flatten(1).gather(1, index).reshape(views.shape)
    else:
        views = torch.where(outside, random.bernoulli(0.25) * random.uniform(0, 1.0), views)
    return views, tuple(mask * ~outside for mask in masks)


def targets(masks: Tensor, present: Tensor, clear: Tensor) -> tuple[Tensor, Tensor]:
    """Return what cells (B, 19, 14) and views (B,) show, given masks (B, 400, 250)."""
    seen = (masks[:, ROWS, COLUMNS] > 0.5).float()
    pixels = F.avg_pool2d(seen[:, None], STRIDE)[:, 0] * STRIDE**2
    near = F.max_pool2d(pixels[:, None], 3, stride=1, padding=1)[:, 0] > 0
    cells = torch.where(pixels >= CELL_PX, 1.0, torch.where(near, torch.nan, 0.0))
    total = pixels.sum((-2, -1))
    whole = torch.where(total >= LEAST_PX, 1.0, torch.where(present, torch.nan, 0.0))
    doubtful = present & ~clear
    cells = torch.where(doubtful[:, None, None], torch.nan, cells)
    return cells, torch.where(doubtful, torch.nan, whole)
