"""Outlines of one knee's bones in film pixels, and what is measured on them.

Joint-space widths are in percent of the tibial plateau's width, areas in percent of its square,
angles in degrees; docs/measures.md defines them. Fixed locations: Duryea et al., "New
radiographic-based surrogate outcome measures for osteoarthritis of the knee", Osteoarthritis and
Cartilage 2003. The sixteen landmarks, nine on the tibia and seven on the femur, are at the places
of KNEEL (Tiulpin et al., "KNEEL: Knee anatomical landmark localization using hourglass networks",
ICCV Workshops 2019).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import SettingsError
from kneematch.films.radiograph import Point

Array = NDArray[np.float64]

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
LENGTHS: Final = ("minimum", "mean")
FIXED_WIDTHS: Final = {f"jsw_x{round(1000 * x):03d}": x for x in FIXED}  # names and their x
UNITS: Final = {  # by the name of the measure
    **{f"jsw_{name}_{kind}": WIDTH for name in COMPARTMENTS for kind in LENGTHS},
    **{f"joint_space_{name}_area": AREA for name in COMPARTMENTS},
    **dict.fromkeys(FIXED_WIDTHS, WIDTH),
    "joint_line_angle": ANGLE,
    "tibiofemoral_angle": ANGLE,
}
# Where the medial side is not known, compartments are named by the side of the picture.
PICTURE_SIDES: Final = {MEDIAL: "left", LATERAL: "right"}
PICTURE_UNITS: Final = {
    name.replace(compartment, side): unit
    for name, unit in UNITS.items()
    for compartment, side in PICTURE_SIDES.items()
    if compartment in name
}

PLACES: Final = 101  # places at which a compartment or a shaft is measured
PAIRS: Final = np.triu_indices(PLACES, 1)
# The part of a shaft whose axis is taken, as distances from the plateau in plateau widths, and how
# far it must be seen.
SHAFT: Final = (0.8, 1.5)
SHORTEST_SHAFT: Final = 0.9
# Standard deviation of the tibiofemoral angle in degrees, by how far both shafts are seen. On real
# films that are cut there, errors are half of it; on phantoms, whose femora flare farther, larger.
SHAFT_SD: Final = ((0.9, 0.95, 1.2, 1.3, 1.4, 1.5), (6.0, 4.5, 2.5, 1.8, 1.2, 0.5))

CROSSING: Final = "outlines cross"
UNCLEAR: Final = "outline not clear"
WRONG_SIZE: Final = "outline does not fit the area"
SHORT_SHAFT: Final = "shaft too short"
NO_SIDE: Final = "medial side not known"

MEDIAN_SD: Final = 3.0  # largest standard deviation of half of a knee's widths
# Largest standard deviation of a width that is reported. It is a cautious one: above 2 % it counts
# second candidates, but on real crops the root mean square error is 1.2 % there (lab/measure.py).
MAX_SD: Final = 6.0
CROSSED: Final = -0.5  # a width below this and its deviation is a mistake, and not bone on bone
NEAR: Final = 0.025  # x to either side of a minimum that its standard deviation is taken over
PLAUSIBLE: Final = (0.8, 1.25)  # width of the outlined plateau over that of the detected one

# x from the medial margin (0) to the lateral one (1)
TIBIA_LANDMARKS: Final = {
    "tibia_medial_margin": 0.0,
    "tibia_medial_plateau_outer": 0.15,
    "tibia_medial_plateau_inner": 0.30,
    "tibia_lateral_plateau_inner": 0.70,
    "tibia_lateral_plateau_outer": 0.85,
    "tibia_lateral_margin": 1.0,
}
FEMUR_LANDMARKS: Final = {
    "femur_medial_condyle_outer": 0.08,
    "femur_medial_condyle_middle": 0.20,
    "femur_medial_condyle_inner": 0.33,
    "femur_lateral_condyle_inner": 0.67,
    "femur_lateral_condyle_middle": 0.80,
    "femur_lateral_condyle_outer": 0.92,
}
SPINES: Final = {"tibia_medial_spine": (0.32, 0.5), "tibia_lateral_spine": (0.5, 0.68)}
NOTCH_X: Final = (0.35, 0.65)

NOTHING: Final = np.zeros((0, 2))
NO_SD: Final = np.zeros(0)
ARRAYS: Final = ("femur", "tibia", "femur_sd", "tibia_sd")
SIDES: Final = ("femur_sides", "tibia_sides")


@dataclass(frozen=True, eq=False)
class Outlines:
    """Outlines of one knee; points (x, y) in film pixels, from the picture's left to its right.

    The ends of `tibia` are the margins of the tibial plateau, and the distance between them is the
    plateau's width, to which all measures refer.
    """

    femur: Array  # (K, 2) lower border of both condyles and the notch
    tibia: Array  # (M, 2) upper border of the plateau, spines included
    medial: str  # the end of the plateau that is medial, "left" or "right"; empty if not known
    femur_sd: Array = field(default_factory=lambda: NO_SD)  # (K,) in pixels; empty if unknown
    tibia_sd: Array = field(default_factory=lambda: NO_SD)  # (M,)
    femur_sides: tuple[Array, Array] = (NOTHING, NOTHING)  # left, right; (R, 2), proximal first
    tibia_sides: tuple[Array, Array] = (NOTHING, NOTHING)
    mm_per_px: float | None = None
    corrected: bool = False  # a person drew the borders

    def __post_init__(self) -> None:
        for name in ("femur", "tibia"):
            line = getattr(self, name)
            if line.ndim != 2 or line.shape[1] != 2 or len(line) < 2 or not np.isfinite(line).all():
                raise SettingsError(f"The outline of the {name} needs two or more points (x, y).")
        if self.medial not in ("left", "right", ""):
            raise SettingsError(f"The medial side is 'left' or 'right', not {self.medial!r}.")

    @cached_property
    def width_px(self) -> float:
        """Width of the tibial plateau, in pixels."""
        return math.dist(self.tibia[0], self.tibia[-1])

    @property
    def width_mm(self) -> float | None:
        """Width of the tibial plateau, in mm; None without pixel spacing."""
        return None if self.mm_per_px is None else self.width_px * self.mm_per_px

    def in_plateau_widths(self, points: Array) -> Array:
        """Return points (K, 2) as (x, y) along and below the line through the margins.

        x is 0 at the medial margin and 1 at the lateral one, y grows towards the foot, and the unit
        is the plateau's width. Where the medial side is not known, x is 0 at the left margin.
        """
        start, end = self.tibia[[-1, 0]] if self.medial == "right" else self.tibia[[0, -1]]
        across = (end - start) / self.width_px**2
        down = np.array([-across[1], across[0]]) * (-1 if self.medial == "right" else 1)
        return np.asarray((points - start) @ np.stack([across, down], axis=1))

    @cached_property
    def borders(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The borders of femur and tibia in plateau widths (K, 2), and their sd (K,) in pixels.

        Both are sorted by x, to interpolate along x. The sd is empty where it is not known.
        """

        def border(line: Array, sd: Array) -> tuple[Array, Array]:
            points = self.in_plateau_widths(line)
            order = np.argsort(points[:, 0], kind="stable")
            return points[order], sd[order] if len(sd) == len(line) else NO_SD

        return border(self.femur, self.femur_sd), border(self.tibia, self.tibia_sd)

    def to_film(self, points: Array) -> Array:
        """Return the film pixels of points (K, 2) in plateau widths."""
        start = self.tibia[-1] if self.medial == "right" else self.tibia[0]
        origin, right, below = self.in_plateau_widths(start + np.array([[0, 0], [1, 0], [0, 1]]))
        return np.asarray(
            points @ np.linalg.inv(np.stack([right - origin, below - origin])) + start
        )

    def redrawn(self, femur: Array, tibia: Array) -> "Outlines":
        """Return the outlines with borders (K, 2), (M, 2) drawn by a person, of unknown sd."""
        drawn = replace(self, femur=femur, tibia=tibia, corrected=True)
        return replace(drawn, femur_sd=NO_SD, tibia_sd=NO_SD)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold, rounded to a thousandth of a pixel."""
        plain: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ARRAYS:
            plain[name] = plain[name].round(3).tolist()
        for name in SIDES:
            plain[name] = [side.round(3).tolist() for side in plain[name]]
        if not self.corrected:
            del plain["corrected"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Outlines":
        """Return the outlines that `to_dict` wrote; only femur, tibia and medial are needed.

        Raises:
            SettingsError: a value is missing or is no outline.
        """
        try:
            values = {item.name: plain[item.name] for item in fields(cls) if item.name in plain}
            values["femur"], values["tibia"] = _line(values["femur"]), _line(values["tibia"])
            for name in ("femur_sd", "tibia_sd"):
                values[name] = np.array(values.get(name, ()), np.float64)
            for name in SIDES:
                values[name] = tuple(map(_line, values.get(name) or ((), ())))
            if (spacing := values.get("mm_per_px")) is not None:
                values["mm_per_px"] = float(spacing)
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                f"The outlines cannot be read ({error}). They have femur, tibia and medial, as in "
                "outlines.json."
            ) from error


def _line(points: Any) -> Array:
    return np.array(points, np.float64).reshape(-1, 2)


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

    @classmethod
    def from_accepted(cls, outlines: Outlines) -> "JointMeasures":
        """Measure outlines that a person accepted: what is not clear has a value, but no sd."""
        adopted = measure_outlines(outlines.redrawn(outlines.femur, outlines.tibia))
        known = {
            n: each for n, each in measure_outlines(outlines).items() if each.value is not None
        }
        return cls(outlines, adopted | known)

    def left_out(self, reason: str) -> "JointMeasures":
        """Return the outlines with every measure left out for a reason."""
        units = {name: each.unit for name, each in self.values.items()}
        values = {name: Measure(None, None, unit, reason) for name, unit in units.items()}
        return replace(self, values=values)

    def magnified(self, magnification: float | None) -> "JointMeasures":
        """Return the measures of a knee that its film shows larger by a factor, if it is known."""
        spacing = self.outlines.mm_per_px
        if spacing is None or magnification is None:  # there are no lengths in mm to divide
            return self
        return replace(self, outlines=replace(self.outlines, mm_per_px=spacing / magnification))

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold: each measure as [value, sd, unit, reason]."""
        values = {
            name: [each.value, each.sd, each.unit, each.reason]
            for name, each in self.values.items()
        }
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
        found[f"jsw_{name}_minimum"] = _width(float(widths.min()), at_minimum)
        found[f"jsw_{name}_mean"] = mean = _width(float(widths.mean()), sd)
        area = Measure(float(np.trapezoid(widths.clip(min=0), x)), (end - start) * sd, AREA)
        found[f"joint_space_{name}_area"] = (
            area if mean.value is not None else replace(mean, unit=AREA)
        )
    fixed = np.array(FIXED)
    widths_and_sds = widths_at(outlines, fixed).tolist(), width_deviations(outlines, fixed).tolist()
    for name, width, sd in zip(FIXED_WIDTHS, *widths_and_sds, strict=True):
        found[name] = _width(width, sd)
    # The angle's deviation is that of the difference of two widths with independent errors.
    medial, lateral = (float(np.mean(ends)) for ends in COMPARTMENTS.values())
    sd = math.hypot(*width_deviations(outlines, np.array([medial, lateral])))
    sd = math.degrees(sd / PERCENT / (lateral - medial))
    found["joint_line_angle"] = Measure(joint_line_angle(outlines), sd, ANGLE)
    if not (len(outlines.femur_sd) and len(outlines.tibia_sd)):
        found = {name: replace(each, sd=None) for name, each in found.items()}
    found["tibiofemoral_angle"] = tibiofemoral_angle(outlines)
    if outlines.medial:
        return found
    left_out = {name: Measure(None, None, unit, NO_SIDE) for name, unit in UNITS.items()}
    return left_out | {
        name.replace(compartment, side): measure
        for name, measure in found.items()
        for compartment, side in PICTURE_SIDES.items()
        if compartment in name
    }


