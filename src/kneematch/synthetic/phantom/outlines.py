"""The outlines of a knee's bones, and the truth that follows from them."""

from typing import Final

import numpy as np

from kneematch.synthetic.phantom.anatomy import (
    CONDYLES_AT,
    FEMUR_AT,
    FIBULA_AT,
    PLATEAU_AT,
    TIBIA_AT,
    Array,
    Shape,
)
from kneematch.synthetic.phantom.shapes import bump, spline

RIM: Final = 0.02  # of the plateau's width: less far out than this counts little as its margin


def femur_outline(shape: Shape, v: Array) -> tuple[Array, Array]:
    """The femur's lateral and medial outline at v, osteophytes included."""
    lean = shape.femur_lean[0] * np.clip(v + 0.5, None, 0)
    shaft = np.clip((-v - 0.6) / 0.6, 0, 1)
    axis, factor = -0.15 * shaft, 1 + (shape.shaft[0] - 1) * shaft
    lateral = axis + (spline(v, FEMUR_AT, shape.femur_lateral) - axis) * factor + lean
    medial = axis + (spline(v, FEMUR_AT, shape.femur_medial) - axis) * factor + lean
    lateral_spur, medial_spur = shape.osteophytes[:2]
    return (
        lateral - bump(v, -0.13, 0.04, lateral_spur),
        medial + bump(v, -0.13, 0.04, medial_spur),
    )


def condyle_line(shape: Shape, u: Array) -> Array:
    """v of the femur's lower end at u: condyles, notch, tilt and joint space."""
    notch = bump(u, 0.03, 0.10, -0.04 * max(float(shape.flexion[0]), -0.6))
    down: Array = np.interp(u, [-0.2, 0.2], shape.gap) + shape.condyle_tilt[0] * u
    return spline(u, CONDYLES_AT, shape.condyles) + notch + down


def tibia_outline(shape: Shape, v: Array) -> tuple[Array, Array]:
    """The tibia's lateral and medial outline at v, osteophytes included."""
    lean = shape.tibia_lean[0] * np.clip(v - 0.12, 0, None)
    thick = 1 + (shape.shaft[0] - 1) * np.clip((v - 0.1) / 0.5, 0, 1)
    lateral = spline(v, TIBIA_AT, shape.tibia_lateral) * thick + lean
    medial = spline(v, TIBIA_AT, shape.tibia_medial) * thick + lean
    lateral_spur, medial_spur = shape.osteophytes[2:]
    return (
        lateral - bump(v, 0.012, 0.035, lateral_spur),
        medial + bump(v, 0.012, 0.035, medial_spur),
    )


def plateau_line(shape: Shape, u: Array) -> Array:
    """v of the tibia's upper end at u, but for the spines."""
    return spline(u, PLATEAU_AT, shape.plateau)


def spine_height(shape: Shape, u: Array) -> Array:
    """How far the two spines rise above the plateau at u."""
    lateral, medial = (
        tall
        * (
            0.7 * np.exp(-(np.abs((u - at) / 0.055) ** 1.6))
            + 0.3 * np.exp(-(((u - at) / 0.14) ** 2))
        )
        for at, tall in shape.spines.reshape(2, 2)
    )
    height: Array = np.maximum(lateral, medial)
    return height


def fibula_outline(shape: Shape, v: Array) -> tuple[Array, Array]:
    """The fibula's lateral and medial outline at v."""
    shift = shape.tibia_lean[0] * (v - 0.12) + shape.turn[0]
    lateral = spline(v, FIBULA_AT, shape.fibula_lateral) + shift
    medial = spline(v, FIBULA_AT, shape.fibula_medial) + shift
    return lateral, medial


def margins(shape: Shape) -> tuple[tuple[float, float], tuple[float, float]]:
    """The outermost points (u, v) of the tibial plateau: lateral, medial.

    Where the rim runs straight down, no one point of it is outermost: one takes the middle.
    """
    v = np.linspace(-0.03, 0.1, 131)
    lateral, medial = tibia_outline(shape, v)
    low, high = (
        float(np.average(v, weights=np.exp((out - out.max()) / RIM))) for out in (-lateral, medial)
    )
    return (
        (float(np.interp(low, v, lateral)), low),
        (float(np.interp(high, v, medial)), high),
    )
