"""Detections as decided: corners, landmarks, side and flags."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detections import make_detection
from kneematch.errors import SettingsError
from kneematch.knee.decision import Area, Decision, apply_decisions, decide, move
from kneematch.knee.detection import Detection
from kneematch.knee.measure import JointMeasures, Outlines

AREA = Area(400.25, 500.5, 200.0, 7.5)
X = np.linspace(320.0, 480.0, 9)
OUTLINES = Outlines(np.stack([X, 0 * X + 490], 1), np.stack([X, 0 * X + 500], 1), "left")


def found_in(side: str) -> Detection:
    """A flagged knee that is turned."""
    flag: dict[str, Any] = {"needs_review": True, "reasons": ("no frontal knee",)}
    points = {"margin": (350.0, 510.0)}
    return make_detection(side, (400.25, 500.5), (150.0, 200.0), 7.5, landmarks=points, **flag)


FOUND = {side: found_in(side) for side in ("left", "right")}


def corrected(**changes: Any) -> Decision:
    return replace(Decision("corrected", AREA, 0.3), **changes)


def test_decision_refuses_what_nobody_decides() -> None:
    for area in ({"width_px": 1.0}, {"centre_x_px": math.nan}, {"rotation_deg": 400.0}):
        with pytest.raises(SettingsError, match="No knee can lie at"):
            replace(AREA, **area)
    nowhere = {"landmarks": {"margin": (math.nan, 0.0)}}
    for wrong in ({"state": "maybe"}, {"laterality": "B"}, nowhere, {"height_px": 0.0}):
        with pytest.raises(SettingsError, match="No reviewer"):
            corrected(**wrong)
    with pytest.raises(SettingsError, match="do not lie on a film"):
        corrected(outlines=replace(OUTLINES, femur=1e7 + OUTLINES.femur))
    with pytest.raises(SettingsError, match="more than 1,000 points"):
        corrected(outlines=replace(OUTLINES, femur=np.repeat(OUTLINES.femur, 200, axis=0)))


@pytest.mark.parametrize(
    "decision",
    [
        Decision("accepted", AREA),
        corrected(laterality="", landmarks={"margin": (1 / 3, 2.0)}, height_px=150.0),
        corrected(outlines=OUTLINES),
    ],
)
def test_decision_survives_json(decision: Decision) -> None:
    again = Decision.from_json(json.dumps(decision.to_dict()))
    assert again.to_dict() == decision.to_dict()
    assert replace(again, outlines=None) == replace(decision, outlines=None)


@pytest.mark.parametrize("found", FOUND.values())
def test_move_takes_landmarks_along(found: Detection) -> None:
    x, y = found.landmarks["margin"]
    cx, cy = found.centre
    same = move(found, AREA)
    np.testing.assert_allclose(same.corners, found.corners, atol=1e-9)
    assert same.landmarks["margin"] == pytest.approx((x, y))
    shifted = move(found, replace(AREA, centre_x_px=407.25, centre_y_px=497.5))
    assert shifted.landmarks["margin"] == pytest.approx((x + 7, y - 3))
    larger = move(found, replace(AREA, width_px=400.0))
    assert larger.landmarks["margin"] == pytest.approx((2 * x - cx, 2 * y - cy))
    assert (larger.width_px, larger.height_px) == pytest.approx((400.0, 300.0))
    turned = move(found, replace(AREA, rotation_deg=97.5))
    assert turned.landmarks["margin"] == pytest.approx((cx - (y - cy), cy + (x - cx)))
    assert math.isnan(turned.energy)


def test_decide_fills_measures_of_accepted_outlines() -> None:
    """The outline of the femur is not clear at the medial side; a person accepts it."""
    sd = np.where(X < 380, 20.0, 0.1)
    outlines = replace(OUTLINES, femur_sd=sd, tibia_sd=np.full_like(X, 0.1))
    measures = JointMeasures.from_outlines(outlines)
    assert measures.values["jsw_x225"].value is None
    doubtful = replace(FOUND["left"], measures=measures.left_out("metal"))
    knee = decide(doubtful, Decision("accepted", AREA, 0.3))
    assert knee.measures is not None
    unclear, clear = (knee.measures.values[name] for name in ("jsw_x225", "jsw_x800"))
    assert unclear.value == clear.value == pytest.approx(100 * 10 / 160)
    assert (unclear.sd, clear.sd) == (None, measures.values["jsw_x800"].sd)


def test_apply_decisions_adds_a_knee_and_keeps_the_order() -> None:
    addition = corrected(height_px=150.0, landmarks={"margin": (1.0, 2.0)})
    found = replace(FOUND["right"], polarity="negative")
    left, right = apply_decisions([found], {"left": addition}, 0.2)
    assert (left.side, left.decision, left.mm_per_px) == ("left", "corrected", 0.2)
    assert (left.landmarks, left.polarity) == ({"margin": (1.0, 2.0)}, "negative")
    np.testing.assert_allclose(left.corners, FOUND["left"].corners)
    assert right.to_film is found.to_film
    assert math.isnan(right.energy)  # it was that of one knee alone
    removed = replace(addition, state="rejected")
    assert apply_decisions([found], {"left": removed}, 0.2) == (found,)


def test_apply_decisions_ignores_decisions_about_other_areas() -> None:
    elsewhere, found = replace(AREA, centre_x_px=1.0), [FOUND["left"]]
    for state in ("accepted", "rejected"):
        assert apply_decisions(found, {"left": Decision(state, elsewhere)}, 0.2) == tuple(found)
    (knee,) = apply_decisions(found, {"left": corrected(area=elsewhere)}, 0.2)
    assert knee.centre[0] == 1.0
    assert apply_decisions(found, {"right": corrected()}, 0.2) == tuple(found)  # adds no knee


@pytest.mark.parametrize("state", ["accepted", "rejected"])
def test_decide_keeps_an_area_and_drops_its_flag(state: str) -> None:
    found = FOUND["left"]
    knee = decide(found, Decision(state, AREA, 0.3))
    assert (knee.decision, knee.needs_review, knee.reasons) == (state, False, ())
    assert (knee.loss, knee.energy, knee.method) == (found.loss, found.energy, "search")
    assert knee.to_film is found.to_film
