"""Random plan of a film: framing, exposure, and the objects and defects that overlay the legs."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from kneematch.synthetic.anatomy import KneeShape, draw_knees

PLATEAU_MM: Final = 75.0  # width of the tibial plateau
LATERALITY: Final = "RL"  # the patient's right knee lies in the left half of the picture
NEGATIVE_FREQUENCY: Final = 0.1
HARDWARE: Final = ("plate", "prosthesis", "nail")
HARDWARE_FREQUENCY: Final = 0.06

Point = tuple[float, float]
Range = tuple[float, float]
Disc = tuple[float, float, float, float]  # centre x and y, radius, grey


@dataclass(frozen=True, slots=True)
class FilmKind:
    """A way to frame the knees."""

    frequency: float
    size: tuple[int, int]
    plateau_width: Range  # over the width of the exposed field
    joint_height: Range  # over its height


KINDS: Final = {
    "knee": FilmKind(0.48, (1024, 1024), (0.235, 0.30), (0.30, 0.72)),
    "wide": FilmKind(0.20, (820, 1000), (0.165, 0.225), (0.38, 0.62)),
    "leg": FilmKind(0.20, (1000, 820), (0.195, 0.275), (0.20, 0.36)),
    "fill": FilmKind(0.12, (820, 1000), (0.30, 0.38), (0.38, 0.62)),
}


@dataclass(frozen=True, slots=True)
class Framing:
    """Where the knees lie on the film; points (x, y) in film pixels, pairs left knee first."""

    kind: str
    size: tuple[int, int]
    field: tuple[float, float, float, float]  # the exposed rectangle x0, y0, x1, y1
    plateau_px: tuple[float, float]  # widths of the plateaus
    centres: tuple[Point, Point]
    rotations_deg: tuple[float, float]  # clockwise positive


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
    heel_effect: tuple[float, float]  # brightness gradient over the film in x and in y
    seam: tuple[float, float]  # of stitched films: its y over the film's height, its brightness


@dataclass(frozen=True, slots=True)
class Overlays:
    """What is on the film besides the legs; positions and sizes in film pixels."""

    border_grey: float  # outside of the exposed field
    field_tilt_deg: float
    discs: tuple[Disc, ...]  # beads, and a coin for calibration
    round_field: Disc | None  # the corners outside of it are unexposed
    markers: tuple[tuple[str, float, float, float, int], ...]  # letter, x, y, height, style


@dataclass(frozen=True, slots=True, eq=False)
class FilmPlan:
    """Everything that determines a film; pairs are the left knee's and the right knee's."""

    seed: int
    shapes: tuple[KneeShape, KneeShape]
    grades: tuple[int, int]  # KL
    framing: Framing
    exposure: Exposure
    overlays: Overlays
    hardware: str | None
    hardware_knee: int  # 0 or 1, the knee that has it
    negative: bool


def plan_film(
    seed: int,
    size: tuple[int, int] | None = None,
    family: int | None = None,
    kind: str | None = None,
) -> FilmPlan:
    """Draw a film's plan; the same arguments always give the same plan.

    Args:
        seed: of all random draws.
        size: of the film; None is the usual size of its kind.
        family: people of one family have similar bones; None draws from the whole population.
        kind: one of KINDS; None draws one by its frequency.
    """
    # One stream per part, so that a change to one part leaves the others as they are.
    body, frame, light, things, rare = (np.random.default_rng([seed, k]) for k in range(1, 6))
    shapes, grades = draw_knees(body, family)
    framing = _draw_framing(frame, size, kind)
    exposure, overlays = _draw_exposure(light, framing.kind), _draw_overlays(things, framing)
    hardware = str(rare.choice(HARDWARE)) if rare.random() < HARDWARE_FREQUENCY else None
    knee, negative = int(rare.integers(2)), rare.random() < NEGATIVE_FREQUENCY
    return FilmPlan(seed, shapes, grades, framing, exposure, overlays, hardware, knee, negative)


def _draw_framing(
    rng: np.random.Generator, size: tuple[int, int] | None, kind: str | None
) -> Framing:
    drawn = list(KINDS)[rng.choice(len(KINDS), p=[each.frequency for each in KINDS.values()])]
    kind = drawn if kind is None else kind
    usual = KINDS[kind]
    height, width = size = usual.size if size is None else size
    field = _draw_field(rng, kind, size)
    x0, y0, x1, y1 = field
    across, down = x1 - x0, y1 - y0
    plateau = min(across * rng.uniform(*usual.plateau_width), down * 0.45)
    offset = max(0.25 + rng.normal(0, 0.02), 0.6 * plateau / across)  # of a knee from the middle
    middle = x0 + across * (0.5 + rng.normal(0, 0.015))
    level = y0 + down * rng.uniform(*usual.joint_height)
    level_difference = down * rng.normal(0, 0.06 if rng.random() < 0.1 else 0.018)
    xs = [middle + sign * across * offset + rng.normal(0, 0.012) * across for sign in (-1, 1)]
    lean = rng.normal(0, 1.5)
    rotations = [float(np.clip(sign * lean + rng.normal(0, 2.0), -7, 7)) for sign in (1, -1)]
    left_px, right_px = (plateau * rng.normal(1, 0.012, 2)).tolist()
    # Each plateau lies as a whole in its half of the film.
    left_x = float(np.clip(xs[0], 0.62 * left_px, width / 2 - 0.56 * left_px))
    right_x = float(np.clip(xs[1], width / 2 + 0.56 * right_px, width - 0.62 * right_px))
    ys = [level - level_difference / 2, level + level_difference / 2]
    left_y, right_y = np.clip(ys, 0.3 * plateau, height - 0.3 * plateau).tolist()
    centres = (left_x, left_y), (right_x, right_y)
    return Framing(kind, size, field, (left_px, right_px), centres, (rotations[0], rotations[1]))


def _draw_field(
    rng: np.random.Generator, kind: str, size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """Draw the exposed rectangle: the whole film, one between black bands, or a small one."""
    height, width = size
    choice = rng.random()
    if kind == "knee" and choice < 0.5:
        band = height * rng.uniform(0.04, 0.14)
        return (0.0, band, float(width), height - band)
    if kind == "knee" and choice < 0.72:
        band = width * rng.uniform(0.05, 0.16)
        top = height * rng.uniform(0.0, 0.2) * (rng.random() < 0.5)
        return (band, top, width - band, height - top)
    if choice > 0.93 and kind != "leg":
        across, down = rng.uniform(0.12, 0.22, 2)
        return (across * width, down * height, (1 - across) * width, (1 - down) * height)
    if choice > 0.6:
        a, b, c, d = rng.uniform(0.0, 0.03, 4)
        return (a * width, b * height, (1 - c) * width, (1 - d) * height)
    return (0.0, 0.0, float(width), float(height))


def _draw_exposure(rng: np.random.Generator, kind: str) -> Exposure:
    seam_frequency = 0.3 if kind == "wide" else 0.05
    poor = rng.random() < 0.18  # overexposed, underexposed or flat
    return Exposure(
        bone_contrast=rng.uniform(0.5, 0.85) if poor else rng.uniform(0.8, 1.2),
        scatter=rng.uniform(0.0, 0.04) * (3 if poor else 1),
        noise=_log_uniform(rng, 0.002, 0.014),
        blur=rng.uniform(0.001, 0.004),
        black_level=rng.uniform(0.08, 0.42),
        white_level=_log_uniform(rng, 1.05, 1.5) * (rng.uniform(0.9, 1.5) if poor else 1),
        gamma=float(np.exp(np.clip(rng.normal(-0.02, 0.25), -0.5, 0.5))),
        equalisation=rng.uniform(0.0, 0.8),
        sharpening=rng.uniform(0.2, 1.3),
        fog=rng.uniform(0.03, 0.2) if rng.random() < 0.2 else 0.0,
        heel_effect=(rng.normal(0, 0.02), rng.normal(0, 0.05)),
        seam=(rng.uniform(0.3, 0.75), rng.normal(0, 0.12) * (rng.random() < seam_frequency)),
    )


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _draw_overlays(rng: np.random.Generator, framing: Framing) -> Overlays:
    height, width = framing.size
    x0, y0, x1, y1 = framing.field
    border_grey = 0.0 if rng.random() < 0.93 else rng.uniform(0.6, 1.0)
    tilt_deg = rng.normal(0, 1.0) if rng.random() < 0.25 else 0.0
    round_field: Disc | None = None
    discs: list[Disc] = []
    if rng.random() < 0.22:
        radius = float(np.hypot(width, height)) / 2 * rng.uniform(0.92, 1.02)
        x = width / 2 + rng.normal(0, 0.05) * width
        y = height / 2 + rng.normal(0, 0.08) * height
        round_field = (x, y, radius, rng.uniform(0.6, 1.0))
    if rng.random() < 0.12:
        x = x0 + rng.uniform(0.03, 0.08) * (x1 - x0)
        y = y0 + rng.uniform(0.6, 0.95) * (y1 - y0)
        discs.append((x, y, 0.165 * framing.plateau_px[0], 0.93))
    markers = _draw_markers(rng, framing)
    discs = _draw_beads(rng, framing) + discs  # a coin lies on the beads
    return Overlays(border_grey, tilt_deg, tuple(discs), round_field, markers)


def _draw_markers(
    rng: np.random.Generator, framing: Framing
) -> tuple[tuple[str, float, float, float, int], ...]:
    """Draw the letters R and L, beside the knees or in the upper corners."""
    x0, y0, x1, y1 = framing.field
    style, both, corner = int(rng.integers(4)), rng.random() < 0.6, rng.random() < 0.5
    height = framing.plateau_px[0] * rng.uniform(0.12, 0.28)
    markers = []
    for knee, (letter, sign) in enumerate(zip(LATERALITY, (-1, 1), strict=True)):
        (x, y), px = framing.centres[knee], framing.plateau_px[knee]
        x = x + sign * px * rng.uniform(0.6, 1.0) * rng.choice([1, 1, 1, -1])
        y = y + px * rng.choice([-1, 1]) * rng.uniform(0.25, 1.2)
        if corner:
            x, y = (x0 if knee == 0 else x1) - sign * height, y0 + height
        x = float(np.clip(x, x0 + 0.7 * height, x1 - 0.7 * height))
        y = float(np.clip(y, y0 + 0.7 * height, y1 - 0.7 * height))
        if knee == 0 or both:
            markers.append((letter, x, y, height, style))
    return tuple(markers) if rng.random() < 0.9 else ()


def _draw_beads(rng: np.random.Generator, framing: Framing) -> list[Disc]:
    """Draw the two columns of beads of the frame used for fixed-flexion (OAI) films."""
    if framing.kind == "leg" or rng.random() > 0.08:
        return []
    px = framing.plateau_px[0]
    (left, joint), (right, _) = framing.centres
    middle = (left + right) / 2
    beads = []
    for x in (middle - rng.uniform(0.05, 0.2) * px, middle + rng.uniform(0.05, 0.2) * px):
        slant, start = rng.normal(0, 0.01), joint + rng.uniform(-0.3, 0.3) * px
        for k in range(int(rng.integers(5, 9))):
            y = start + (k - 3) * 0.2 * px
            beads.append((x + slant * k * px, y, 0.022 * px, 0.95))
    return beads
