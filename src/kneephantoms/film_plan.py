"""Random plan of a film: what it shows, its exposure, and the objects that overlay the legs."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kneephantoms.anatomy import KneeShape, Point, Rng, Size, sample_knees
from kneephantoms.bodies import BODIES, abdomen, lateral_knee
from kneephantoms.framing import FREQUENCIES, SIGNS, Framing, Place, sample_framing
from kneephantoms.overlays import STYLES, WORDS, Label, Overlays, sample_overlays
from kneephantoms.solids import Rod, place_rods

SCREENS: Final = ((1080, 1920), (768, 1366), (1024, 1280), (1200, 1600), (900, 1600), (1000, 1000))
NEGATIVE_FREQUENCY: Final = 0.1
# Frequency of an implant per film; full-leg films are often taken before or after a replacement.
IMPLANTS: Final = {"total": 0.03, "partial": 0.015, "plate": 0.02, "nail": 0.02}
CHILD_SIZE: Final = 0.7
PLATEAU_MM: Final = (79.0, 8.0, 61.0, 101.0)  # width: mean, deviation, least, most


@dataclass(frozen=True, slots=True, eq=False)
class Leg:
    """A leg whose knee is seen from the front."""

    shape: KneeShape
    grade: int  # KL
    place: Place
    implant: str  # a key of IMPLANTS, or empty


@dataclass(frozen=True, slots=True)
class Exposure:
    """How attenuation becomes grey."""

    bone_contrast: float  # over soft tissue, as set by the tube voltage
    scatter: float
    noise: float
    blur: float  # in plateau widths
    black_level: float  # attenuation shown black, from air (0) to the densest bone (1)
    white_level: float  # attenuation shown white
    gamma: float
    equalisation: float  # share of low frequencies that is removed
    sharpening: float  # share of high frequencies that is added
    fog: float  # grey of air
    heel_effect: Point  # brightness gradient over the film in x and in y
    seam: Point  # on stitched films: its y over the film's height, its brightness


@dataclass(frozen=True, slots=True)
class Picture:
    """How the film lies in the picture, such as a screenshot, and how it is turned there."""

    size: Size
    centre: Point  # the film's centre, in pixels of the picture
    turn_deg: float = 0.0  # clockwise
    mirrored: bool = False
    grey: float = 0.0  # beside the film
    texts: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class FilmPlan:
    """Everything that determines a film."""

    seed: int
    legs: tuple[Leg, ...]  # from the left to the right; those cut by the edge are included
    body: tuple[Rod, ...]  # other parts of the body, in units of `framing.unit_px`
    plateau_mm: float  # width of the person's plateaus
    framing: Framing
    exposure: Exposure
    overlays: Overlays
    picture: Picture
    negative: bool


def plan_film(
    seed: int,
    framing: str | None = None,
    *,
    size: Size | None = None,
    family: int | None = None,
    turn_deg: float = 0.0,
    mirrored: bool = False,
) -> FilmPlan:
    """Sample a film's plan; the same arguments always give the same plan.

    They are those of `SynthConfig`; `size` is that of the picture before it is turned.
    """
    # One stream per part, so that a change to one part leaves the others as they are.
    body, frame, light, things, rare, more, canvas = (
        np.random.default_rng([seed, k]) for k in (1, 2, 3, 4, 5, 8, 9)
    )
    chosen = framing or "bilateral"
    if chosen == "any":
        chosen = str(more.choice(list(FREQUENCIES), p=list(FREQUENCIES.values())))
    screen = None
    if chosen == "offcentre":
        chosen = str(canvas.choice(["bilateral", "single"], p=[0.7, 0.3]))
        height, width = screen = size or SCREENS[canvas.integers(len(SCREENS))]
        size = int(height * canvas.uniform(0.4, 0.8)), int(width * canvas.uniform(0.35, 0.6))
    shapes, grades = sample_knees(body, family)
    knees = dict(zip(SIGNS, zip(shapes, grades, strict=True), strict=True))
    mean, deviation, least, most = PLATEAU_MM
    plateau_mm = float(np.clip(more.normal(mean, deviation), least, most))
    if shapes[0].growth_plates > 0:
        plateau_mm *= CHILD_SIZE
    drawn = sample_framing(frame, size, chosen, plateau_mm)
    rare.random(2)  # version 0.1.0 drew the implant here
    implants, negative = _sample_implants(more, drawn), rare.random() < NEGATIVE_FREQUENCY
    return FilmPlan(
        seed=seed,
        legs=tuple(
            Leg(*knees[place.laterality], place, implant)
            for place, implant in zip(drawn.places, implants, strict=True)
        ),
        body=tuple(_sample_body(more, drawn)),
        plateau_mm=plateau_mm,
        framing=drawn,
        exposure=_sample_exposure(light, drawn.kind),
        overlays=sample_overlays(things, more, drawn),
        picture=_sample_picture(canvas, drawn, screen, turn_deg, mirrored),
        negative=negative,
    )


def _sample_implants(rng: Rng, framing: Framing) -> list[str]:
    """Sample the implant of each knee, mostly none."""
    common = 3.0 if framing.kind == "full_leg" else 1.0
    implants = [""] * len(framing.places)
    chance, choice, knee = rng.random(), rng.random(), int(rng.integers(2))
    if implants and chance < common * sum(IMPLANTS.values()):
        shares = np.cumsum(list(IMPLANTS.values())) / sum(IMPLANTS.values())
        implants[knee % len(implants)] = list(IMPLANTS)[int(np.searchsorted(shares, choice))]
        if rng.random() < 0.2:
            implants = [max(implants)] * len(implants)
    return implants


def _sample_body(rng: Rng, framing: Framing) -> list[Rod]:
    """Sample a knee from the side or another part of the body, somewhere on the film."""
    height, width = (side / framing.unit_px for side in framing.size)
    if framing.kind == "full_leg":
        first, last = (place.centre for place in (framing.places[0], framing.places[-1]))
        middle = (first[0] + last[0]) / 2 / framing.unit_px
        if len(framing.places) == 1:
            middle += 1.4 * SIGNS[framing.places[0].laterality]
        hips = middle, first[1] / framing.unit_px - 5.3
        return place_rods(abdomen(rng, 1.0), hips, 0.0, 1.0, mirror=False)
    if framing.kind not in ("lateral", "other"):
        return []
    x, y = rng.uniform(0.35, 0.65) * width, rng.uniform(0.35, 0.65) * height
    for place in framing.places:  # beside the frontal knee
        x = width * (0.3 if place.centre[0] > framing.size[1] / 2 else 0.7)
    mirror = bool(rng.random() < 0.5)
    if framing.kind == "lateral":
        rods, angle = lateral_knee(rng), rng.normal(0, 0.3)
    else:
        rods = BODIES[rng.integers(len(BODIES))](rng)
        angle = rng.normal(0, 0.25) if rng.random() < 0.7 else rng.uniform(-math.pi, math.pi)
    scale = 1.0 if framing.places else float(np.exp(rng.normal(0, 0.2)))
    return place_rods(rods, (x, y), angle, scale, mirror)


def _sample_picture(
    rng: Rng,
    framing: Framing,
    screen: Size | None,
    turn_deg: float,
    mirrored: bool,
) -> Picture:
    """Lay the film on a screen of a size (height, width), or make it the whole picture."""
    height, width = framing.size
    if screen is None:
        turned = round(turn_deg / 90) % 2 == 1
        size = (width, height) if turned else (height, width)
        return Picture(size, (size[1] / 2, size[0] / 2), turn_deg, mirrored)
    free = screen[0] - height, screen[1] - width
    side = rng.uniform(0, 0.2) if rng.random() < 0.5 else rng.uniform(0.8, 1)
    y, x = free[0] * rng.uniform(0, 1), free[1] * side
    centre = int(x) + width / 2, int(y) + height / 2
    texts = []
    for _ in range(int(rng.integers(0, 9))):
        at = screen[1] * rng.uniform(0.08, 0.92), screen[0] * rng.uniform(0.03, 0.97)
        if abs(at[0] - centre[0]) > 0.55 * width or abs(at[1] - centre[1]) > 0.55 * height:
            tall, style = screen[0] * rng.uniform(0.01, 0.03), int(rng.integers(len(STYLES)))
            texts.append(Label(str(rng.choice(WORDS)), at, tall, style))
    grey = 0.0 if rng.random() < 0.6 else rng.uniform(0, 0.9)
    return Picture(screen, centre, turn_deg, mirrored, grey, tuple(texts))


def _sample_exposure(rng: Rng, kind: str) -> Exposure:
    seam_frequency = 0.3 if kind == "wide" else 0.05
    poor = rng.random() < 0.18  # overexposed, underexposed or flat
    exposure = Exposure(
        bone_contrast=rng.uniform(0.5, 0.85) if poor else rng.uniform(0.8, 1.2),
        scatter=rng.uniform(0.0, 0.04) * (3 if poor else 1),
        noise=_log_uniform(rng, 0.002, 0.014),
        blur=rng.uniform(0.001, 0.004),
        black_level=rng.uniform(0.08, 0.42),
        white_level=_log_uniform(rng, 1.05, 1.5) * (rng.uniform(0.9, 1.5) if poor else 1),
        gamma=float(np.exp(np.clip(rng.normal(-0.02, 0.25), -0.5, 0.5))),
        equalisation=rng.uniform(0.0, 0.8),
        sharpening=rng.uniform(0.0, 1.0),
        fog=rng.uniform(0.03, 0.2) if rng.random() < 0.2 else 0.0,
        heel_effect=(rng.normal(0, 0.02), rng.normal(0, 0.05)),
        seam=(rng.uniform(0.3, 0.75), rng.normal(0, 0.12) * (rng.random() < seam_frequency)),
    )
    if rng.random() < (0.1 if kind in ("knee", "wide", "leg", "fill") else 0.5):
        # Old plate readers: soft, with a grey background and a dark halo around the leg.
        return replace(
            exposure,
            blur=rng.uniform(0.004, 0.010),
            black_level=rng.uniform(-0.15, 0.1),
            equalisation=rng.uniform(0.6, 1.4),
            sharpening=rng.uniform(0.0, 0.6),
        )
    if rng.random() < 0.08:  # bones and soft tissue nearly white
        return replace(exposure, black_level=0.0, white_level=rng.uniform(0.85, 1.05))
    return exposure


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
