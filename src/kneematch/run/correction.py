"""Detections as a reviewer left them: accepted, rejected, corrected or added."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.knee.detection import CORNERS, DEGREE, PIXEL, Detection
from kneematch.knee.measure import measure_outlines
from kneematch.paper.split import SIDES
from kneematch.run.decisions import CORRECTED, REJECTED, Area, Decision
from kneematch.sampling import transform

METHOD: Final = "review"  # of an area or landmarks that a reviewer placed


def area_of(found: Detection) -> Area:
    """Return the area of a detection, rounded as in the tables."""
    position = (*found.centre, found.width_px)
    x, y, width = (round(float(value), PIXEL) for value in position)
    return Area(x, y, width, round(float(found.rotation_deg), DEGREE))


def is_current(decision: Decision, found: Detection) -> bool:
    """Return whether a decision applies: a correction always, others to the same area."""
    return decision.state == CORRECTED or decision.area == area_of(found)


def needs_knee(decision: Decision) -> bool:
    """Return whether a decision counts only where its knee was found.

    One that adds a knee counts anywhere, and so does a rejection: there is no knee.
    """
    return decision.state != REJECTED and not is_added(decision)


def outdated_warning(path: Path, count: int) -> str:
    """Return that some decisions in a review.csv do not count, in one line; "" for none."""
    if not count:
        return ""
    return (
        f"{path}: {count} {'decision does' if count == 1 else 'decisions do'} not count, about "
        "areas that have moved or are gone; expected the areas of this run; review those knees "
        "again"
    )


def review_detections(
    found: Sequence[Detection], decisions: Mapping[str, Decision], mm_per_px: float | None
) -> tuple[Detection, ...]:
    """Return the knees of a film as a reviewer left them, rejected and added ones included.

    The decisions are given by the half of the picture.
    """
    knees = {knee.side: knee for knee in found}
    for side, decision in decisions.items():
        if side not in knees and is_added(decision):
            added = added_knee(decision, mm_per_px)
            knees[side] = replace(added, polarity=found[0].polarity) if found else added
        elif side in knees and is_current(decision, knees[side]):
            knees[side] = reviewed(knees[side], decision)
    if any(math.isnan(knee.energy) for knee in knees.values()):  # it belongs to all knees
        knees = {side: replace(knee, energy=math.nan) for side, knee in knees.items()}
    return tuple(knees[side] for side in SIDES if side in knees)


def reviewed(found: Detection, decision: Decision) -> Detection:
    """Return a detection as decided; it no longer needs a review."""
    knee = replace(found, review="", reason="", decision=decision.state)
    if decision.state != CORRECTED:
        return knee
    if decision.area != area_of(found):
        loss = math.nan if decision.loss is None else decision.loss
        knee = replace(move_detection(knee, decision.area), loss=loss)
    if decision.landmarks is not None:
        moved = {name: decision.landmarks.get(name, at) for name, at in knee.landmarks.items()}
        shifts = [math.dist(moved[name], at) for name, at in knee.landmarks.items()]
        if max(shifts, default=0.0) > 10.0**-PIXEL:
            knee = replace(_without_measures(knee), landmarks=moved, method=METHOD)
    if decision.laterality is not None and decision.laterality != found.laterality:
        source = "user" if decision.laterality else ""
        knee = replace(knee, laterality=decision.laterality, laterality_source=source)
    return _outlined(knee, decision)


def is_added(decision: Decision) -> bool:
    """Return whether a decision adds a knee that was not found."""
    return decision.state == CORRECTED and decision.height_px is not None


def added_knee(decision: Decision, mm_per_px: float | None) -> Detection:
    """Return the knee that a decision adds."""
    area, height = decision.area, decision.height_px or decision.area.width_px
    added = Detection(
        side=decision.side,
        laterality=decision.laterality or "",
        laterality_source="user" if decision.laterality else "",
        energy=math.nan,
        loss=math.nan if decision.loss is None else decision.loss,
        polarity="positive",
        method=METHOD,
        corners=_corners(area, height, decision.side),
        centre=(area.centre_x_px, area.centre_y_px),
        width_px=area.width_px,
        height_px=height,
        rotation_deg=area.rotation_deg,
        mm_per_px=mm_per_px,
        landmarks=dict(decision.landmarks or {}),
        decision=decision.state,
    )
    return _outlined(added, decision)


def move_detection(found: Detection, area: Area) -> Detection:
    """Return the detection with its area moved, and its landmarks with it.

    Its energy, which belongs to both knees of a film, and what was measured are no longer known.
    """
    height = area.width_px / found.width_px * found.height_px
    moved = replace(
        _without_measures(found),
        corners=_corners(area, height, found.side),
        centre=(area.centre_x_px, area.centre_y_px),
        width_px=area.width_px,
        height_px=height,
        rotation_deg=area.rotation_deg,
        energy=math.nan,
        method=METHOD,
    )
    motion = moved.to_film @ np.linalg.inv(found.to_film)
    points = transform(motion, np.array([*found.landmarks.values()]).reshape(-1, 2)).tolist()
    return replace(moved, landmarks=dict(zip(found.landmarks, map(tuple, points), strict=True)))


def _outlined(knee: Detection, decision: Decision) -> Detection:
    """Return a knee with the outlines that the reviewer drew, and their measures, if there are."""
    if decision.outlines is None:
        return knee
    return replace(knee, outlines=decision.outlines, measures=measure_outlines(decision.outlines))


def _without_measures(found: Detection) -> Detection:
    """Return a detection without what is no longer known when its area or landmarks move."""
    return replace(found, expected_error_px=None, outlines=None, measures={})


def _corners(area: Area, height: float, side: str) -> NDArray[np.float64]:
    """Return where the template's corners (4, 2) land; in the left half it is mirrored."""
    angle = math.radians(area.rotation_deg)
    flip = -1.0 if side == "left" else 1.0
    across = flip * area.width_px / 2 * np.array([math.cos(angle), math.sin(angle)])
    down = height / 2 * np.array([-math.sin(angle), math.cos(angle)])
    centre = np.array([area.centre_x_px, area.centre_y_px])
    corners: NDArray[np.float64] = centre + np.array(CORNERS) @ np.stack([across, down])
    return corners
