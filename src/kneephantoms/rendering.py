"""Render a planned film: attenuation of the legs, scatter, noise, film processing, overlays."""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from kneephantoms.anatomy import Point, Size, plateau_margins
from kneephantoms.film_plan import FilmPlan, Leg, Picture, plan_film
from kneephantoms.framing import SIGNS, Place
from kneephantoms.leg import COARSE, render_body, render_leg
from kneephantoms.overlays import paint_label, paint_overlays
from kneephantoms.solids import convolve, interpolate

REACH: Final = 1.75  # half width of the strip that a leg is drawn in, in plateau widths


@dataclass(frozen=True, slots=True)
class Knee:
    """Ground truth of one knee; points (x, y) in pixels of the picture, pixel centres at +0.5."""

    side: str  # half of the picture, "left" or "right"
    laterality: str  # the patient's side, "R" or "L"
    plateau_medial: Point  # outermost points of the tibial plateau
    plateau_lateral: Point
    lateral_is_left: bool  # whether the lateral margin is the left one of the upright knee
    grade: int  # Kellgren-Lawrence, 0..4
    implant: str  # "total", "partial", "plate", "nail" or empty

    @property
    def plateau_left(self) -> Point:
        """Return the margin that is the left one when the knee is upright."""
        return self.plateau_lateral if self.lateral_is_left else self.plateau_medial

    @property
    def plateau_right(self) -> Point:
        """Return the margin that is the right one when the knee is upright."""
        return self.plateau_medial if self.lateral_is_left else self.plateau_lateral

    @property
    def centre(self) -> Point:
        """Return the midpoint of the margins."""
        (x0, y0), (x1, y1) = self.plateau_medial, self.plateau_lateral
        return (x0 + x1) / 2, (y0 + y1) / 2

    @property
    def rotation_deg(self) -> float:
        """Return the angle of the line from the left to the right margin, clockwise positive."""
        (x0, y0), (x1, y1) = self.plateau_left, self.plateau_right
        return math.degrees(math.atan2(y1 - y0, x1 - x0))


@dataclass(frozen=True, slots=True, eq=False)
class Phantom:
    """A synthetic film and its ground truth."""

    pixels: NDArray[np.float32] = field(repr=False)  # (H, W), the darkest 0 and the brightest 1
    mm_per_px: float
    laterality: str  # the patient's side or sides on it: "R", "L", "B" for both, or empty
    knees: tuple[Knee, ...]  # from the left to the right
    negative: bool  # bones are dark, although a DICOM header says otherwise


def phantom(
    seed: int,
    *,
    framing: str | None = None,
    size: Size | None = None,
    family: int | None = None,
    turn_deg: float = 0.0,
    mirrored: bool = False,
) -> Phantom:
    """Return the film of a seed; see `film_plan.plan_film` for the arguments."""
    plan = plan_film(seed, framing, size=size, family=family, turn_deg=turn_deg, mirrored=mirrored)
    sides = {leg.place.laterality for leg in plan.legs}
    return Phantom(
        pixels=render(plan).numpy(),
        mm_per_px=plan.plateau_mm / plan.framing.unit_px,
        laterality="B" if len(sides) == 2 else "".join(sides),
        knees=true_knees(plan),
        negative=plan.negative,
    )


def true_knees(plan: FilmPlan) -> tuple[Knee, ...]:
    """Return the knees whose plateau is exposed as a whole, from the left to the right."""
    legs = exposed_legs(plan)
    knees = []
    for number, leg in enumerate(legs):
        lateral, medial = (to_picture(plan, leg, at) for at in plateau_margins(leg.shape))
        right = number == 1 or (len(legs) == 1 and lateral[0] + medial[0] > plan.picture.size[1])
        knees.append(
            Knee(
                side=("left", "right")[right],
                laterality=leg.place.laterality,
                plateau_medial=medial,
                plateau_lateral=lateral,
                lateral_is_left=(SIGNS[leg.place.laterality] > 0) != plan.picture.mirrored,
                grade=leg.grade,
                implant=leg.implant,
            )
        )
    return tuple(knees)


def exposed_legs(plan: FilmPlan) -> list[Leg]:
    """Return the legs both of whose plateau margins are exposed, from the left to the right."""
    x0, y0, x1, y1 = plan.framing.field
    legs = []
    for leg in plan.legs:
        points = [_to_film(leg.place, at) for at in plateau_margins(leg.shape)]
        if all(x0 <= x <= x1 and y0 <= y <= y1 for x, y in points):
            legs.append(leg)
    return sorted(legs, key=lambda leg: to_picture(plan, leg, (0.0, 0.0)))


