"""Render a planned film: attenuation of both legs, scatter, noise and film processing."""

import math
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.geometry.sampling import sample_at
from kneematch.synthetic.phantom.bones import add_bones, add_hardware
from kneematch.synthetic.phantom.film_plan import Exposure, FilmPlan, Point
from kneematch.synthetic.phantom.overlays import draw_overlays
from kneematch.synthetic.phantom.soft_tissue import add_soft_tissue
from kneematch.synthetic.phantom.solids import Grid, make_grid

REACH: Final = 1.75  # half width of the strip that a leg is drawn in, in plateau widths
COARSE: Final = 4  # film pixels per pixel of soft tissue, which has no finer detail
U_SIGN: Final = (1.0, -1.0)  # of x along u: medial is to the right in the left half


def render(plan: FilmPlan) -> Tensor:
    """Render a film (H, W) whose darkest pixel is 0 and whose brightest is 1."""
    rng = np.random.default_rng([plan.seed, 6])
    # Bytes are quick to draw; blurring turns the uniform noise into nearly Gaussian noise.
    uniform = rng.integers(0, 256, plan.framing.size, dtype=np.uint8)
    noise = torch.from_numpy(uniform).float().mul_(1 / 255).sub_(0.5)
    attenuation = torch.zeros_like(noise)
    for knee in (0, 1):
        _add_leg(attenuation, plan, knee)
    film = _develop(attenuation, noise, plan.exposure, plan.framing.plateau_px[0])
    draw_overlays(film, plan.overlays, plan.framing)
    low, high = film.aminmax()
    film.sub_(low).div_((high - low).clamp(min=1e-6))
    return film.neg_().add_(1) if plan.negative else film


def to_film(plan: FilmPlan, knee: int, point: Point) -> Point:
    """Map a point (u, v) of the left (0) or right (1) knee to film pixels (x, y)."""
    x, y = plan.framing.centres[knee]
    px, angle = plan.framing.plateau_px[knee], math.radians(plan.framing.rotations_deg[knee])
    across, down = U_SIGN[knee] * point[0] * px, point[1] * px
    return (
        x + across * math.cos(angle) - down * math.sin(angle),
        y + across * math.sin(angle) + down * math.cos(angle),
    )


def _add_leg(attenuation: Tensor, plan: FilmPlan, knee: int) -> None:
    """Draw one leg upright on a grid of its own and add it, rotated, to the film (H, W)."""
    height, width = attenuation.shape
    (cx, cy), px = plan.framing.centres[knee], plan.framing.plateau_px[knee]
    angle, sign = math.radians(plan.framing.rotations_deg[knee]), U_SIGN[knee]
    x0, x1 = max(int(cx - px * REACH), 0), min(int(cx + px * REACH), width)
    c, s = math.cos(angle), math.sin(angle)
    # The upright grid covers the corners of the strip, in pixels along u and v.
    corners = np.array([(a, b) for a in (x0 - cx, x1 - cx) for b in (-cy, height - cy)])
    rotated = corners @ np.array([[sign * c, -s], [sign * s, c]])  # (4, 2)
    start, end = rotated.min(axis=0) - 2, rotated.max(axis=0) + 2
    columns, rows = (COARSE * math.ceil(length / COARSE) for length in end - start)
    left, top = start.tolist()
    leg = _draw_leg((rows, columns), (left / px, top / px), plan, knee)
    # Where each pixel of the strip lies in the upright grid, normalised to [-1, 1].
    x = torch.arange(x0, x1)[None, :] + (0.5 - cx)
    y = torch.arange(height)[:, None] + (0.5 - cy)
    points = torch.empty(height, x1 - x0, 2)
    du, dv = 2 / columns, 2 / rows
    torch.add(x * (c * sign * du) - left * du - 1, y * (s * sign * du), out=points[..., 0])
    torch.add(y * (c * dv) - top * dv - 1, x * (-s * dv), out=points[..., 1])
    attenuation[:, x0:x1] += sample_at(leg, points)