def review_reasons(outlines: Outlines, detected_px: float) -> list[str]:
    """Return why outlines are not credible, given the width of the plateau as it was detected."""
    x = np.concatenate([np.linspace(*ends, 21) for ends in COMPARTMENTS.values()])
    fits = PLAUSIBLE[0] <= outlines.width_px / detected_px <= PLAUSIBLE[1]
    reasons = {
        WRONG_SIZE: not fits,
        CROSSING: np.median(widths_at(outlines, x)) < 0,
        UNCLEAR: np.median(width_deviations(outlines, x)) > MEDIAN_SD,
    }
    return [reason for reason, applies in reasons.items() if applies]


def in_mm(measure: Measure, outlines: Outlines) -> float | None:
    """Return a measure in mm, or mm2.

    None for angles, for films without spacing, and for measures that are left out.
    """
    if outlines.width_mm is None or measure.value is None or measure.unit == ANGLE:
        return None
    length = outlines.width_mm
    return measure.value / PERCENT * (length**2 if measure.unit == AREA else length)


def widths_at(outlines: Outlines, x: Array) -> Array:
    """Return the width of the joint space (K,) at x (K,), perpendicular to the plateau's line.

    Negative where the borders cross.
    """
    femur, tibia = _heights_at(outlines, x)
    return PERCENT * (tibia - femur)


