"""Statistical model of a knee's shape: parameters, random draws and the outlines of its bones.

Coordinates (u, v) of a knee: the origin is the middle of the tibial plateau and the unit is the
plateau's width; u grows medially (towards the other knee), v distally (towards the foot).
"""
# ruff: noqa: RUF009 - _parameter() returns a dataclass field

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Point = tuple[float, float]  # (x, y), or (u, v) in plateau widths
Size = tuple[int, int]  # (height, width) in pixels
Rng = np.random.Generator
Array = NDArray[np.float64]
Map = NDArray[np.floating[Any]]  # (H, W) in single precision

# Per Kellgren-Lawrence (KL) grade 0..4: its frequency, the narrowing of the joint space and the
# size of osteophytes, in plateau widths, and the additional density of sclerotic bone.
GRADE_FREQUENCY: Final = (0.38, 0.20, 0.22, 0.14, 0.06)
NARROWING: Final = (0.0, 0.0, 0.003, 0.025, 0.042)
OSTEOPHYTE: Final = (0.0, 0.006, 0.022, 0.045, 0.070)
SCLEROSIS: Final = (0.0, 0.1, 0.3, 0.7, 1.2)

# Knots of the outlines: v along the bones and the skin, u across the joint surfaces.
FEMUR_V: Final = np.array(
    [-4.5, -2.0, -1.37, -1.0, -0.8, -0.66, -0.52, -0.40, -0.30, -0.20, -0.12, -0.05]
)
CONDYLES_U: Final = np.array(
    [-0.55, -0.47, -0.40, -0.31, -0.2, -0.11, -0.04, 0.03, 0.1, 0.17, 0.25, 0.34, 0.43, 0.49, 0.56]
)
TIBIA_V: Final = np.array(
    [-0.05, 0.0, 0.04, 0.10, 0.18, 0.27, 0.42, 0.71, 1.0, 1.66, 2.5, 3.6, 5.0]
)
PLATEAU_U: Final = np.array(
    [-0.52, -0.45, -0.3, -0.2, -0.13, -0.07, 0.0, 0.075, 0.13, 0.2, 0.3, 0.45, 0.52]
)
FIBULA_V: Final = np.array([0.15, 0.22, 0.36, 0.5, 0.68, 1.0, 1.66, 2.5, 3.6, 5.0])
SKIN_V: Final = np.array([-4.5, -3.0, -2.0, -1.2, -0.6, 0.0, 0.5, 1.2, 1.9, 3.0, 4.0, 5.0])

FLEXED_FREQUENCY: Final = 0.3
OBLIQUE_FREQUENCY: Final = 0.25
CHILD_FREQUENCY: Final = 0.03
CALCIFICATION_FREQUENCY: Final = 0.05
POPULATION_SPREAD: Final = 1.15  # between strangers, in standard deviations of the parameters
FAMILY_SPREAD: Final = 0.3  # within a family
SIDE_SPREAD: Final = 0.4  # between the two knees of a person
OUTWARDS: Final = np.array([[-1.0], [1.0]])  # sign of u on the lateral and on the medial side
MIN_RIM_SEPARATION: Final = 0.015
FLOOR: Final = 0.7  # depth of the plateau's floor under its upper rim, over the rim separation
CONDYLE_ENDS: Final = (-0.43, 0.43)  # u beyond which the joint space is open
OPENING: Final = 0.25  # how fast it opens there, v per u
MARGIN_SLOPE: Final = 0.7  # by which the direction to a plateau's margin points up
MARGIN_REACH: Final = 0.1  # how far below the end of the joint surface a margin may lie
SURFACE_REACH: Final = 0.02  # the same of an end of the joint surface itself
MARGIN_SOFTNESS: Final = 0.004  # in the average that locates it, in plateau widths


def _parameter(*mean: Any, spread: Any) -> Any:
    """Return a dataclass field with a population mean and a standard deviation.

    The mean is a number, a vector or two rows, lateral and medial; the deviation is one number for
    all of it, one per column, or of the same shape.
    """
    value = mean[0] if len(mean) == 1 else np.array(mean, dtype=np.float64)
    return field(default_factory=lambda: value, metadata={"spread": np.array(spread)})


