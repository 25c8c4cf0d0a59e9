"""Seeded descriptions of films: framing, exposure and what else lies on the plate."""

from dataclasses import dataclass

import numpy as np

from kneematch.synthetic.phantom.anatomy import Shape, draw_knees

NEGATIVE_SHARE = 0.1
PLATEAU_MM = 75.0
LETTERS = "RL"  # the patient's right knee lies in the picture's left half

# kind: share, usual size, plateau width over the field's width, joint height over the field's
KINDS = {
    "knee": (0.48, (1024, 1024), (0.235, 0.30), (0.30, 0.72)),
    "wide": (0.20, (820, 1000), (0.165, 0.225), (0.38, 0.62)),
    "leg": (0.20, (1000, 820), (0.195, 0.275), (0.20, 0.36)),
    "fill": (0.12, (820, 1000), (0.30, 0.38), (0.38, 0.62)),
}


@dataclass(frozen=True, slots=True)
class Framing:
    """Where the knees lie on the film; points (x, y) in its pixels."""

    kind: str
    size: tuple[int, int]
    field: tuple[float, float, float, float]  # the exposed rectangle x0, y0, x1, y1
    plateau_px: tuple[float, float]  # of the picture's left knee, of its right one
    centres: tuple[tuple[float, float], tuple[float, float]]
    rotations_deg: tuple[float, float]  # picture clockwise positive


@dataclass(frozen=True, slots=True)
class Exposure:
    """How the attenuation becomes grey."""

    contrast: float  # of bone over soft tissue, set by the tube's voltage
    scatter: float
    noise: float
    blur: float  # in plateau widths
    foot: float  # where black begins, from air (0) to the brightest bone (1)
    head: float  # where white begins
    gamma: float
    equalise: float  # how far the slow changes are taken out
    sharpen: float  # how far the fine detail is raised
    haze: float  # grey of the air
    heel: tuple[float, float]  # brightness slope over the film, (x, y)
    seam: tuple[float, float]  # a step in brightness: height over the film's, size


@dataclass(frozen=True, slots=True)
class Extras:
    """What is on the film besides the legs."""

    border: float  # grey outside of the field
    tilt_deg: float  # of the field
    arcs: tuple[tuple[float, float, float, float], ...]  # unexposed: centre x, y, radius, grey
    markers: tuple[tuple[str, float, float, float, int], ...]  # letter, x, y, height, style
    coin: tuple[float, float, float] | None  # x, y, radius
    beads: tuple[tuple[float, float, float], ...]  # x, y, radius


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """All that is drawn before a film is rendered."""

    seed: int
    shapes: tuple[Shape, Shape]
    grades: tuple[int, int]
    framing: Framing
    exposure: Exposure
    extras: Extras
    hardware: str | None
    hardware_knee: int
    negative: bool


def plan(
    seed: int,
    size: tuple[int, int] | None = None,
    family: int | None = None,
    kind: str | None = None,
) -> Plan:
    """Draw a film: a pure function of its arguments."""
    # Streams of their own, so that a change to one part leaves the others as they are.
    body, frame, light, things, rare = (np.random.default_rng([seed, k]) for k in range(1, 6))
    (one, first), (two, second) = draw_knees(body, family)
    framing = _draw_framing(frame, size, kind)
    metal = str(rare.choice(["plate", "prosthesis", "nail"])) if rare.random() < 0.06 else None
    return Plan(
        seed,
        (one, two),
        (first, second),
        framing,
        _draw_exposure(light, framing.kind),
        _draw_extras(things, framing),
        metal,
        int(rare.integers(2)),
        bool(rare.random() < NEGATIVE_SHARE),
    )


def _draw_framing(
    rng: np.random.Generator, size: tuple[int, int] | None, kind: str | None
) -> Framing:
    names = list(KINDS)
    drawn = names[rng.choice(len(names), p=[KINDS[name][0] for name in names])]
    kind = drawn if kind is None else kind
    _, usual, widths, heights = KINDS[kind]
    size = usual if size is None else size
    height, width = size
    field = _draw_field(rng, kind, size)
    x0, y0, x1, y1 = field
    across, down = x1 - x0, y1 - y0
    plateau = min(across * rng.uniform(*widths), down * 0.45)
    spread = 0.25 + rng.normal(0, 0.02)
    spread = max(spread, 0.6 * plateau / across)
    middle = x0 + across * (0.5 + rng.normal(0, 0.015))
    level = y0 + down * rng.uniform(*heights)
    apart = down * rng.normal(0, 0.06 if rng.random() < 0.1 else 0.018)
    xs = [middle + sign * across * spread + rng.normal(0, 0.012) * across for sign in (-1, 1)]
    lean = rng.normal(0, 1.5)
    turns = [float(np.clip(sign * lean + rng.normal(0, 2.0), -7, 7)) for sign in (1, -1)]
    scales = [float(plateau * factor) for factor in rng.normal(1, 0.012, 2)]
    left, right = 0.62 * scales[0], width - 0.62 * scales[1]  # whole plateaus, each in its half
    inner = (width / 2 - 0.56 * scales[0], width / 2 + 0.56 * scales[1])
    x = (float(np.clip(xs[0], left, inner[0])), float(np.clip(xs[1], inner[1], right)))
    y = np.clip([level - apart / 2, level + apart / 2], 0.3 * plateau, height - 0.3 * plateau)
    centres = ((x[0], float(y[0])), (x[1], float(y[1])))
    return Framing(kind, size, field, (scales[0], scales[1]), centres, (turns[0], turns[1]))