def narrowest_place(outlines: Outlines, compartment: str) -> float:
    """Return x of the smallest width of a compartment."""
    x = _places(compartment)
    return float(x[widths_at(outlines, x).argmin()])


def narrowest_line(outlines: Outlines, compartment: str) -> Array:
    """Return the smallest width of a compartment as a line (2, 2) on the film, femur first."""
    x = np.array([narrowest_place(outlines, compartment)])
    return outlines.to_film(np.stack([x.repeat(2), np.ravel(_heights_at(outlines, x))], axis=1))


def joint_line_angle(outlines: Outlines) -> float:
    """Return the joint-line convergence angle: femoral against tibial joint line.

    The femoral one is the tangent to both condyles, the tibial one the line of best fit to the
    plateaus of both compartments. Positive where the joint space is wider laterally.
    """
    places = [_places(compartment) for compartment in COMPARTMENTS]
    condyles = [(x, _heights_at(outlines, x)[0]) for x in places]
    (x0, y0), (x1, y1) = ((x[y.argmax()], y.max()) for x, y in condyles)
    x = np.concatenate(places)
    plateau = np.polyfit(x, _heights_at(outlines, x)[1], 1)[0]
    return math.degrees(math.atan(plateau) - math.atan2(y1 - y0, x1 - x0))


