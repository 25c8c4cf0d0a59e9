"""Synthetic bilateral knee radiographs (phantoms) with exactly known knees.

A planned film is rendered from the attenuation of both legs: scatter, noise, film processing, and
what overlays the legs.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.geometry.split import SIDES
from kneematch.io.radiograph import Radiograph
from kneematch.synthetic.anatomy import plateau_margins
from kneematch.synthetic.film_plan import LATERALITY, PLATEAU_MM, FilmPlan, Point, plan_film
from kneematch.synthetic.leg import COARSE, draw_leg
from kneematch.synthetic.solids import convolve, interpolate, segment_distance

REACH: Final = 1.75  # half width of the strip that a leg is drawn in, in plateau widths
U_SIGN: Final = (1.0, -1.0)  # of x along u: medial is to the right in the left half

# Letters as strokes (x0, y0, x1, y1) in a box 0.7 wide and 1 high.
STROKES: Final = {
    "R": (
        *((0.1, 0.95, 0.1, 0.05), (0.1, 0.05, 0.42, 0.05), (0.42, 0.05, 0.58, 0.15)),
        *((0.58, 0.15, 0.58, 0.36), (0.58, 0.36, 0.42, 0.48), (0.42, 0.48, 0.1, 0.48)),
        (0.36, 0.48, 0.62, 0.95),
    ),
    "L": ((0.12, 0.05, 0.12, 0.95), (0.12, 0.95, 0.6, 0.95)),
}
# Styles of letters: grey of the box (None: no box) and of the letter.
STYLES: Final = ((0.42, 0.9), (0.85, 0.35), (None, 1.0), (0.8, 0.1))


@dataclass(frozen=True, slots=True)
class Knee:
    """Ground truth of one knee; points (x, y) in film pixels, pixel centres at +0.5."""

    side: str  # half of the picture, "left" or "right"
    laterality: str  # the patient's side, "R" or "L"
    plateau_medial: Point  # outermost points of the plateau, osteophytes included
    plateau_lateral: Point
    centre: Point  # midpoint of the two
    rotation_deg: float  # of the line through the two, clockwise positive
    grade: int  # Kellgren-Lawrence, 0..4

    @property
    def plateau_left(self) -> Point:
        """The margin that is further left in the picture."""
        return min(self.plateau_medial, self.plateau_lateral)

    @property
    def plateau_right(self) -> Point:
        """The margin that is further right in the picture."""
        return max(self.plateau_medial, self.plateau_lateral)


@dataclass(frozen=True, slots=True, eq=False)
class Phantom:
    """A synthetic film and its ground truth."""

    radiograph: Radiograph
    knees: tuple[Knee, Knee]  # in the left and the right half of the picture
    negative: bool  # bones are dark, although the photometric interpretation says otherwise
    hardware: str | None  # "plate", "prosthesis", "nail" or None


def phantom(
    seed: int,
    *,
    size: tuple[int, int] | None = None,
    family: int | None = None,
    kind: str | None = None,
) -> Phantom:
    """Return the film of a seed; see `film_plan.plan_film` for the arguments."""
    plan = plan_film(seed, size, family, kind)
    film = Radiograph(
        pixels=render(plan).numpy(),
        mm_per_px=2 * PLATEAU_MM / sum(plan.framing.plateau_px),
        laterality="B",
        view="AP",
        series="phantom",
        polarity_tag="MONOCHROME2",
    )
    return Phantom(film, true_knees(plan), plan.negative, plan.hardware)


def true_knees(plan: FilmPlan) -> tuple[Knee, Knee]:
    """Return the ground truth of a planned film without rendering it."""
    left, right = (_true_knee(plan, side) for side in (0, 1))
    return left, right


def _true_knee(plan: FilmPlan, side: int) -> Knee:
    lateral, medial = (_to_film(plan, side, end) for end in plateau_margins(plan.shapes[side]))
    (x0, y0), (x1, y1) = sorted((lateral, medial))
    return Knee(
        side=SIDES[side],
        laterality=LATERALITY[side],
        plateau_medial=medial,
        plateau_lateral=lateral,
        centre=((x0 + x1) / 2, (y0 + y1) / 2),
        rotation_deg=math.degrees(math.atan2(y1 - y0, x1 - x0)),
        grade=plan.grades[side],
    )


def render(plan: FilmPlan) -> Tensor:
    """Render a film (H, W) whose darkest pixel is 0 and whose brightest is 1."""
    rng = np.random.default_rng([plan.seed, 6])
    # Bytes are quick to draw; blurring turns the uniform noise into nearly Gaussian noise.
    uniform = rng.integers(0, 256, plan.framing.size, dtype=np.uint8)
    noise = torch.from_numpy(uniform).float().mul_(1 / 255).sub_(0.5)
    attenuation = torch.zeros_like(noise)
    for knee in (0, 1):
        _add_leg(attenuation, plan, knee)
    film = _apply_window(_expose(attenuation, noise, plan), plan)
    _draw_overlays(film, plan)
    low, high = film.aminmax()
    film.sub_(low).div_((high - low).clamp(min=1e-6))
    return film.neg_().add_(1) if plan.negative else film


def _to_film(plan: FilmPlan, knee: int, point: Point) -> Point:
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
    leg = draw_leg((rows, columns), (left / px, top / px), plan, knee)
    # Where each pixel of the strip lies in the upright grid, normalised to [-1, 1].
    x = torch.arange(x0, x1)[None, :] + (0.5 - cx)
    y = torch.arange(height)[:, None] + (0.5 - cy)
    du, dv = 2 / columns, 2 / rows
    across = x * (c * sign * du) - left * du - 1 + y * (s * sign * du)
    down = y * (c * dv) - top * dv - 1 + x * (-s * dv)
    points = torch.stack([across, down], dim=-1)  # (height, x1 - x0, 2)
    sampled = F.grid_sample(
        leg[None, None], points[None], padding_mode="border", align_corners=False
    )
    attenuation[:, x0:x1] += sampled[0, 0]


def _expose(attenuation: Tensor, noise: Tensor, plan: FilmPlan) -> Tensor:
    """Turn attenuation into grey: Beer-Lambert, scatter, noise, then film processing (H, W)."""
    exposure, px = plan.exposure, plan.framing.plateau_px[0]
    height, width = attenuation.shape
    light = attenuation.neg().exp_()
    scattered = _blur_small(light, 0.5 * px).add_(0.05).mul_(exposure.scatter)
    grey = light.add_(interpolate(scattered, light.shape)).log_().neg_()
    # Fewer photons give more noise, by a factor of exp(grey / 2); this is its tangent.
    grey.addcmul_(noise, grey + 0.8, value=9 * exposure.noise)
    grey = _blur(grey, exposure.blur * px)
    seam_y, seam_step = exposure.seam
    if seam_step != 0:
        grey[int(seam_y * height) :] += seam_step
    fine = _blur_small(grey, 0.03 * px)
    wide = _blur_small(fine, 0.9 * px * fine.shape[0] / height)
    removed = fine.mul_(exposure.sharpening)
    removed.add_(interpolate(wide, fine.shape), alpha=0.5 * exposure.equalisation)
    grey.mul_(1 + exposure.sharpening).sub_(interpolate(removed, grey.shape))
    across, down = exposure.heel_effect
    grey += torch.linspace(-2 * across, 2 * across, width)[None, :]
    grey += torch.linspace(-2 * down, 2 * down, height)[:, None]
    return grey


def _apply_window(grey: Tensor, plan: FilmPlan) -> Tensor:
    """Map grey (H, W) to [0, 1] between black and white levels, then apply gamma and fog."""
    exposure = plan.exposure
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
    return convolve(convolve(film, taps, 0), taps, 1)


def _blur_small(film: Tensor, sigma: float) -> Tensor:
    """Return a strongly blurred film at reduced size (h, w)."""
    cell = max(int(sigma / 1.5), 1)
    small = F.avg_pool2d(film[None, None], cell, ceil_mode=True, count_include_pad=False)[0, 0]
    return _blur(small, sigma / cell)


def _draw_overlays(film: Tensor, plan: FilmPlan) -> None:
    """Draw discs, unexposed corners, letters and border on a film (H, W), in place."""
    overlays = plan.overlays
    for x, y, radius, grey in overlays.discs:
        crop, dx, dy = _crop_around(film, (x, y), radius + 1)
        _blend(crop, grey, radius - torch.hypot(dx, dy) + 0.5)
    if overlays.round_field is not None:
        x, y, radius, grey = overlays.round_field
        _, dx, dy = _crop_around(film, (x, y), math.hypot(*film.shape))
        beyond = (torch.hypot(dx, dy) - radius) / (0.1 * plan.framing.plateau_px[0])
        _blend(film, grey, beyond.add_(0.5))
    for letter, x, y, height, style in overlays.markers:
        _draw_letter(film, letter, (x, y), height, STYLES[style])
    _draw_border(film, plan)


def _blend(film: Tensor, grey: float, opacity: Tensor) -> None:
    """Paint a film (H, W) with a grey of an opacity (H, W), clipped to [0, 1], in place."""
    film.lerp_(torch.full_like(film, grey), opacity.clamp_(0, 1))


def _crop_around(film: Tensor, centre: Point, reach: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pixels (h, w) within reach, and their x (1, w) and y (h, 1) from the centre."""
    height, width = film.shape
    x0, x1 = max(int(centre[0] - reach), 0), min(int(centre[0] + reach) + 2, width)
    y0, y1 = max(int(centre[1] - reach), 0), min(int(centre[1] + reach) + 2, height)
    crop = film[y0 : max(y1, y0), x0 : max(x1, x0)]
    x = torch.arange(crop.shape[1]) + (x0 + 0.5 - centre[0])
    y = torch.arange(crop.shape[0]) + (y0 + 0.5 - centre[1])
    return crop, x[None, :], y[:, None]


