"""Joint-space width, area and angles as functions of outlines; defined in docs/measures.md.

Lengths are in percent of the tibial plateau's width, areas in percent of its square, angles in
degrees. Fixed locations: Duryea et al., "New radiographic-based surrogate outcome measures for
osteoarthritis of the knee", Osteoarthritis and Cartilage 2003.
"""

import math
from typing import Final

import numpy as np

from kneematch.knee.outlines import Array, Outlines

MEDIAL: Final = "medial"
LATERAL: Final = "lateral"
# x, from the medial margin; nearer the middle, the tibial border climbs to the spines.
COMPARTMENTS: Final = {MEDIAL: (0.10, 0.30), LATERAL: (0.70, 0.90)}
FIXED: Final = (
    *(0.15, 0.175, 0.20, 0.225, 0.25, 0.275, 0.30),
    *(0.70, 0.725, 0.75, 0.775, 0.80, 0.825, 0.85),
)
PLACES: Final = 101  # places at which a compartment is measured
# The part of a shaft whose axis is taken, as distances from the plateau in plateau widths, and how
# much of it a film must show.
SHAFT: Final = (0.8, 1.5)
SHORTEST_SHAFT: Final = 0.6

PERCENT: Final = 100.0


def widths_at(outlines: Outlines, x: Array) -> Array:
    """Return the width of the joint space (K,) at x (K,), perpendicular to the plateau's line.

    Negative where the borders cross.
    """
    femur, tibia = (_height_at(outlines, line, x) for line in (outlines.femur, outlines.tibia))
    return PERCENT * (tibia - femur)


def minimum_width(outlines: Outlines, compartment: str) -> float:
    """Return the smallest width of a compartment, perpendicular to the plateau's line."""
    return float(widths_at(outlines, _places(compartment)).min())


def narrowest_place(outlines: Outlines, compartment: str) -> float:
    """Return x of the smallest width of a compartment."""
    x = _places(compartment)
    return float(x[widths_at(outlines, x).argmin()])


def mean_width(outlines: Outlines, compartment: str) -> float:
    """Return the mean width of a compartment."""
    return float(widths_at(outlines, _places(compartment)).mean())


def area(outlines: Outlines, compartment: str) -> float:
    """Return the area of the joint space of a compartment."""
    x = _places(compartment)
    return float(np.trapezoid(widths_at(outlines, x).clip(min=0), x))


def orthogonal_minimum_width(outlines: Outlines, compartment: str) -> float:
    """Return the shortest distance between a compartment's femoral border and the tibia.

    In any direction, so it is at most the minimum width.
    """
    x = _places(compartment)
    # Points are complex numbers: the real part of a * conj(b) is the inner product.
    femur = x + 1j * _height_at(outlines, outlines.femur, x)
    tibia = outlines.in_plateau_widths(outlines.tibia) @ np.array([1, 1j])
    start, step = tibia[:-1], np.diff(tibia)
    away = femur[:, None] - start  # (K, M - 1)
    along = ((away * step.conj()).real / np.maximum(np.abs(step) ** 2, 1e-12)).clip(0, 1)
    distance = np.abs(away - along * step).min()
    crossed = minimum_width(outlines, compartment) < 0
    return PERCENT * float(-distance if crossed else distance)


def joint_line_angle(outlines: Outlines) -> float:
    """Return the joint-line convergence angle: femoral against tibial joint line.

    The femoral one is the tangent to both condyles, the tibial one the line of best fit to the
    plateaus of both compartments. Positive where the joint space is wider laterally.
    """
    condyles = [_lowest(outlines, compartment) for compartment in COMPARTMENTS]
    x = np.concatenate([_places(compartment) for compartment in COMPARTMENTS])
    plateau = np.polyfit(x, _height_at(outlines, outlines.tibia, x), 1)[0]
    (x0, y0), (x1, y1) = condyles
    return math.degrees(math.atan(plateau) - math.atan2(y1 - y0, x1 - x0))


def tibiofemoral_angle(outlines: Outlines) -> float | None:
    """Return the angle between the shafts of femur and tibia; None where a shaft is too short.

    Positive is varus: the foot is medial of the femur's axis.
    """
    axes = []
    for sides, proximal in ((outlines.femur_sides, True), (outlines.tibia_sides, False)):
        axis = _shaft_axis(outlines, sides, proximal=proximal)
        if axis is None:
            return None
        axes.append(axis)
    femur, tibia = axes
    return math.degrees(femur - tibia)


def _places(compartment: str) -> Array:
    return np.linspace(*COMPARTMENTS[compartment], PLACES)


def _height_at(outlines: Outlines, line: Array, x: Array) -> Array:
    """Return y (K,) of a border at x (K,), in plateau widths."""
    return np.asarray(np.interp(x, *outlines.border_in_plateau_widths(line).T))


def _lowest(outlines: Outlines, compartment: str) -> tuple[float, float]:
    """Return the most distal point (x, y) of a condyle."""
    x = _places(compartment)
    y = _height_at(outlines, outlines.femur, x)
    k = int(y.argmax())
    return float(x[k]), float(y[k])


def _shaft_axis(outlines: Outlines, sides: tuple[Array, Array], *, proximal: bool) -> float | None:
    """Return the angle of a shaft's axis against the plateau's perpendicular, or None."""
    left, right = (outlines.in_plateau_widths(side) for side in sides)
    if min(len(left), len(right)) < 2:
        return None
    towards = -1.0 if proximal else 1.0
    reach = min(SHAFT[1], (towards * left[:, 1]).max(), (towards * right[:, 1]).max())
    if reach - SHAFT[0] < SHORTEST_SHAFT:
        return None
    y = towards * np.linspace(SHAFT[0], reach, PLACES)
    sides_at_y = [np.interp(y, *side[np.argsort(side[:, 1])].T[::-1]) for side in (left, right)]
    middle = np.mean(sides_at_y, axis=0)
    # Theil and Sen's slope, the median of all pairs', bears a side that was lost in part;
    # scipy.stats has it, but takes long to import.
    one, two = np.triu_indices(PLACES, 1)
    return math.atan(float(np.median((middle[two] - middle[one]) / (y[two] - y[one]))))
