"""From a plan to grey: attenuation of both legs, scatter, noise and the response of the film."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.geometry.sampling import sample_at
from kneematch.synthetic.phantom.bones import add_bones
from kneematch.synthetic.phantom.film import Exposure, Plan
from kneematch.synthetic.phantom.hardware import add_hardware
from kneematch.synthetic.phantom.overlay import lay_over
from kneematch.synthetic.phantom.shapes import Canvas, make_canvas
from kneematch.synthetic.phantom.tissue import add_soft_tissue

REACH = 1.75  # how far a leg may extend from the knee's middle, in plateau widths
COARSE = 4  # film pixels in one of soft tissue, which has no finer detail
MIRROR = (1.0, -1.0)  # u grows to the picture's right in its left half


def render(plan: Plan, device: torch.device | str = "cpu") -> Tensor:
    """Render a film (H, W), the darkest pixel 0 and the brightest 1."""
    rng = np.random.default_rng([plan.seed, 6])
    # Drawn on the CPU, so that a film is the same on every device; bytes are quick to draw,
    # and the blur to come makes a bell of their even chances.
    noise = rng.integers(0, 256, plan.framing.size, dtype=np.uint8)
    white = torch.from_numpy(noise).to(device).float().mul_(1 / 255).sub_(0.5)
    attenuation = torch.zeros_like(white)
    for knee in (0, 1):
        _add_leg(attenuation, plan, knee)
    film = _develop(attenuation, white, plan.exposure, plan.framing.plateau_px[0])
    lay_over(film, plan.extras, plan.framing)
    low, high = film.aminmax()
    film.sub_(low).div_((high - low).clamp(min=1e-6))
    return film.neg_().add_(1) if plan.negative else film


def to_film(plan: Plan, knee: int, point: tuple[float, float]) -> tuple[float, float]:
    """Map a point (u, v) of a knee's frame to film pixels (x, y)."""
    x, y = plan.framing.centres[knee]
    px, turn = plan.framing.plateau_px[knee], math.radians(plan.framing.rotations_deg[knee])
    across, down = MIRROR[knee] * point[0] * px, point[1] * px
    return (
        x + across * math.cos(turn) - down * math.sin(turn),
        y + across * math.sin(turn) + down * math.cos(turn),
    )


def _add_leg(attenuation: Tensor, plan: Plan, knee: int) -> None:
    """Draw one leg upright on a canvas of its own, then turn it onto the film, in place."""
    height, width = attenuation.shape
    (cx, cy), px = plan.framing.centres[knee], plan.framing.plateau_px[knee]
    turn, mirror = math.radians(plan.framing.rotations_deg[knee]), MIRROR[knee]
    x0, x1 = max(int(cx - px * REACH), 0), min(int(cx + px * REACH), width)
    c, s = math.cos(turn), math.sin(turn)
    x = torch.arange(x0, x1, device=attenuation.device)[None, :] + (0.5 - cx)
    y = torch.arange(height, device=attenuation.device)[:, None] + (0.5 - cy)
    corners = np.array([(a, b) for a in (x0 - cx, x1 - cx) for b in (-cy, height - cy)])
    turned = corners @ np.array([[mirror * c, -s], [mirror * s, c]])  # (4, 2): u and v, in pixels
    start, end = turned.min(axis=0) - 2, turned.max(axis=0) + 2
    columns, rows = (COARSE * math.ceil(length / COARSE) for length in end - start)
    left, top = start.tolist()
    leg = _leg((rows, columns), (left / px, top / px), plan, knee, attenuation.device)
    places = torch.empty(height, x1 - x0, 2, device=attenuation.device)
    across, down = 2 / columns, 2 / rows
    torch.add(
        x * (c * mirror * across) - left * across - 1,
        y * (s * mirror * across),
        out=places[..., 0],
    )
    torch.add(y * (c * down) - top * down - 1, x * (-s * down), out=places[..., 1])
    attenuation[:, x0:x1] += sample_at(leg, places)


