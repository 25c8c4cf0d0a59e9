"""Seeded descriptions of knees: outlines and densities by person, side and grade.

The frame of a knee: its origin is the middle of the tibial plateau, the unit the plateau's width,
u grows towards the body's midline (medial), v towards the foot.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# By KL-like grade 0..4: how common it is, and its marks in plateau widths (sclerosis: a factor).
GRADE_SHARE = (0.38, 0.20, 0.22, 0.14, 0.06)
NARROWING = (0.0, 0.006, 0.018, 0.036, 0.058)
SPUR = (0.0, 0.006, 0.022, 0.045, 0.070)
SCLEROSIS = (0.0, 0.1, 0.3, 0.7, 1.2)

# Where the outlines are pinned: along the bone (v), or across the joint (u).
FEMUR_AT = np.array(
    [-4.5, -2.0, -1.37, -1.0, -0.8, -0.66, -0.52, -0.40, -0.30, -0.20, -0.12, -0.05]
)
CONDYLES_AT = np.array(
    [-0.55, -0.47, -0.40, -0.31, -0.2, -0.11, -0.04, 0.03, 0.1, 0.17, 0.25, 0.34, 0.43, 0.49, 0.56]
)
TIBIA_AT = np.array([-0.04, 0.02, 0.06, 0.12, 0.2, 0.29, 0.44, 0.71, 1.0, 1.66, 2.5, 3.6, 5.0])
PLATEAU_AT = np.array(
    [-0.52, -0.45, -0.3, -0.2, -0.13, -0.07, 0.0, 0.075, 0.13, 0.2, 0.3, 0.45, 0.52]
)
FIBULA_AT = np.array([0.15, 0.22, 0.36, 0.5, 0.68, 1.0, 1.66, 2.5, 3.6, 5.0])
LEG_AT = np.array([-4.5, -3.0, -2.0, -1.2, -0.6, 0.0, 0.5, 1.2, 1.9, 3.0, 4.0, 5.0])


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What makes one knee differ from another; every field a vector, lengths in plateau widths."""

    femur_lateral: Array  # u of the outline at FEMUR_AT
    femur_medial: Array
    condyles: Array  # v of the femur's lower end at CONDYLES_AT
    tibia_lateral: Array  # u of the outline at TIBIA_AT
    tibia_medial: Array
    plateau: Array  # v of the tibia's upper end at PLATEAU_AT
    spines: Array  # u and height of the lateral spine, of the medial one
    fibula_lateral: Array  # u of the outline at FIBULA_AT
    fibula_medial: Array
    leg_lateral: Array  # u of the skin at LEG_AT
    leg_medial: Array
    femur_lean: Array  # shear of the femur, of the lower leg, of both condyles' line
    tibia_lean: Array
    condyle_tilt: Array
    shaft: Array  # factor on the width of the shafts
    girth: Array  # factors on the leg's width: at the knee, the thigh
    fat: Array  # thickness under the skin: lateral, medial
    patella: Array  # centre u, v; half width, half height; thickness
    turn: Array  # axial rotation: shifts the fibula and, the other way, the patella
    flexion: Array  # deepens the notch, lowers the patella
    rim: Array  # v between the plateau's front and back rim
    cortex: Array  # factor on the cortical thickness
    density: Array  # factor on bone mineral
    texture: Array  # strength of the trabeculae
    # by disease
    gap: Array  # how far the condyles come down: lateral, medial
    osteophytes: Array  # femur lateral, medial; tibia lateral, medial
    sclerosis: Array  # of the plateau: lateral, medial


def _row(*values: float) -> Array:
    return np.array(values, dtype=np.float64)


