"""Decision: what a reviewer decided about a knee, and the knees of a film as decided."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import SettingsError
from kneematch.films.files import BROKEN
from kneematch.films.radiograph import LATERALITIES, Point
from kneematch.knee.detection import (
    ACCEPTED,
    CORRECTED,
    DECISIONS,
    DEGREE,
    PIXEL,
    Detection,
    map_landmarks,
)
from kneematch.knee.measure import JointMeasures, Outlines

METHOD: Final = "review"  # method of an area or landmarks that a reviewer placed
SMALLEST_PX, LARGEST_PX = 4, 1e6  # width of an area; distance from the film's corner
MAX_POINTS: Final = 1000  # in a border that is drawn


@dataclass(frozen=True, slots=True)
class Area:
    """Position of an area in film pixels; its shape is the template's."""

    centre_x_px: float
    centre_y_px: float
    width_px: float
    rotation_deg: float  # clockwise

    def __post_init__(self) -> None:
        """Raise SettingsError unless an area could lie there."""
        near = all(abs(value) < LARGEST_PX for value in astuple(self)[:3])  # false for NaN
        if not (near and self.width_px >= SMALLEST_PX and abs(self.rotation_deg) <= 360):
            raise SettingsError(f"No knee can lie at {self}.")

    @classmethod
    def from_detection(cls, found: Detection) -> "Area":
        """Return the area of a detection, rounded as in the tables."""
        x, y, width = (round(float(value), PIXEL) for value in (*found.centre, found.width_px))
        return cls(x, y, width, round(float(found.rotation_deg), DEGREE))

    def to_film(self, height_px: float, side: str) -> NDArray[np.float64]:
        """Return the map (3, 3) of the template's [-1, 1]^2; it is mirrored in the left half."""
        angle = math.radians(self.rotation_deg)
        cos, sin = math.cos(angle), math.sin(angle)
        across, down = (-1 if side.startswith("left") else 1) * self.width_px / 2, height_px / 2
        x = across * cos, -down * sin, self.centre_x_px
        y = across * sin, down * cos, self.centre_y_px
        return np.array([x, y, (0, 0, 1)])


LONGEST: Final = {"reader": 80, "grade": 20, "note": 500, "template": 120}  # characters


@dataclass(frozen=True, slots=True)
class Decision:
    """What a reviewer decided about the knee in one half of a film."""

    state: str  # "accepted", "rejected" or "corrected"
    area: Area  # where it was found, or the corrected one
    loss: float | None = None  # at that area; None if it is not known
    laterality: str | None = None  # corrected, "" for unknown; None keeps the one found
    landmarks: Mapping[str, Point] | None = None  # corrected; None moves them with the area
    height_px: float | None = None  # height of a knee that was not found, but added
    outlines: Outlines | None = None  # drawn; None leaves them to the outline network
    reader: str = ""  # who decided
    grade: str = ""  # such as "2" of Kellgren and Lawrence, or another text
    note: str = ""
    template: str = ""  # template of an added area that is no knee

    def __post_init__(self) -> None:
        """Raise SettingsError for values that no reviewer can have meant."""
        numbers = [value for point in (self.landmarks or {}).values() for value in point]
        numbers += [each for each in (self.height_px, self.loss) if each is not None]
        if (
            self.state not in DECISIONS
            or self.laterality not in (None, "", *LATERALITIES)
            or not all(abs(value) < LARGEST_PX for value in numbers)
            or (self.height_px is not None and self.height_px <= 0)
            or not all(len(getattr(self, name)) <= size for name, size in LONGEST.items())
        ):
            raise SettingsError(f"No reviewer can have decided this about a knee: {self}."[:300])
        if self.outlines is not None:
            check_outlines(self.outlines)

    @property
    def adds_knee(self) -> bool:
        """Whether it adds a knee that was not found."""
        return self.state == CORRECTED and self.height_px is not None

    def applies_to(self, found: Detection | None) -> bool:
        """Return whether it counts for the knee that was found, None if there is none.

        A correction counts wherever the knee was found, other decisions only for the same area.
        """
        if found is None:
            return self.adds_knee
        return self.state == CORRECTED or self.area == Area.from_detection(found)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        plain = {name: getattr(self, name) for name in ("state", "loss", "laterality", "height_px")}
        plain["area"] = asdict(self.area)
        plain |= {name: text for name in LONGEST if (text := getattr(self, name))}
        if self.landmarks is not None:
            plain["landmarks"] = {name: list(point) for name, point in self.landmarks.items()}
        if self.outlines is not None:
            plain["outlines"] = self.outlines.to_dict()
        return plain

    @classmethod
    def from_json(cls, text: str) -> "Decision":
        """Return the decision whose `to_dict` was stored as JSON.

        Raises:
            SettingsError: it is no JSON, or names or values are not those of a decision.
        """
        try:
            values = dict(json.loads(text))
            values["area"] = Area(**values["area"])
            if (points := values.get("landmarks")) is not None:
                values["landmarks"] = {
                    name: (float(x), float(y)) for name, (x, y) in points.items()
                }
            if (outlines := values.get("outlines")) is not None:
                values["outlines"] = Outlines.from_dict(outlines)
            return cls(**values)
        except BROKEN as error:
            raise SettingsError(
                f"A stored decision cannot be read ({type(error).__name__}). The run's database is "
                "damaged; docs/outputs.md says how to save the others."
            ) from error