def tibiofemoral_angle(outlines: Outlines) -> Measure:
    """Measure the angle between the shafts of femur and tibia, if both are shown.

    Positive is varus: the foot is medial of the femur's axis.
    """
    femur = _shaft_axis(outlines, outlines.femur_sides, down=-1.0)
    tibia = _shaft_axis(outlines, outlines.tibia_sides, down=1.0)
    if femur is None or tibia is None:
        return Measure(None, None, ANGLE, SHORT_SHAFT)
    sd = float(np.interp(min(femur[1], tibia[1]), *SHAFT_SD))
    return Measure(math.degrees(femur[0] - tibia[0]), sd, ANGLE)


def landmarks(outlines: Outlines) -> dict[str, Point]:
    """Return the landmarks in film pixels, by name; none where the medial side is not known."""
    if not outlines.medial:
        return {}
    (femur, _), (tibia, _) = outlines.borders
    found = _points_at(tibia, TIBIA_LANDMARKS)
    found |= {name: _highest(tibia, *ends) for name, ends in SPINES.items()}
    x, y = _highest(tibia * [1, -1], *(found[name][0] for name in SPINES))
    found["tibia_eminence"] = (x, -y)  # the lowest place between the spines
    found |= _points_at(femur, FEMUR_LANDMARKS)
    found["femur_notch"] = _highest(femur, *NOTCH_X)  # between the condyles
    film = outlines.to_film(np.array(list(found.values()))).tolist()
    return {name: (x, y) for name, (x, y) in zip(found, film, strict=True)}


