"""Detections as decided: corners, landmarks, side and flags."""

import math
from dataclasses import replace

import numpy as np
import pytest
from kneematch.run.correction import (
    added_knee,
    area_of,
    move_detection,
    review_detections,
    reviewed,
)

from kneematch.knee.detection import Detection
from kneematch.run.decisions import Area, Decision

AREA = Area(400.25, 500.5, 200.0, 7.5)


def detection(side: str) -> Detection:
    """A flagged knee that is turned."""
    blank = Decision("a.dcm", side, "corrected", AREA, 0.2, "R", {"margin": (350.0, 510.0)}, 150.0)
    found = replace(added_knee(blank, 0.2), energy=0.4, method="search", decision="")
    return replace(found, review="yes", reason="high energy", expected_error_px=2.0)


FOUND = {side: detection(side) for side in ("left", "right")}


def decision(state: str, side: str = "left", area: Area = AREA) -> Decision:
    return Decision("a.dcm", side, state, area, 0.3)


@pytest.mark.parametrize("found", FOUND.values())
def test_move_detection_to_the_same_place_changes_nothing(found: Detection) -> None:
    same = move_detection(found, area_of(found))
    np.testing.assert_allclose(same.corners, found.corners, atol=1e-9)
    assert same.landmarks["margin"] == pytest.approx(found.landmarks["margin"])
    assert (same.width_px, same.height_px) == pytest.approx((200.0, 150.0))


@pytest.mark.parametrize("found", FOUND.values())
def test_move_detection_takes_landmarks_along(found: Detection) -> None:
    x, y = found.landmarks["margin"]
    shifted = move_detection(found, replace(AREA, centre_x_px=407.25, centre_y_px=497.5))
    assert shifted.landmarks["margin"] == pytest.approx((x + 7, y - 3))
    larger = move_detection(found, replace(AREA, width_px=400.0))
    cx, cy = found.centre
    assert larger.landmarks["margin"] == pytest.approx((2 * x - cx, 2 * y - cy))
    turned = move_detection(found, replace(AREA, rotation_deg=97.5))
    assert turned.landmarks["margin"] == pytest.approx((cx - (y - cy), cy + (x - cx)))
    assert math.isnan(turned.energy)


def test_added_knee_is_mirrored_in_the_left_half() -> None:
    right, left = (FOUND[side].to_film[:2, :2].T for side in ("right", "left"))
    (across, down), (mirrored, same) = right, left
    np.testing.assert_allclose(mirrored, -across)
    np.testing.assert_allclose(same, down)
    assert np.hypot(*across) == pytest.approx(100.0)
    assert np.hypot(*down) == pytest.approx(75.0)


@pytest.mark.parametrize("state", ["accepted", "rejected"])
def test_reviewed_keeps_an_area_and_drops_its_flag(state: str) -> None:
    found = FOUND["left"]
    knee = reviewed(found, decision(state))
    assert (knee.decision, knee.review, knee.reason) == (state, "", "")
    assert (knee.loss, knee.energy, knee.method) == (found.loss, found.energy, "search")
    assert knee.corners is found.corners


def test_reviewed_correction_has_the_new_area_and_its_loss() -> None:
    knee = reviewed(FOUND["left"], decision("corrected", area=replace(AREA, centre_x_px=300.0)))
    assert (knee.decision, knee.review, knee.reason) == ("corrected", "", "")
    assert (knee.centre[0], knee.loss, knee.method) == (300.0, 0.3, "review")
    assert knee.expected_error_px is None
    assert math.isnan(knee.energy)


def test_reviewed_correction_of_a_landmark_leaves_the_area() -> None:
    found, moved = FOUND["left"], {"margin": (351.0, 512.5), "other": (1.0, 2.0)}
    knee = reviewed(found, replace(decision("corrected"), landmarks=moved))
    assert knee.landmarks == {"margin": (351.0, 512.5)}
    assert (knee.loss, knee.energy, knee.method) == (found.loss, found.energy, "review")
    assert knee.expected_error_px is None


@pytest.mark.parametrize("side", ["L", ""])
def test_reviewed_correction_of_the_side_changes_nothing_else(side: str) -> None:
    found = FOUND["left"]
    points = dict(found.landmarks)
    knee = reviewed(found, replace(decision("corrected"), laterality=side, landmarks=points))
    assert (knee.laterality, knee.decision) == (side, "corrected")
    assert (knee.loss, knee.energy, knee.method) == (found.loss, found.energy, "search")


def test_review_detections_adds_a_knee_and_keeps_the_order() -> None:
    addition = replace(decision("corrected", "left"), height_px=150.0, landmarks={"margin": (1, 2)})
    found = replace(FOUND["right"], polarity="negative")
    left, right = review_detections([found], {"left": addition}, 0.2)
    assert (left.side, left.decision, left.mm_per_px) == ("left", "corrected", 0.2)
    assert left.landmarks == {"margin": (1, 2)}
    assert left.polarity == right.polarity
    assert right.corners is FOUND["right"].corners
    assert math.isnan(right.energy)  # it was that of one knee alone
    removed = replace(addition, state="rejected")
    assert review_detections([FOUND["right"]], {"left": removed}, 0.2) == (FOUND["right"],)


def test_review_detections_ignores_decisions_about_other_areas() -> None:
    elsewhere = replace(AREA, centre_x_px=1.0)
    found = [FOUND["left"]]
    for state in ("accepted", "rejected"):
        (knee,) = review_detections(found, {"left": decision(state, area=elsewhere)}, 0.2)
        assert knee is found[0]
    (knee,) = review_detections(found, {"left": decision("corrected", area=elsewhere)}, 0.2)
    assert knee.centre[0] == 1.0
    not_found = decision("corrected", "right")
    assert review_detections(found, {"right": not_found}, 0.2) == tuple(found)