def _draw_letter(
    film: Tensor, letter: str, centre: Point, height: float, style: tuple[float | None, float]
) -> None:
    box_grey, grey = style
    crop, x, y = _crop_around(film, centre, 0.62 * height)
    if box_grey is not None:
        inside = torch.minimum(0.47 * height - x.abs(), 0.6 * height - y.abs())
        _blend(crop, box_grey, inside + 0.5)
    x, y = x / (0.8 * height) + 0.35, y / (0.8 * height) + 0.5
    strokes = torch.stack([segment_distance(x, y, stroke) for stroke in STROKES[letter]])
    _blend(crop, grey, (0.065 - strokes.amin(0)) * 0.8 * height + 0.5)


def _draw_border(film: Tensor, plan: FilmPlan) -> None:
    """Paint what lies outside of the exposed field, which may be tilted."""
    height, width = film.shape
    overlays, (x0, y0, x1, y1) = plan.overlays, plan.framing.field
    if overlays.field_tilt_deg == 0 and overlays.border_grey == 0:
        film[: round(y0)] = 0
        film[round(y1) :] = 0
        film[:, : round(x0)] = 0
        film[:, round(x1) :] = 0
        return
    tilt = math.radians(overlays.field_tilt_deg)
    x = torch.arange(width)[None, :] + 0.5 - (x0 + x1) / 2
    y = torch.arange(height)[:, None] + 0.5 - (y0 + y1) / 2
    across = (x * math.cos(tilt) + y * math.sin(tilt)).abs_().neg_().add_((x1 - x0) / 2)
    down = (y * math.cos(tilt) - x * math.sin(tilt)).abs_().neg_().add_((y1 - y0) / 2)
    outside = torch.minimum(across, down).add_(0.5).clamp_(0, 1).neg_().add_(1)
    _blend(film, overlays.border_grey, outside)