def _draw_leg(size: tuple[int, int], origin: Point, plan: FilmPlan, knee: int) -> Tensor:
    """Return the attenuation of one upright leg on a grid whose corner is `origin` (u, v)."""
    rng = np.random.default_rng([plan.seed, 7, knee])
    shape, px = plan.shapes[knee], plan.framing.plateau_px[knee]
    coarse_size = (size[0] // COARSE, size[1] // COARSE)
    coarse = make_grid(coarse_size, origin, px / COARSE)
    soft = torch.zeros(coarse_size)
    (left, _), (right, _) = plan.framing.centres
    texture = _tissue_texture(coarse, rng)
    add_soft_tissue(coarse, soft, shape, texture, midline_u=(right - left) / 2 / px)
    leg = F.interpolate(soft[None, None], size, mode="bilinear")[0, 0]
    grid = make_grid(size, origin, px)
    bones = grid.crop(-1.0, 0.85, -9.0, 9.0)
    if bones is not None:
        texture = _trabecular_texture(bones, shape.trabecular_contrast, rng)
        bone = torch.zeros_like(texture)
        add_bones(bones, bone, shape, texture)
        leg[bones.box].add_(bone, alpha=plan.exposure.bone_contrast)
    if plan.hardware is not None and plan.hardware_knee == knee:
        add_hardware(grid, leg, shape, plan.hardware)
    return leg


def _gaussian_noise(size: tuple[int, int], rng: np.random.Generator) -> Tensor:
    """Return standard normal noise (1, 1, height, width)."""
    return torch.from_numpy(rng.standard_normal((1, 1, *size), dtype=np.float32))


def _tissue_texture(grid: Grid, rng: np.random.Generator) -> Tensor:
    """Return the unevenness (H, W) of soft tissue, streaky along the leg, 1 on average."""
    size, px = (len(grid.rows), len(grid.columns)), grid.plateau_px
    slow = (int(size[0] / px * 3) + 3, int(size[1] / px * 6) + 3)
    fine = (int(size[0] / px * 9) + 3, int(size[1] / px * 40) + 3)
    texture = F.interpolate(_gaussian_noise(slow, rng), fine, mode="bilinear").mul_(0.022)
    texture.add_(_gaussian_noise(fine, rng), alpha=0.010)
    return F.interpolate(texture.add_(1), size, mode="bilinear")[0, 0]


def _trabecular_texture(grid: Grid, contrast: float, rng: np.random.Generator) -> Tensor:
    """Return trabeculae (H, W), mostly along the bone, and slower variation; 1 on average."""
    size, px = (len(grid.rows), len(grid.columns)), grid.plateau_px
    pitch = max(px * 0.007, 1.2)  # pixels between trabeculae
    fine = (int(size[0] / pitch / 1.5) + 2, int(size[1] / pitch) + 2)
    slow = (int(size[0] / px * 8) + 2, int(size[1] / px * 9) + 2)
    strength = min(px * 0.007, 1.0) * contrast  # less where pixels are too coarse
    specks = _gaussian_noise(fine, rng)[0, 0]
    streaks = _convolve(specks, [1.0] * 7, 0).mul_(0.11 * strength)
    texture = F.interpolate(_gaussian_noise(slow, rng), fine, mode="bilinear").mul_(0.08)
    texture += streaks.add_(specks, alpha=0.055 * strength).add_(1)
    return F.interpolate(texture, size, mode="bilinear")[0, 0]


def _develop(attenuation: Tensor, noise: Tensor, exposure: Exposure, px: float) -> Tensor:
    """Turn attenuation into grey: Beer-Lambert, scatter, noise, then film processing (H, W)."""
    height, width = attenuation.shape
    light = attenuation.neg().exp_()
    scattered = _blur_small(light, 0.5 * px).add_(0.05).mul_(exposure.scatter)
    grey = light.add_(_resize(scattered, light)).log_().neg_()
    # Fewer photons give more noise, by a factor of exp(grey / 2); this is its tangent.
    grey.addcmul_(noise, grey + 0.8, value=9 * exposure.noise)
    grey = _blur(grey, exposure.blur * px)
    seam_y, seam_step = exposure.seam
    if seam_step != 0:
        grey[int(seam_y * height) :] += seam_step
    fine = _blur_small(grey, 0.03 * px)
    wide = _blur_small(fine, 0.9 * px * fine.shape[0] / height)
    removed = fine.mul_(exposure.sharpening)
    removed.add_(_resize(wide, fine), alpha=0.5 * exposure.equalisation)
    grey.mul_(1 + exposure.sharpening).sub_(_resize(removed, grey))
    across, down = exposure.heel_effect
    grey += torch.linspace(-2 * across, 2 * across, width)[None, :]
    grey += torch.linspace(-2 * down, 2 * down, height)[:, None]
    return _apply_window(grey, exposure)


def _apply_window(grey: Tensor, exposure: Exposure) -> Tensor:
    """Map grey (H, W) to [0, 1] between black and white levels, then apply gamma and fog."""
    sample = grey[4::8, 4::8].flatten()
    air, bone = torch.quantile(sample, torch.tensor([0.02, 0.96])).tolist()
    black = air + exposure.black_level * (bone - air)
    white = air + exposure.white_level * (bone - air)
    film = grey.sub_(black).mul_(1 / max(white - black, 1e-3)).clamp_(1e-4, 1.0)
    film = film.pow_(exposure.gamma)
    return film.mul_(1 - exposure.fog).add_(exposure.fog) if exposure.fog else film


def _blur(film: Tensor, sigma: float) -> Tensor:
    """Blur a film (H, W) with a Gaussian, truncated at 1.6 sigma for speed."""
    sigma = max(sigma, 0.45)
    radius = math.ceil(1.6 * sigma)
    taps = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
    return _convolve(_convolve(film, taps, 0), taps, 1)


def _convolve(film: Tensor, taps: list[float], axis: int) -> Tensor:
    """Return the weighted mean of neighbours (H, W) along an axis; edges are replicated."""
    radius, length = len(taps) // 2, film.shape[axis]
    pad = (0, 0, radius, radius) if axis == 0 else (radius, radius)
    padded = F.pad(film[None], pad, mode="replicate")[0]
    mean = padded.narrow(axis, 0, length) * (taps[0] / sum(taps))
    for k, tap in enumerate(taps[1:], start=1):
        mean.add_(padded.narrow(axis, k, length), alpha=tap / sum(taps))
    return mean


def _blur_small(film: Tensor, sigma: float) -> Tensor:
    """Return a strongly blurred film at reduced size (h, w)."""
    cell = max(int(sigma / 1.5), 1)
    small = F.avg_pool2d(film[None, None], cell, ceil_mode=True, count_include_pad=False)[0, 0]
    return _blur(small, sigma / cell)


def _resize(small: Tensor, like: Tensor) -> Tensor:
    """Resize a picture (h, w) to the size of another one."""
    return F.interpolate(small[None, None], like.shape, mode="bilinear")[0, 0]