def _draw_field(
    rng: np.random.Generator, kind: str, size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """The exposed rectangle: the whole film, one with black bands, or a small one within."""
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
    seam = 0.3 if kind == "wide" else 0.05
    odd = rng.random() < 0.18  # an odd film: too light, too dark or flat
    return Exposure(
        contrast=float(rng.uniform(0.5, 0.85) if odd else rng.uniform(0.8, 1.2)),
        scatter=float(rng.uniform(0.0, 0.04) * (3 if odd else 1)),
        noise=float(np.exp(rng.uniform(np.log(0.002), np.log(0.014)))),
        blur=float(rng.uniform(0.001, 0.004)),
        foot=float(rng.uniform(0.08, 0.42)),
        head=float(
            np.exp(rng.uniform(np.log(1.05), np.log(1.5))) * (rng.uniform(0.9, 1.5) if odd else 1)
        ),
        gamma=float(np.exp(np.clip(rng.normal(-0.02, 0.25), -0.5, 0.5))),
        equalise=float(rng.uniform(0.0, 0.8)),
        sharpen=float(rng.uniform(0.2, 1.3)),
        haze=float(rng.uniform(0.03, 0.2)) if rng.random() < 0.2 else 0.0,
        heel=(float(rng.normal(0, 0.02)), float(rng.normal(0, 0.05))),
        seam=(float(rng.uniform(0.3, 0.75)), float(rng.normal(0, 0.12) * (rng.random() < seam))),
    )


def _draw_extras(rng: np.random.Generator, framing: Framing) -> Extras:
    height, width = framing.size
    x0, y0, x1, y1 = framing.field
    px = framing.plateau_px[0]
    border = 0.0 if rng.random() < 0.93 else float(rng.uniform(0.6, 1.0))
    tilt = float(rng.normal(0, 1.0)) if rng.random() < 0.25 else 0.0
    arcs = []
    if rng.random() < 0.22:
        # Seen from inside a round field: its corners were never exposed, hence white.
        radius = float(np.hypot(width, height) / 2 * rng.uniform(0.92, 1.02))
        centre = (
            width / 2 + rng.normal(0, 0.05) * width,
            height / 2 + rng.normal(0, 0.08) * height,
        )
        arcs.append((float(centre[0]), float(centre[1]), radius, float(rng.uniform(0.6, 1.0))))
    coin = None
    if rng.random() < 0.12:
        at = (x0 + rng.uniform(0.03, 0.08) * (x1 - x0), y0 + rng.uniform(0.6, 0.95) * (y1 - y0))
        coin = (float(at[0]), float(at[1]), 0.165 * px)
    return Extras(
        border, tilt, tuple(arcs), _draw_markers(rng, framing), coin, _draw_beads(rng, framing)
    )


def _draw_markers(
    rng: np.random.Generator, framing: Framing
) -> tuple[tuple[str, float, float, float, int], ...]:
    x0, y0, x1, y1 = framing.field
    style, both, corner = int(rng.integers(4)), rng.random() < 0.6, rng.random() < 0.5
    tall = float(framing.plateau_px[0] * rng.uniform(0.12, 0.28))
    markers = []
    for knee, (letter, sign) in enumerate(zip(LETTERS, (-1, 1), strict=True)):
        cx, cy = framing.centres[knee]
        x = cx + sign * framing.plateau_px[knee] * rng.uniform(0.6, 1.0) * rng.choice([1, 1, 1, -1])
        y = cy + framing.plateau_px[knee] * rng.choice([-1, 1]) * rng.uniform(0.25, 1.2)
        if corner:
            x, y = (x0 + tall, y0 + tall) if knee == 0 else (x1 - tall, y0 + tall)
        x = float(np.clip(x, x0 + 0.7 * tall, x1 - 0.7 * tall))
        y = float(np.clip(y, y0 + 0.7 * tall, y1 - 0.7 * tall))
        if knee == 0 or both:
            markers.append((letter, x, y, tall, style))
    return tuple(markers) if rng.random() < 0.9 else ()


def _draw_beads(
    rng: np.random.Generator, framing: Framing
) -> tuple[tuple[float, float, float], ...]:
    """The columns of beads in the frame that holds the feet of fixed-flexion (OAI) films."""
    if framing.kind == "leg" or rng.random() > 0.08:
        return ()
    px = framing.plateau_px[0]
    (left, joint), (right, _) = framing.centres
    middle = (left + right) / 2
    beads = []
    for x in (middle - rng.uniform(0.05, 0.2) * px, middle + rng.uniform(0.05, 0.2) * px):
        slant, start = rng.normal(0, 0.01), joint + rng.uniform(-0.3, 0.3) * px
        for k in range(int(rng.integers(5, 9))):
            y = start + (k - 3) * 0.2 * px
            beads.append((float(x + slant * k * px), float(y), 0.022 * px))
    return tuple(beads)