@dataclass(frozen=True, slots=True, eq=False)
class KneeShape:
    """Shape and composition of one knee; lengths in plateau widths, defaults are the mean knee.

    The random draws follow the order of the fields, so that reordering them changes every phantom.
    Outlines have two rows: u of the lateral side and of the medial one.
    """

    femur: Array = _parameter(  # at FEMUR_V
        (-0.46, -0.40, -0.39, -0.37, -0.37, -0.40, -0.465, -0.512, -0.502, -0.475, -0.452, -0.44),
        (-0.08, -0.02, 0.06, 0.17, 0.30, 0.45, 0.545, 0.565, 0.553, 0.525, 0.50, 0.48),
        spread=0.009,
    )
    # v of the femur's distal end at CONDYLES_U: both condyles and the intercondylar notch
    condyles: Array = _parameter(
        *(-0.25, -0.110, -0.060, -0.048, -0.080, -0.126, -0.172, -0.184),
        *(-0.164, -0.112, -0.058, -0.032, -0.040, -0.084, -0.25),
        spread=0.007,
    )
    tibia: Array = _parameter(  # at TIBIA_V
        (
            *(-0.47, -0.5, -0.503, -0.514, -0.500, -0.425, -0.295),
            *(-0.195, -0.15, -0.1, -0.07, -0.07, -0.1),
        ),
        (0.47, 0.50, 0.497, 0.480, 0.445, 0.400, 0.325, 0.257, 0.235, 0.235, 0.25, 0.26, 0.32),
        # Below its rim the lateral side bulges in most knees.
        spread=(
            (0.01, 0.0, 0.008, 0.018, 0.018, 0.016, *[0.010] * 7),
            (0.01, 0.0, 0.005, 0.009, 0.010, 0.012, *[0.010] * 7),
        ),
    )
    # v of the tibial plateau at PLATEAU_U, without the spines
    plateau: Array = _parameter(
        *(0.042, -0.002, 0.007, -0.008, -0.030, -0.044, -0.050),
        *(-0.046, -0.032, 0.000, 0.017, 0.002, 0.034),
        spread=(0.018, 0.008, *[0.006] * 9, 0.010, 0.018),
    )
    # tibial spines: u and height of the lateral one, then of the medial one
    spines: Array = _parameter((-0.07, 0.055), (0.085, 0.062), spread=(0.018, 0.018))
    fibula: Array = _parameter(  # at FIBULA_V
        (-0.53, -0.605, -0.635, -0.585, -0.515, -0.47, -0.435, -0.42, -0.43, -0.46),
        (-0.45, -0.385, -0.345, -0.355, -0.36, -0.335, -0.29, -0.275, -0.285, -0.27),
        spread=0.012,
    )
    skin: Array = _parameter(  # at SKIN_V
        (-1.25, -1.12, -1.0, -0.87, -0.75, -0.715, -0.75, -0.84, -0.80, -0.62, -0.48, -0.44),
        (1.3, 1.15, 1.05, 1.0, 0.94, 0.89, 0.86, 0.86, 0.82, 0.62, 0.46, 0.44),
        spread=0.025,
    )
    femur_shear: float = _parameter(0.0, spread=0.045)  # u per v; with tibia_shear varus or valgus
    tibia_shear: float = _parameter(0.02, spread=0.035)
    condyle_tilt: float = _parameter(0.0, spread=0.015)  # tilt of the line through both condyles
    shaft_width: float = _parameter(1.0, spread=0.07)  # factor
    girth: Array = _parameter(1.0, 1.0, spread=(0.13, 0.15))  # factors: whole leg, thigh
    fat: Array = _parameter(0.10, 0.13, spread=(0.04, 0.05))  # subcutaneous: lateral, medial
    # patella: centre u and v, half width, half height, thickness
    patella: Array = _parameter(
        -0.06, -0.62, 0.275, 0.28, 0.24, spread=(0.05, 0.07, 0.02, 0.02, 0.03)
    )
    axial_rotation: float = _parameter(0.0, spread=0.055)  # shift of the fibula
    fibula_v: float = _parameter(0.06, spread=0.05)  # how much lower its head lies
    flexion: float = _parameter(0.0, spread=0.5)  # deepens the notch, lowers the patella
    # v from the anterior to the posterior plateau rim: lateral, medial
    rim_separation: Array = _parameter(0.070, 0.070, spread=0.020)
    cortical_thickness: float = _parameter(1.0, spread=0.18)  # factor
    bone_density: float = _parameter(1.0, spread=0.17)  # factor
    trabecular_contrast: float = _parameter(1.0, spread=0.25)  # factor
    # osteoarthritis
    narrowing: Array = _parameter(0.0, 0.0, spread=0.008)  # joint space: lateral, medial
    osteophytes: Array = _parameter((0.0, 0.0), (0.0, 0.0), spread=0.0)  # rows: femur, tibia
    sclerosis: Array = _parameter(1.0, 1.0, spread=0.25)  # factors: lateral, medial plateau
    # fine lines, as factors on their strength: growth plate scars of femur and tibia, subchondral
    # plate, roof of the notch, grooves beside the epicondyles, crest of the spines, rims
    lines: Array = _parameter(0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, spread=0.6)
    # shift of the scars and grooves from their usual places
    line_shifts: Array = _parameter(0.0, 0.0, 0.0, 0.0, spread=0.025)
    calcification: float = _parameter(0.0, spread=0.0)  # in cartilage: attenuation of a line
    growth_plates: float = _parameter(0.0, spread=0.0)  # width; open in children, else 0