def _points_at(line: Array, places: Mapping[str, float]) -> dict[str, Point]:
    """Return the points of a border (K, 2) at places x, by their names."""
    x = [*places.values()]
    return dict(zip(places, zip(x, np.interp(x, *line.T).tolist(), strict=True), strict=True))


def _highest(line: Array, start: float, end: float) -> Point:
    """Return the highest point between two x of a border (K, 2) in plateau widths."""
    x = np.linspace(start, end, 101)
    y = np.interp(x, *line.T)
    return float(x[y.argmin()]), float(y.min())


def _shaft_axis(
    outlines: Outlines, sides: tuple[Array, Array], down: float
) -> tuple[float, float] | None:
    """Return the angle of a shaft's axis against the plateau's perpendicular, and its reach.

    None where too little of the shaft is seen. Its left and right side are (R, 2) each, in film
    pixels; `down` is -1 above the plateau, else 1.
    """
    left, right = (outlines.in_plateau_widths(side) for side in sides)
    if min(len(left), len(right)) < 2:
        return None
    reach = min(SHAFT[1], (down * left[:, 1]).max(), (down * right[:, 1]).max())
    if reach < SHORTEST_SHAFT:
        return None
    y = down * np.linspace(SHAFT[0], reach, PLACES)
    sides_at_y = [np.interp(y, *side[np.argsort(side[:, 1])].T[::-1]) for side in (left, right)]
    middle = np.mean(sides_at_y, axis=0)
    # Theil and Sen's slope, the median of all pairs', is robust to a side that was lost in part;
    # scipy.stats has it, but takes 0.4 s to import.
    one, two = PAIRS
    slope = float(np.median((middle[two] - middle[one]) / (y[two] - y[one])))
    return math.atan(slope), float(reach)


@cache
def _places(compartment: str) -> Array:
    return np.linspace(*COMPARTMENTS[compartment], PLACES)


def _heights_at(outlines: Outlines, x: Array) -> tuple[Array, Array]:
    """Return y (K,) of the borders of femur and tibia at x (K,), in plateau widths."""
    (femur, _), (tibia, _) = outlines.borders
    return np.interp(x, *femur.T), np.interp(x, *tibia.T)


def _width(width: float, sd: float) -> Measure:
    """Return a width, or why it is left out."""
    reason = CROSSING if width < min(CROSSED, -sd) else UNCLEAR if sd > MAX_SD else ""
    return Measure(None, None, WIDTH, reason) if reason else Measure(max(width, 0.0), sd, WIDTH)


def _sd(outlines: Outlines, x: Array) -> float:
    """Return the root mean square of the widths' standard deviations at x (K,), in percent."""
    return math.sqrt(float((width_deviations(outlines, x) ** 2).mean()))


def width_deviations(outlines: Outlines, x: Array) -> Array:
    """Return the standard deviations (K,) of the widths at x (K,), in percent; 0 if unknown."""
    total = np.zeros(len(x))
    for line, sd in outlines.borders:
        if len(sd):
            total += np.interp(x, line[:, 0], sd) ** 2
    return PERCENT * np.sqrt(total) / outlines.width_px
