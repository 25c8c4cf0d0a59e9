"""Measures of one knee's outlines, their uncertainties, and why one is left out.

Joint-space widths are in percent of the tibial plateau's width, areas in percent of its square,
angles in degrees; docs/measures.md defines them. Fixed locations: Duryea et al., "New
radiographic-based surrogate outcome measures for osteoarthritis of the knee", Osteoarthritis and
Cartilage 2003.
"""

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, Final

import numpy as np

from kneematch.knee.outlines import Array, Outlines

WIDTH: Final = "pct"  # percent of the plateau's width
AREA: Final = "pct2"  # percent of its square
ANGLE: Final = "deg"
PERCENT: Final = 100.0

MEDIAL: Final = "medial"
LATERAL: Final = "lateral"
# x, from the medial margin; nearer the middle, the tibial border climbs to the spines.
COMPARTMENTS: Final = {MEDIAL: (0.10, 0.30), LATERAL: (0.70, 0.90)}
FIXED: Final = (
    *(0.15, 0.175, 0.20, 0.225, 0.25, 0.275, 0.30),
    *(0.70, 0.725, 0.75, 0.775, 0.80, 0.825, 0.85),
)
LENGTHS: Final = ("minimum", "orthogonal_minimum", "mean")
FIXED_WIDTHS: Final = {f"jsw_x{round(1000 * x):03d}": x for x in FIXED}  # names and their x
UNITS: Final = {  # by the name of the measure
    **{f"jsw_{name}_{kind}": WIDTH for name in COMPARTMENTS for kind in LENGTHS},
    **{f"joint_space_{name}_area": AREA for name in COMPARTMENTS},
    **dict.fromkeys(FIXED_WIDTHS, WIDTH),
    "joint_line_angle": ANGLE,
    "tibiofemoral_angle": ANGLE,
}

PLACES: Final = 101  # places at which a compartment or a shaft is measured
# The part of a shaft whose axis is taken, as distances from the plateau in plateau widths, and how
# much of it a film must show.
SHAFT: Final = (0.8, 1.5)
SHORTEST_SHAFT: Final = 0.6
SHAFT_SD: Final = 0.4  # standard deviation of the tibiofemoral angle on phantoms, in degrees

CROSSING: Final = "outlines cross"
UNCLEAR: Final = "outline not clear"
WRONG_SIZE: Final = "outline does not fit the area"
SHORT_SHAFT: Final = "shaft too short"