def sample_knees(
    rng: Rng, family: int | None
) -> tuple[tuple[KneeShape, KneeShape], tuple[int, int]]:
    """Sample the two knees of one person, similar but not equal, and their KL grades."""
    mean, spread = KneeShape(), POPULATION_SPREAD
    if family is not None:
        mean, spread = _vary(mean, spread, np.random.default_rng([family, 7])), FAMILY_SPREAD
    person = _vary(mean, spread, rng)
    if rng.random() < FLEXED_FREQUENCY:
        # In fixed flexion the beam runs along the plateau, and the notch opens.
        rims, flexion = 0.4 * person.rim_separation, person.flexion + 0.8
        person = replace(person, rim_separation=rims, flexion=flexion)
    if rng.random() < OBLIQUE_FREQUENCY:  # the head of the fibula overlaps the tibia, or is clear
        turned = person.axial_rotation + rng.uniform(-0.06, 0.2)
        person = replace(person, axial_rotation=turned)
    first = int(rng.choice(5, p=GRADE_FREQUENCY))
    second = int(np.clip(first + rng.choice([-1, 0, 1], p=[0.25, 0.5, 0.25]), 0, 4))
    grades = first, second
    one, two = (_with_arthritis(_vary(person, SIDE_SPREAD, rng), grade, rng) for grade in grades)
    if rng.random() < CHILD_FREQUENCY:
        width, grades = rng.uniform(0.01, 0.035), (0, 0)
        one, two = (_as_child(_vary(person, SIDE_SPREAD, rng), width) for _ in range(2))
    elif rng.random() < CALCIFICATION_FREQUENCY:
        one, two = (replace(each, calcification=rng.uniform(0.03, 0.12)) for each in (one, two))
    return (one, two), grades


def _as_child(shape: KneeShape, width: float) -> KneeShape:
    """Open the growth plates; the cartilage of a child is thick and its spines are low."""
    low = shape.spines * [1.0, 0.6]
    return replace(shape, growth_plates=width, narrowing=shape.narrowing - 0.03, spines=low)


def _vary(mean: KneeShape, amount: float, rng: Rng) -> KneeShape:
    """Sample a shape from a Gaussian of `amount` standard deviations, cut off at 2.5 sigma."""
    drawn: dict[str, Any] = {}
    for each in fields(KneeShape):
        value, spread = getattr(mean, each.name), each.metadata["spread"]
        noise = np.clip(rng.normal(size=np.shape(value)), -2.5, 2.5)
        varied = value + amount * spread * noise
        drawn[each.name] = varied if np.ndim(value) else float(varied)
    return KneeShape(**drawn)