def check_outlines(outlines: Outlines) -> None:
    """Raise SettingsError unless outlines could lie on a film, and a person drew them."""
    if max(len(outlines.femur), len(outlines.tibia)) > MAX_POINTS:
        raise SettingsError(f"A border has more than {MAX_POINTS:,} points.")
    farthest = max(abs(line).max() for line in (outlines.femur, outlines.tibia))
    if farthest >= LARGEST_PX or outlines.width_px < SMALLEST_PX:
        raise SettingsError("The outlines do not lie on a film. Draw them on the bones.")


def apply_decisions(
    found: Sequence[Detection], decisions: Mapping[str, Decision], mm_per_px: float | None
) -> tuple[Detection, ...]:
    """Return the knees of a film as a reviewer left them, rejected and added ones included.

    Decisions are given by the half of the picture.
    """
    knees = {knee.side: knee for knee in found}
    for side, decision in decisions.items():
        before = knees.get(side)
        if not decision.applies_to(before):
            continue
        if before is not None:
            knees[side] = decide(before, decision)
        else:
            added = add_knee(decision, side, mm_per_px)
            knees[side] = replace(added, polarity=found[0].polarity) if found else added
    if any(math.isnan(knee.energy) for knee in knees.values()):  # it belongs to all knees
        knees = {side: replace(knee, energy=math.nan) for side, knee in knees.items()}
    return tuple(knees[side] for side in sorted(knees))


def decide(found: Detection, decision: Decision) -> Detection:
    """Return a detection as decided; it no longer needs a review."""
    knee = replace(found, needs_review=False, reasons=(), decision=decision.state)
    if decision.state == ACCEPTED and knee.measures is not None:
        # What was left out because the knee was doubtful is doubtful no more.
        knee = replace(knee, measures=JointMeasures.from_accepted(knee.measures.outlines))
    if decision.state != CORRECTED:
        return knee
    if decision.area != Area.from_detection(found):
        loss = math.nan if decision.loss is None else decision.loss
        knee = replace(move(knee, decision.area), loss=loss)
    if decision.landmarks is not None:
        placed = {name: decision.landmarks.get(name, at) for name, at in knee.landmarks.items()}
        shifts = [math.dist(placed[name], at) for name, at in knee.landmarks.items()]
        if max(shifts, default=0.0) > 10.0**-PIXEL:
            unknown: dict[str, Any] = {"expected_error_px": None, "measures": None}
            knee = replace(knee, landmarks=placed, method=METHOD, **unknown)
    if decision.laterality is not None and decision.laterality != found.laterality:
        source = "user" if decision.laterality else ""
        knee = replace(knee, laterality=decision.laterality, laterality_source=source)
    return _with_drawn_outlines(knee, decision)


def add_knee(decision: Decision, side: str, mm_per_px: float | None) -> Detection:
    """Return the knee that a decision adds to a half of a film."""
    height = decision.height_px or decision.area.width_px
    added = Detection(
        decision.area.to_film(height, side),
        side,
        METHOD,
        dict(decision.landmarks or {}),
        laterality=decision.laterality or "",
        laterality_source="user" if decision.laterality else "",
        loss=math.nan if decision.loss is None else decision.loss,
        mm_per_px=mm_per_px,
        decision=decision.state,
        template=decision.template,
    )
    return _with_drawn_outlines(added, decision)


def move(found: Detection, area: Area) -> Detection:
    """Return the detection with its area moved, and its landmarks with it.

    Its energy, which belongs to both knees of a film, and what was measured are no longer known.
    """
    to_film = area.to_film(area.width_px / found.width_px * found.height_px, found.side)
    motion = to_film @ np.linalg.inv(found.to_film)
    return replace(
        found,
        to_film=to_film,
        landmarks=map_landmarks(motion, found.landmarks),
        energy=math.nan,
        method=METHOD,
        expected_error_px=None,
        measures=None,
    )


def _with_drawn_outlines(knee: Detection, decision: Decision) -> Detection:
    """Return a knee with the outlines that the reviewer drew, and their measures, if there are."""
    if decision.outlines is None:
        return knee
    return replace(knee, measures=JointMeasures.from_outlines(decision.outlines))