MEAN = Shape(
    femur_lateral=_row(
        -0.46, -0.40, -0.39, -0.37, -0.37, -0.40, -0.46, -0.505, -0.485, -0.455, -0.445, -0.44
    ),
    femur_medial=_row(-0.08, -0.02, 0.06, 0.17, 0.30, 0.43, 0.52, 0.53, 0.515, 0.50, 0.495, 0.49),
    condyles=_row(
        *(-0.25, -0.10, -0.057, -0.047, -0.072, -0.114, -0.154, -0.164),
        *(-0.144, -0.098, -0.058, -0.043, -0.053, -0.092, -0.25),
    ),
    tibia_lateral=_row(
        -0.46, -0.50, -0.499, -0.49, -0.46, -0.40, -0.295, -0.20, -0.15, -0.10, -0.07, -0.07, -0.1
    ),
    tibia_medial=_row(
        0.46, 0.50, 0.497, 0.485, 0.457, 0.41, 0.33, 0.255, 0.235, 0.235, 0.25, 0.26, 0.32
    ),
    plateau=_row(
        *(0.02, -0.006, 0.004, -0.012, -0.030, -0.044, -0.050),
        *(-0.046, -0.034, -0.010, 0.008, 0.0, 0.02),
    ),
    spines=_row(-0.05, 0.065, 0.08, 0.075),
    fibula_lateral=_row(-0.50, -0.56, -0.59, -0.545, -0.485, -0.445, -0.41, -0.40, -0.42, -0.46),
    fibula_medial=_row(-0.42, -0.36, -0.325, -0.34, -0.345, -0.32, -0.27, -0.26, -0.28, -0.27),
    leg_lateral=_row(
        -1.25, -1.12, -1.0, -0.87, -0.75, -0.715, -0.75, -0.84, -0.80, -0.62, -0.48, -0.44
    ),
    leg_medial=_row(1.3, 1.15, 1.05, 1.0, 0.94, 0.89, 0.86, 0.86, 0.82, 0.62, 0.46, 0.44),
    femur_lean=_row(0.0),
    tibia_lean=_row(0.02),
    condyle_tilt=_row(0.0),
    shaft=_row(1.0),
    girth=_row(1.0, 1.0),
    fat=_row(0.10, 0.13),
    patella=_row(-0.06, -0.62, 0.275, 0.28, 0.24),
    turn=_row(0.0),
    flexion=_row(0.0),
    rim=_row(0.042),
    cortex=_row(1.0),
    density=_row(1.0),
    texture=_row(1.0),
    gap=_row(0.0, 0.0),
    osteophytes=_row(0.0, 0.0, 0.0, 0.0),
    sclerosis=_row(1.0, 1.0),
)

# Standard deviation from person to person; single numbers serve the whole outline.
SPREAD = Shape(
    femur_lateral=_row(0.010),
    femur_medial=_row(0.010),
    condyles=_row(0.006),
    tibia_lateral=_row(0.0, 0.0, 0.003, *[0.009] * 10),
    tibia_medial=_row(0.0, 0.0, 0.003, *[0.009] * 10),
    plateau=_row(0.005),
    spines=_row(0.012, 0.015, 0.012, 0.015),
    fibula_lateral=_row(0.010),
    fibula_medial=_row(0.010),
    leg_lateral=_row(0.025),
    leg_medial=_row(0.025),
    femur_lean=_row(0.045),
    tibia_lean=_row(0.035),
    condyle_tilt=_row(0.015),
    shaft=_row(0.07),
    girth=_row(0.13, 0.15),
    fat=_row(0.04, 0.05),
    patella=_row(0.05, 0.07, 0.02, 0.02, 0.03),
    turn=_row(0.04),
    flexion=_row(0.5),
    rim=_row(0.014),
    cortex=_row(0.18),
    density=_row(0.17),
    texture=_row(0.25),
    gap=_row(0.008),
    osteophytes=_row(0.0),
    sclerosis=_row(0.15),
)


def vary(shape: Shape, amount: float, rng: np.random.Generator) -> Shape:
    """Draw a shape around another one, `amount` times as far as people differ."""
    drawn = {}
    for field in fields(Shape):
        mean, spread = getattr(shape, field.name), getattr(SPREAD, field.name)
        drawn[field.name] = mean + amount * spread * rng.normal(size=mean.shape).clip(-2.5, 2.5)
    return Shape(**drawn)


def diseased(shape: Shape, grade: int, rng: np.random.Generator) -> Shape:
    """Narrow one compartment, grow osteophytes and sclerosis and bow the leg as the grade says."""
    medial = bool(rng.random() < 0.75)
    share = np.array([0.25, 1.0] if medial else [1.0, 0.25])  # lateral, medial
    narrowing = NARROWING[grade] * rng.uniform(0.6, 1.2)
    spurs = SPUR[grade] * rng.uniform(0.2, 1.3, 4) * np.tile(0.6 + 0.4 * share, 2)
    dense = SCLEROSIS[grade] * rng.uniform(0.6, 1.3)
    bow = 0.045 * max(grade - 2, 0) * rng.uniform(0.2, 1.2) * (1 if medial else -1)
    return replace(
        shape,
        gap=shape.gap + narrowing * share,
        osteophytes=spurs,
        sclerosis=shape.sclerosis + dense * share,
        tibia_lean=shape.tibia_lean + bow,
        femur_lean=shape.femur_lean - bow,
    )


def person(rng: np.random.Generator, family: int | None) -> Shape:
    """Draw a person's knee: anyone, or one that is much like the others of its family."""
    if family is None:
        return vary(MEAN, 1.15, rng)
    return vary(vary(MEAN, 1.15, np.random.default_rng([family, 7])), 0.3, rng)


def draw_knees(
    rng: np.random.Generator, family: int | None
) -> tuple[tuple[Shape, int], tuple[Shape, int]]:
    """Draw two knees of one person, alike but not equal, each with its grade."""
    base = person(rng, family)
    first = int(rng.choice(5, p=GRADE_SHARE))
    second = int(np.clip(first + rng.choice([-1, 0, 1], p=[0.25, 0.5, 0.25]), 0, 4))
    one, two = (diseased(vary(base, 0.4, rng), grade, rng) for grade in (first, second))
    return (one, first), (two, second)