def _with_arthritis(shape: KneeShape, grade: int, rng: Rng) -> KneeShape:
    """Add the signs of a KL grade: narrowing, osteophytes, sclerosis and, from 3 on, bowing.

    One compartment is affected most, the medial one in three knees of four.
    """
    medial = bool(rng.random() < 0.75)
    share = np.array([0.25, 1.0] if medial else [1.0, 0.25])  # lateral, medial
    narrowing = NARROWING[grade] * rng.uniform(0.4, 1.6)
    osteophytes = OSTEOPHYTE[grade] * rng.uniform(0.0, 1.4, (2, 2)) * (0.6 + 0.4 * share)
    sclerosis = SCLEROSIS[grade] * rng.uniform(0.6, 1.3)
    bowing = 0.045 * max(grade - 2, 0) * rng.uniform(0.2, 1.2) * (1 if medial else -1)
    # The joint space narrows until bone lies on bone.
    u, wide = np.linspace(0.2, 0.43, 24), replace(shape, narrowing=np.zeros(2))
    room = [(tibia_border(wide, s * u) - femur_border(wide, s * u)).min() for s in (-1, 1)]
    return replace(
        shape,
        narrowing=np.minimum(shape.narrowing + narrowing * share, room),
        osteophytes=osteophytes,
        sclerosis=shape.sclerosis + sclerosis * share,
        tibia_shear=shape.tibia_shear + bowing,
        femur_shear=shape.femur_shear - bowing,
    )


def femur_outline(shape: KneeShape, v: Array) -> Array:
    """Return u of the femur's lateral and medial outline at v, osteophytes included: (2, H)."""
    shear = shape.femur_shear * np.clip(v + 0.5, None, 0)
    shaft = np.clip((-v - 0.6) / 0.6, 0, 1)
    axis, factor = -0.15 * shaft, 1 + (shape.shaft_width - 1) * shaft
    sides = axis + (catmull_rom(v, FEMUR_V, shape.femur) - axis) * factor + shear
    return sides + OUTWARDS * _bell(v, -0.13, 0.04, shape.osteophytes[0][:, None])


def condyle_line(shape: KneeShape, u: Array) -> Array:
    """Return v of the femur's distal end at u: condyles, notch, tilt and joint space."""
    notch = _bell(u, 0.03, 0.10, -0.04 * max(shape.flexion, -0.6))
    lowered: Array = np.interp(u, [-0.2, 0.2], shape.narrowing) + shape.condyle_tilt * u
    return catmull_rom(u, CONDYLES_U, shape.condyles) + notch + lowered


def tibia_outline(shape: KneeShape, v: Array) -> Array:
    """Return u of the tibia's lateral and medial outline at v, osteophytes included: (2, H)."""
    shear = shape.tibia_shear * np.clip(v - 0.12, 0, None)
    factor = 1 + (shape.shaft_width - 1) * np.clip((v - 0.1) / 0.5, 0, 1)
    sides = catmull_rom(v, TIBIA_V, shape.tibia) * factor + shear
    return sides + OUTWARDS * _bell(v, 0.012, 0.035, shape.osteophytes[1][:, None])


def plateau_line(shape: KneeShape, u: Array) -> Array:
    """Return v of the tibial plateau at u, without the spines."""
    return catmull_rom(u, PLATEAU_U, shape.plateau)


def spine_height(shape: KneeShape, u: Array) -> Array:
    """Return how far the tibial spines rise above the plateau at u."""
    at, height = shape.spines.T[..., None]
    peak = 0.7 * np.exp(-(np.abs((u - at) / 0.055) ** 1.6)) + _bell(u, at, 0.14, 0.3)
    highest: Array = (height * peak).max(axis=0)
    return highest