def to_picture(plan: FilmPlan, leg: Leg, point: Point) -> Point:
    """Map a point (u, v) of a leg to pixels (x, y) of the picture."""
    height, width = plan.framing.size
    x, y = _to_film(leg.place, point)
    x, y = x - width / 2, y - height / 2
    x = -x if plan.picture.mirrored else x
    angle = math.radians(plan.picture.turn_deg)
    c, s = math.cos(angle), math.sin(angle)
    return plan.picture.centre[0] + c * x - s * y, plan.picture.centre[1] + s * x + c * y


def render(plan: FilmPlan) -> Tensor:
    """Render a picture (H, W) whose darkest pixel is 0 and whose brightest is 1."""
    rng = np.random.default_rng([plan.seed, 6])
    # Bytes are quick to draw; blurring turns the uniform noise into nearly Gaussian noise.
    uniform = rng.integers(0, 256, plan.framing.size, dtype=np.uint8)
    noise = torch.from_numpy(uniform).float().mul_(1 / 255).sub_(0.5)
    attenuation = torch.zeros_like(noise)
    for number in range(len(plan.legs)):
        _add_leg(attenuation, plan, number)
    if plan.body:
        body = render_body(plan)
        if plan.framing.kind == "lateral" and plan.legs:  # two exposures beside each other
            middle = plan.framing.size[1] // 2
            left = plan.legs[0].place.centre[0] < middle
            body[:, :middle] = attenuation[:, :middle] if left else body[:, :middle]
            body[:, middle:] = body[:, middle:] if left else attenuation[:, middle:]
            attenuation = body
        else:
            attenuation += body
    film = _apply_window(_expose(attenuation, noise, plan), plan)
    paint_overlays(film, plan.overlays, plan.framing.field, plan.framing.unit_px)
    low, high = film.aminmax()
    film.sub_(low).div_((high - low).clamp(min=1e-6))
    film = film.neg_().add_(1) if plan.negative else film
    return _lay_in_picture(film, plan.picture)


def _lay_in_picture(film: Tensor, picture: Picture) -> Tensor:
    """Turn, mirror and place a film (H, W) in a picture of its own size."""
    height, width = film.shape
    cx, cy = picture.centre
    if picture.size == (height, width) and not (picture.turn_deg or picture.mirrored):
        return film
    angle = math.radians(picture.turn_deg)
    c, s = math.cos(angle), math.sin(angle)
    x = torch.arange(picture.size[1])[None, :] + (0.5 - cx)
    y = torch.arange(picture.size[0])[:, None] + (0.5 - cy)
    across, down = x * c + y * s, y * c - x * s
    across = -across if picture.mirrored else across
    points = torch.stack([across * (2 / width), down * (2 / height)], dim=-1)
    laid = F.grid_sample(film[None, None], points[None], align_corners=False)[0, 0]
    outside = (across.abs() > width / 2) | (down.abs() > height / 2)
    laid[outside] = picture.grey
    for text in picture.texts:
        paint_label(laid, text)
    low, high = laid.aminmax()
    return laid.sub_(low).div_((high - low).clamp(min=1e-6))


def _to_film(place: Place, point: Point) -> Point:
    """Map a point (u, v) of a knee to film pixels (x, y)."""
    (x, y), angle = place.centre, math.radians(place.rotation_deg)
    across, down = (place.plateau_px * value for value in point)
    across *= SIGNS[place.laterality]
    return (
        x + across * math.cos(angle) - down * math.sin(angle),
        y + across * math.sin(angle) + down * math.cos(angle),
    )


def _add_leg(attenuation: Tensor, plan: FilmPlan, number: int) -> None:
    """Draw one leg upright on a grid of its own and add it, rotated, to the film (H, W)."""
    height, width = attenuation.shape
    place = plan.legs[number].place
    (cx, cy), px = place.centre, place.plateau_px
    angle, sign = math.radians(place.rotation_deg), SIGNS[place.laterality]
    x0, x1 = max(int(cx - px * REACH), 0), min(int(cx + px * REACH), width)
    if x1 - x0 < COARSE:
        return
    c, s = math.cos(angle), math.sin(angle)
    # The upright grid covers the corners of the strip, in pixels along u and v.
    corners = np.array([(a, b) for a in (x0 - cx, x1 - cx) for b in (-cy, height - cy)])
    rotated = corners @ np.array([[sign * c, -s], [sign * s, c]])  # (4, 2)
    start, end = rotated.min(axis=0) - 2, rotated.max(axis=0) + 2
    columns, rows = (COARSE * math.ceil(length / COARSE) for length in end - start)
    left, top = start.tolist()
    leg = render_leg((rows, columns), (left / px, top / px), plan, number)
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
    exposure, px = plan.exposure, plan.framing.unit_px
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
