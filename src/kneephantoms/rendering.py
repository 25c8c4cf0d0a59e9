"""Render a planned film: attenuation of the legs, scatter, noise, film processing, overlays."""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kneephantoms.anatomy import Map, Point, Size, plateau_margins
from kneephantoms.film_plan import FilmPlan, Leg, Picture, plan_film
from kneephantoms.framing import SIGNS, Place
from kneephantoms.leg import COARSE, render_body, render_leg
from kneephantoms.overlays import paint_label, paint_overlays
from kneephantoms.solids import convolve, interpolate, warp

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
        pixels=render(plan),
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


def render(plan: FilmPlan) -> NDArray[np.float32]:
    """Render a picture (H, W) whose darkest pixel is 0 and whose brightest is 1."""
    rng = np.random.default_rng([plan.seed, 6])
    # Bytes are quick to draw; blurring turns the uniform noise into nearly Gaussian noise.
    uniform = rng.integers(0, 256, plan.framing.size, dtype=np.uint8)
    noise = uniform.astype(np.float32) * (1 / 255) - 0.5
    attenuation = np.zeros_like(noise)
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
    film -= film.min()
    film /= max(float(film.max()), 1e-6)
    return _lay_in_picture(1 - film if plan.negative else film, plan.picture)


def _lay_in_picture(film: Map, picture: Picture) -> Map:
    """Turn, mirror and place a film (H, W) in a picture of its own size."""
    height, width = film.shape
    cx, cy = picture.centre
    if picture.size == (height, width) and not (picture.turn_deg or picture.mirrored):
        return film
    angle = math.radians(picture.turn_deg)
    c, s = math.cos(angle), math.sin(angle)
    x = np.arange(picture.size[1], dtype=np.float32)[None, :] + (0.5 - cx)
    y = np.arange(picture.size[0], dtype=np.float32)[:, None] + (0.5 - cy)
    outside = (np.abs(x * c + y * s) > width / 2) | (np.abs(y * c - x * s) > height / 2)
    sign = -1 if picture.mirrored else 1
    # A dark margin of one pixel, which pixels at the edge of a turned film are mixed with.
    across = sign * c, sign * s, width / 2 + 1 - sign * (c * cx + s * cy)
    down = -s, c, height / 2 + 1 + s * cx - c * cy
    laid = warp(np.pad(film, 1), picture.size, (*across, *down))
    laid[outside] = picture.grey
    for text in picture.texts:
        paint_label(laid, text)
    laid -= laid.min()
    laid /= max(float(laid.max()), 1e-6)
    return laid


def _to_film(place: Place, point: Point) -> Point:
    """Map a point (u, v) of a knee to film pixels (x, y)."""
    (x, y), angle = place.centre, math.radians(place.rotation_deg)
    across, down = (place.plateau_px * value for value in point)
    across *= SIGNS[place.laterality]
    return (
        x + across * math.cos(angle) - down * math.sin(angle),
        y + across * math.sin(angle) + down * math.cos(angle),
    )


def _add_leg(attenuation: Map, plan: FilmPlan, number: int) -> None:
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
    # From pixels of the strip to those of the upright grid.
    across = sign * c, sign * s, sign * (c * (x0 - cx) - s * cy) - left
    down = -s, c, -s * (x0 - cx) - c * cy - top
    attenuation[:, x0:x1] += warp(leg, (height, x1 - x0), (*across, *down))


def _expose(attenuation: Map, noise: Map, plan: FilmPlan) -> Map:
    """Turn attenuation into grey: Beer-Lambert, scatter, noise, then film processing (H, W)."""
    exposure, px = plan.exposure, plan.framing.unit_px
    height, width = attenuation.shape
    light = np.exp(-attenuation)
    scattered = exposure.scatter * (_blur_small(light, 0.5 * px) + 0.05)
    light += interpolate(scattered, light.shape)
    grey = -np.log(light, out=light)
    # Fewer photons give more noise, by a factor of exp(grey / 2); this is its tangent.
    grey += 9 * exposure.noise * noise * (grey + 0.8)
    grey = _blur(grey, exposure.blur * px)
    seam_y, seam_step = exposure.seam
    if seam_step != 0:
        grey[int(seam_y * height) :] += seam_step
    fine = _blur_small(grey, 0.03 * px)
    wide = _blur_small(fine, 0.9 * px * fine.shape[0] / height)
    removed = exposure.sharpening * fine
    removed += 0.5 * exposure.equalisation * interpolate(wide, fine.shape)
    grey *= 1 + exposure.sharpening
    grey -= interpolate(removed, grey.shape)
    across, down = exposure.heel_effect
    grey += np.linspace(-2 * across, 2 * across, width, dtype=np.float32)[None, :]
    grey += np.linspace(-2 * down, 2 * down, height, dtype=np.float32)[:, None]
    return grey


def _apply_window(grey: Map, plan: FilmPlan) -> Map:
    """Map grey (H, W) to [0, 1] between black and white levels, then apply gamma and fog."""
    exposure = plan.exposure
    air, bone = np.quantile(grey[4::8, 4::8], [0.02, 0.96]).tolist()
    black = air + exposure.black_level * (bone - air)
    white = air + exposure.white_level * (bone - air)
    film: Map = np.clip((grey - black) * (1 / max(white - black, 1e-3)), 1e-4, 1.0)
    film **= exposure.gamma
    return exposure.fog + (1 - exposure.fog) * film


def _blur(film: Map, sigma: float) -> Map:
    """Blur a film (H, W) with a Gaussian, truncated at 1.6 sigma for speed."""
    sigma = max(sigma, 0.45)
    radius = math.ceil(1.6 * sigma)
    taps = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
    return convolve(convolve(film, taps, 0), taps, 1)


def _blur_small(film: Map, sigma: float) -> Map:
    """Return a strongly blurred film at reduced size (h, w)."""
    cell = max(int(sigma / 1.5), 1)
    return _blur(np.asarray(Image.fromarray(film).reduce(cell)), sigma / cell)