def femur_border(shape: KneeShape, u: Array) -> Array:
    """Return v of the lower border of the condyles at u, as a reader draws it.

    Beyond the condyles' ends it leads on outwards, instead of up along the bone's sides.
    """
    ends = np.clip(u, *CONDYLE_ENDS)
    opened = condyle_line(shape, ends) - OPENING * np.abs(u - ends)
    return np.maximum(condyle_line(shape, u), opened)


def tibia_border(shape: KneeShape, u: Array) -> Array:
    """Return v of the upper border of the plateau at u: its floor, and the crest of the spines."""
    spines = spine_height(shape, u)
    floor = FLOOR * rim_height(shape, u) * (1 - np.clip(spines / 0.025, 0, 1))
    border: Array = plateau_line(shape, u) - spines + floor
    return border


def rim_height(shape: KneeShape, u: Array) -> Array:
    """Return the distance between the upper and the lower rim at u; they meet at the sides."""
    rims = np.clip(shape.rim_separation, MIN_RIM_SEPARATION, None)
    meeting = np.clip((0.53 - np.abs(u)) / 0.12, 0.15, 1.0)
    height: Array = np.interp(u, [-0.1, 0.1], rims) * meeting
    return height


def fibula_outline(shape: KneeShape, v: Array) -> Array:
    """Return u of the fibula's lateral and medial outline at v: (2, H)."""
    shift = shape.tibia_shear * (v - 0.12) + shape.axial_rotation
    return catmull_rom(v - shape.fibula_v, FIBULA_V, shape.fibula) + shift


def surface_ends(shape: KneeShape) -> list[Point]:
    """Return the ends (u, v) of the tibial joint surface: lateral, medial."""
    return plateau_margins(shape, SURFACE_REACH)


def plateau_margins(shape: KneeShape, reach: float = MARGIN_REACH) -> list[Point]:
    """Return the margins (u, v) of the tibial plateau, as readers mark them: lateral, medial.

    A margin is the outermost point within reach below the joint surface, half way between the base
    of an osteophyte and its tip. Further down the bone often bulges even more, so that it is sought
    in a direction that points outwards and slightly up. At the medial side this is the end of the
    joint surface; the lateral side is rounded, and on average 0.5 % of the width further out and
    0.7 % lower, where it is labelled on real films.
    """
    v = np.linspace(-0.04, 0.12, 161)
    half_grown = replace(shape, osteophytes=0.5 * shape.osteophytes)
    margins = []
    for side, sign in zip(tibia_outline(half_grown, v), OUTWARDS, strict=True):
        top = v[np.argmax(v >= plateau_line(shape, side))]  # where the joint surface ends
        out = sign * side - MARGIN_SLOPE * v
        out[(v < top) | (v > top + reach)] = -np.inf
        at = float(np.average(v, weights=np.exp((out - out.max()) / MARGIN_SOFTNESS)))
        margins.append((float(np.interp(at, v, side)), at))
    return margins


def catmull_rom(x: Array, knots: Array, values: Array) -> Array:
    """Evaluate cubic Catmull-Rom splines at x (N,): (..., N), constant outside of the knots.

    `values` (..., K) are those at the increasing knots (K,).
    """
    before, after = np.arange(len(knots)) - 1, np.arange(len(knots)) + 1
    before[0], after[-1] = 0, -1
    slope = (values[..., after] - values[..., before]) / (knots[after] - knots[before])
    x = np.clip(x, knots[0], knots[-1])
    k = np.clip(np.searchsorted(knots, x) - 1, 0, len(knots) - 2)
    step = (knots[1:] - knots[:-1])[k]
    t = (x - knots[k]) / step
    smooth = t * t * (3 - 2 * t)
    ends: Array = values[..., k] * (1 - smooth) + values[..., k + 1] * smooth
    bends: Array = step * t * (1 - t) * (slope[..., k] * (1 - t) - slope[..., k + 1] * t)
    return ends + bends


def _bell(x: Array, centre: Array | float, width: float, height: Array | float) -> Array:
    """Evaluate a Gaussian bump at x."""
    bell: Array = height * np.exp(-(((x - centre) / width) ** 2))
    return bell