def _leg(
    size: tuple[int, int],
    origin: tuple[float, float],
    plan: Plan,
    knee: int,
    device: torch.device,
) -> Tensor:
    """Attenuation of one leg, upright, on a canvas of a size whose corner is `origin` (u, v)."""
    rng = np.random.default_rng([plan.seed, 7, knee])
    shape, px = plan.shapes[knee], plan.framing.plateau_px[knee]
    small = (size[0] // COARSE, size[1] // COARSE)
    coarse = make_canvas(small, origin, px / COARSE, device)
    soft = torch.zeros(small, device=device)
    (left, _), (right, _) = plan.framing.centres
    room = (right - left) / 2 / px
    add_soft_tissue(coarse, soft, shape, _cloud(small, coarse, rng), room)
    leg = F.interpolate(soft[None, None], size, mode="bilinear")[0, 0]
    canvas = make_canvas(size, origin, px, device)
    bones = canvas.part(-1.0, 0.85, -9.0, 9.0)
    if bones is not None:
        grain = _grain(bones, float(shape.texture[0]), rng)
        bone = torch.zeros_like(grain)
        add_bones(bones, bone, shape, grain)
        leg[bones.box].add_(bone, alpha=plan.exposure.contrast)
    if plan.hardware is not None and plan.hardware_knee == knee:
        add_hardware(canvas, leg, shape, plan.hardware)
    return leg


def _noise(shape: tuple[int, int], canvas: Canvas, rng: np.random.Generator) -> Tensor:
    values = rng.standard_normal((1, 1, *shape), dtype=np.float32)
    return torch.from_numpy(values).to(canvas.u.device)


def _cloud(size: tuple[int, int], canvas: Canvas, rng: np.random.Generator) -> Tensor:
    """Unevenness of soft tissue, streaky along the leg, about 1."""
    slow = (int(size[0] / canvas.px * 3) + 3, int(size[1] / canvas.px * 6) + 3)
    fine = (int(size[0] / canvas.px * 9) + 3, int(size[1] / canvas.px * 40) + 3)
    cloud = F.interpolate(_noise(slow, canvas, rng), fine, mode="bilinear").mul_(0.022)
    cloud.add_(_noise(fine, canvas, rng), alpha=0.010)
    return F.interpolate(cloud.add_(1), size, mode="bilinear")[0, 0]


def _grain(canvas: Canvas, strength: float, rng: np.random.Generator) -> Tensor:
    """Trabecular texture, mostly along the bone, over slower blotches, about 1."""
    size = (len(canvas.rows), len(canvas.columns))
    pitch = max(canvas.px * 0.007, 1.2)  # pixels between trabeculae
    fine = (int(size[0] / pitch / 1.5) + 2, int(size[1] / pitch) + 2)
    slow = (int(size[0] / canvas.px * 8) + 2, int(size[1] / canvas.px * 9) + 2)
    fade = min(canvas.px * 0.007, 1.0) * strength  # less where pixels are too coarse
    speck = _noise(fine, canvas, rng)[0, 0]
    streak = _convolve(speck, [1.0] * 7, 0).mul_(0.11 * fade)
    grain = F.interpolate(_noise(slow, canvas, rng), fine, mode="bilinear").mul_(0.08)
    grain += streak.add_(speck, alpha=0.055 * fade).add_(1)
    return F.interpolate(grain, size, mode="bilinear")[0, 0]


def _develop(attenuation: Tensor, white: Tensor, exposure: Exposure, px: float) -> Tensor:
    """Turn attenuation into grey: Beer-Lambert, scatter, noise, then the film's response."""
    height, width = attenuation.shape
    light = attenuation.neg().exp_()
    stray = _pooled(light, 0.5 * px).add_(0.05).mul_(exposure.scatter)
    grey = light.add_(_enlarged(stray, light)).log_().neg_()
    # The fewer photons, the more noise: exp(grey / 2) by rights, of which this is the tangent.
    grey.addcmul_(white, grey + 0.8, value=9 * exposure.noise)
    grey = _soften(grey, exposure.blur * px)
    seam, step = exposure.seam
    if step != 0:
        grey[int(seam * height) :] += step
    fine = _pooled(grey, 0.03 * px)
    wide = _pooled(fine, 0.9 * px * fine.shape[0] / height)
    base = fine.mul_(exposure.sharpen).add_(_enlarged(wide, fine), alpha=0.5 * exposure.equalise)
    grey.mul_(1 + exposure.sharpen).sub_(_enlarged(base, grey))
    across, down = exposure.heel
    grey += torch.linspace(-2 * across, 2 * across, width, device=grey.device)[None, :]
    grey += torch.linspace(-2 * down, 2 * down, height, device=grey.device)[:, None]
    return _expose(grey, exposure)


def _expose(grey: Tensor, exposure: Exposure) -> Tensor:
    """Set black and white as a film's processing does, by the range that the picture has."""
    sample = grey[4::8, 4::8].flatten()
    air, bone = torch.quantile(sample, torch.tensor([0.02, 0.96], device=grey.device)).tolist()
    black = air + exposure.foot * (bone - air)
    white = air + exposure.head * (bone - air)
    film = grey.sub_(black).mul_(1 / max(white - black, 1e-3)).clamp_(1e-4, 1.0)
    film = film.pow_(exposure.gamma)
    return film.mul_(1 - exposure.haze).add_(exposure.haze) if exposure.haze else film


def _soften(film: Tensor, sigma: float) -> Tensor:
    """Blur a film (H, W) by a bell, cut where few taps hold it."""
    sigma = max(sigma, 0.45)
    radius = math.ceil(1.6 * sigma)
    taps = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
    return _convolve(_convolve(film, taps, 0), taps, 1)


def _convolve(film: Tensor, taps: list[float], axis: int) -> Tensor:
    """Weighted mean of neighbours along an axis; the border repeats its last pixel."""
    radius, length = len(taps) // 2, film.shape[axis]
    pad = (0, 0, radius, radius) if axis == 0 else (radius, radius)
    padded = F.pad(film[None], pad, mode="replicate")[0]
    mean = padded.narrow(axis, 0, length) * (taps[0] / sum(taps))
    for k, tap in enumerate(taps[1:], start=1):
        mean.add_(padded.narrow(axis, k, length), alpha=tap / sum(taps))
    return mean


def _pooled(film: Tensor, sigma: float) -> Tensor:
    """Blur a film widely, leaving it small."""
    cell = max(int(sigma / 1.5), 1)
    small = F.avg_pool2d(film[None, None], cell, ceil_mode=True, count_include_pad=False)[0, 0]
    return _soften(small, sigma / cell)


def _enlarged(small: Tensor, like: Tensor) -> Tensor:
    """Resize a picture (h, w) to the size of another one."""
    return F.interpolate(small[None, None], like.shape, mode="bilinear")[0, 0]