MAX_SD: Final = 2.0  # largest standard deviation of a width that is reported
CROSSED: Final = -0.5  # a width below this is a mistake, and not bone on bone
NEAR: Final = 0.025  # x to either side of a minimum that its standard deviation is taken over
PLAUSIBLE: Final = (0.8, 1.25)  # width of the outlined plateau over that of the detected one


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure, or the reason why it is left out."""

    value: float | None
    sd: float | None  # standard deviation
    unit: str  # "pct", "pct2" or "deg"
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class JointMeasures:
    """The outlines of a knee's bones, and what was measured on them, by name."""

    outlines: Outlines
    values: Mapping[str, Measure]

    @classmethod
    def from_outlines(cls, outlines: Outlines) -> "JointMeasures":
        """Measure outlines."""
        return cls(outlines, measure_outlines(outlines))

    def left_out(self, reason: str) -> "JointMeasures":
        """Return the outlines with every measure left out for a reason."""
        values = {
            name: Measure(None, None, each.unit, reason) for name, each in self.values.items()
        }
        return replace(self, values=values)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold: each measure as [value, sd, unit, reason]."""
        values = {name: [*astuple(each)] for name, each in self.values.items()}
        return {"outlines": self.outlines.to_dict(), "values": values}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "JointMeasures":
        """Return the measures that `to_dict` wrote."""
        values = {name: Measure(*each) for name, each in plain["values"].items()}
        return cls(Outlines.from_dict(plain["outlines"]), values)


def measure_outlines(outlines: Outlines) -> dict[str, Measure]:
    """Return every measure of a knee, by the names in UNITS.

    Where the outlines' standard deviations are not known, those of measures are not, either.
    """
    found: dict[str, Measure] = {}
    for name, (start, end) in COMPARTMENTS.items():
        x = _places(name)
        widths = widths_at(outlines, x)
        sd = _sd(outlines, np.linspace(start, end, 11))
        at_minimum = _sd(outlines, x[widths.argmin()] + np.linspace(-NEAR, NEAR, 5))
        orthogonal = orthogonal_minimum_width(outlines, name)
        found[f"jsw_{name}_minimum"] = _width(float(widths.min()), at_minimum)
        found[f"jsw_{name}_orthogonal_minimum"] = _width(orthogonal, at_minimum)
        found[f"jsw_{name}_mean"] = mean = _width(float(widths.mean()), sd)
        area = Measure(float(np.trapezoid(widths.clip(min=0), x)), (end - start) * sd, AREA)
        found[f"joint_space_{name}_area"] = (
            area if mean.value is not None else replace(mean, unit=AREA)
        )
    fixed = np.array(FIXED)
    widths_and_sds = widths_at(outlines, fixed).tolist(), _deviations(outlines, fixed).tolist()
    for name, width, sd in zip(FIXED_WIDTHS, *widths_and_sds, strict=True):
        found[name] = _width(width, sd)
    found["joint_line_angle"] = Measure(joint_line_angle(outlines), _angle_sd(outlines), ANGLE)
    if not (len(outlines.femur_sd) and len(outlines.tibia_sd)):
        found = {name: replace(each, sd=None) for name, each in found.items()}
    angle = tibiofemoral_angle(outlines)
    missing = Measure(None, None, ANGLE, SHORT_SHAFT)
    found["tibiofemoral_angle"] = missing if angle is None else Measure(angle, SHAFT_SD, ANGLE)
    return found


def review_reasons(outlines: Outlines, detected_px: float) -> list[str]:
    """Return why outlines are not credible; nothing if they are.

    Args:
        outlines: the outlines of one knee.
        detected_px: width of the plateau according to the detection.
    """
    x = np.concatenate([np.linspace(*ends, 21) for ends in COMPARTMENTS.values()])
    fits = PLAUSIBLE[0] <= outlines.width_px / detected_px <= PLAUSIBLE[1]
    reasons = {
        WRONG_SIZE: not fits,
        CROSSING: np.median(widths_at(outlines, x)) < 0,
        UNCLEAR: np.median(_deviations(outlines, x)) > MAX_SD,
    }
    return [reason for reason, applies in reasons.items() if applies]


def in_mm(measure: Measure, outlines: Outlines, magnification: float = 1.0) -> float | None:
    """Return a measure in mm, or mm2, at the detector; divided by a magnification if one is known.

    None for angles, for films without spacing, and for measures that are left out.
    """
    if outlines.width_mm is None or measure.value is None or measure.unit == ANGLE:
        return None
    length = outlines.width_mm / magnification
    return measure.value / PERCENT * (length**2 if measure.unit == AREA else length)


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
    distance = PERCENT * float(np.abs(away - along * step).min())
    return -distance if minimum_width(outlines, compartment) < 0 else distance


def joint_line_angle(outlines: Outlines) -> float:
    """Return the joint-line convergence angle: femoral against tibial joint line.

    The femoral one is the tangent to both condyles, the tibial one the line of best fit to the
    plateaus of both compartments. Positive where the joint space is wider laterally.
    """
    places = [_places(compartment) for compartment in COMPARTMENTS]
    condyles = [_height_at(outlines, outlines.femur, x) for x in places]
    lowest = [(x[y.argmax()], y.max()) for x, y in zip(places, condyles, strict=True)]
    (x0, y0), (x1, y1) = lowest
    x = np.concatenate(places)
    plateau = np.polyfit(x, _height_at(outlines, outlines.tibia, x), 1)[0]
    return math.degrees(math.atan(plateau) - math.atan2(y1 - y0, x1 - x0))


def tibiofemoral_angle(outlines: Outlines) -> float | None:
    """Return the angle between the shafts of femur and tibia; None where a shaft is too short.

    Positive is varus: the foot is medial of the femur's axis.
    """
    femur = _shaft_axis(outlines, outlines.femur_sides, down=-1.0)
    tibia = _shaft_axis(outlines, outlines.tibia_sides, down=1.0)
    return None if femur is None or tibia is None else math.degrees(femur - tibia)


def _shaft_axis(outlines: Outlines, sides: tuple[Array, Array], down: float) -> float | None:
    """Return the angle of a shaft's axis against the plateau's perpendicular, if it is shown.

    Args:
        outlines: the outlines of one knee.
        sides: left and right side of the shaft, (R, 2) each, in film pixels.
        down: 1 if the shaft lies below the plateau, -1 if above.
    """
    left, right = (outlines.in_plateau_widths(side) for side in sides)
    if min(len(left), len(right)) < 2:
        return None
    reach = min(SHAFT[1], (down * left[:, 1]).max(), (down * right[:, 1]).max())
    if reach - SHAFT[0] < SHORTEST_SHAFT:
        return None
    y = down * np.linspace(SHAFT[0], reach, PLACES)
    sides_at_y = [np.interp(y, *side[np.argsort(side[:, 1])].T[::-1]) for side in (left, right)]
    middle = np.mean(sides_at_y, axis=0)
    # Theil and Sen's slope, the median of all pairs', is robust to a side that was lost in part;
    # scipy.stats has it, but takes 0.4 s to import.
    one, two = np.triu_indices(PLACES, 1)
    return math.atan(float(np.median((middle[two] - middle[one]) / (y[two] - y[one]))))


def _places(compartment: str) -> Array:
    return np.linspace(*COMPARTMENTS[compartment], PLACES)


def _height_at(outlines: Outlines, line: Array, x: Array) -> Array:
    """Return y (K,) of a border at x (K,), in plateau widths."""
    return np.asarray(np.interp(x, *outlines.border_in_plateau_widths(line).T))


def _width(width: float, sd: float) -> Measure:
    """Return a width, or why it is left out."""
    reason = CROSSING if width < CROSSED else UNCLEAR if sd > MAX_SD else ""
    return Measure(None, None, WIDTH, reason) if reason else Measure(max(width, 0.0), sd, WIDTH)


def _angle_sd(outlines: Outlines) -> float:
    """Return the standard deviation of the joint-line angle, in degrees.

    It is that of the difference of two widths whose errors are independent.
    """
    medial, lateral = (float(np.mean(ends)) for ends in COMPARTMENTS.values())
    sd = math.hypot(*_deviations(outlines, np.array([medial, lateral])))
    return math.degrees(sd / PERCENT / (lateral - medial))


def _sd(outlines: Outlines, x: Array) -> float:
    """Return the root mean square of the widths' standard deviations at x (K,), in percent."""
    return math.sqrt(float((_deviations(outlines, x) ** 2).mean()))


def _deviations(outlines: Outlines, x: Array) -> Array:
    """Return the standard deviations (K,) of the widths at x (K,), in percent; 0 if unknown."""
    total = np.zeros(len(x))
    for line, sd in ((outlines.femur, outlines.femur_sd), (outlines.tibia, outlines.tibia_sd)):
        if len(sd) == len(line):
            places = outlines.in_plateau_widths(line)[:, 0]
            order = np.argsort(places)
            total += np.interp(x, places[order], sd[order]) ** 2
    return PERCENT * np.sqrt(total) / outlines.width_px
