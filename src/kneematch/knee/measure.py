"""All measures of one knee with their uncertainties, and why one is left out."""

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, Final

import numpy as np

from kneematch.knee.joint_space import (
    COMPARTMENTS,
    FIXED,
    PERCENT,
    area,
    joint_line_angle,
    mean_width,
    minimum_width,
    narrowest_place,
    orthogonal_minimum_width,
    tibiofemoral_angle,
    widths_at,
)
from kneematch.knee.outlines import Array, Outlines

WIDTH: Final = "pct"  # percent of the plateau's width
AREA: Final = "pct2"  # percent of its square
ANGLE: Final = "deg"

LENGTHS: Final = ("minimum", "orthogonal_minimum", "mean")
FIXED_WIDTHS: Final = {f"jsw_x{round(1000 * x):03d}": x for x in FIXED}  # names and their x
UNITS: Final = {  # of every measure, by name
    **{f"jsw_{name}_{kind}": WIDTH for name in COMPARTMENTS for kind in LENGTHS},
    **{f"joint_space_{name}_area": AREA for name in COMPARTMENTS},
    **dict.fromkeys(FIXED_WIDTHS, WIDTH),
    "joint_line_angle": ANGLE,
    "tibiofemoral_angle": ANGLE,
}

SHAFT_SD: Final = 0.4  # of the tibiofemoral angle, in degrees; that of phantoms

CROSSING: Final = "outlines cross"
UNCLEAR: Final = "outline not clear"
WRONG_SIZE: Final = "outline does not fit the area"
SHORT_SHAFT: Final = "shaft too short"

MAX_SD: Final = 2.0  # of a width that is still reported, in percent of the plateau's width
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
    for name, ends in COMPARTMENTS.items():
        sd = _sd(outlines, np.linspace(*ends, 11))
        at_minimum = _sd(outlines, narrowest_place(outlines, name) + np.linspace(-NEAR, NEAR, 5))
        for kind, function, own_sd in (
            ("minimum", minimum_width, at_minimum),
            ("orthogonal_minimum", orthogonal_minimum_width, at_minimum),
            ("mean", mean_width, sd),
        ):
            found[f"jsw_{name}_{kind}"] = _checked(function(outlines, name), own_sd)
        mean, share = found[f"jsw_{name}_mean"], ends[1] - ends[0]
        found[f"joint_space_{name}_area"] = (
            Measure(None, None, AREA, mean.reason)
            if mean.value is None
            else Measure(area(outlines, name), share * sd, AREA)
        )
    fixed = np.array(FIXED)
    widths_and_sds = widths_at(outlines, fixed).tolist(), _deviations(outlines, fixed).tolist()
    for name, width, sd in zip(FIXED_WIDTHS, *widths_and_sds, strict=True):
        found[name] = _checked(width, sd)
    found["joint_line_angle"] = Measure(joint_line_angle(outlines), _angle_sd(outlines), ANGLE)
    if not (len(outlines.femur_sd) and len(outlines.tibia_sd)):
        found = {name: replace(each, sd=None) for name, each in found.items()}
    shafts = tibiofemoral_angle(outlines)
    found["tibiofemoral_angle"] = (
        Measure(None, None, ANGLE, SHORT_SHAFT)
        if shafts is None
        else Measure(shafts, SHAFT_SD, ANGLE)
    )
    return found


def doubts(outlines: Outlines, detected_px: float) -> list[str]:
    """Return why outlines are not credible; nothing if they are.

    Args:
        outlines: of one knee.
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


def _angle_sd(outlines: Outlines) -> float:
    """Return the standard deviation of the joint-line angle, in degrees.

    It is that of the difference of two widths whose errors are independent.
    """
    medial, lateral = (float(np.mean(ends)) for ends in COMPARTMENTS.values())
    sd = math.hypot(*_deviations(outlines, np.array([medial, lateral])))
    return math.degrees(sd / PERCENT / (lateral - medial))


def _checked(width: float, sd: float) -> Measure:
    if width < CROSSED:
        return Measure(None, None, WIDTH, CROSSING)
    if sd > MAX_SD:
        return Measure(None, None, WIDTH, UNCLEAR)
    return Measure(max(width, 0.0), sd, WIDTH)


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


def in_mm(measure: Measure, outlines: Outlines, magnification: float = 1.0) -> float | None:
    """Return a measure in mm, or mm2, at the detector; divided by a magnification if one is known.

    None for angles, for films without spacing, and for measures that are left out.
    """
    if outlines.width_mm is None or measure.value is None or measure.unit == ANGLE:
        return None
    length = outlines.width_mm / magnification
    return measure.value / PERCENT * (length**2 if measure.unit == AREA else length)
