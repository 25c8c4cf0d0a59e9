"""Detection: millimetres, and records that come back as they were."""

import json
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kneematch.errors import SettingsError
from kneematch.knee.detection import Detection

FOUND = Detection(
    side="left",
    laterality="R",
    energy=0.1 + 0.2,
    loss=1 / 3,
    polarity="negative",
    method="search",
    corners=np.array([[30, 10], [10, 10.1], [10, 40.0004], [30, math.pi]], np.float64),
    centre=(20.0, 25.0),
    width_px=20.0,
    height_px=30.0,
    rotation_deg=-1.0,
    mm_per_px=0.15,
    landmarks={"rim": (1 / 7, -2.0), "Kärki": (3.0, 4e-17)},
    review="yes",
    reason="high energy",
)


def through_json(found: Detection) -> Detection:
    return Detection.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))


def values(found: Detection) -> dict[str, Any]:
    plain = {item.name: getattr(found, item.name) for item in fields(found)}
    return plain | {"corners": found.corners.tolist()}


@pytest.mark.parametrize("found", [FOUND, replace(FOUND, mm_per_px=None, landmarks={})])
def test_a_detection_comes_back_from_json_exactly(found: Detection) -> None:
    again = through_json(found)
    assert values(again) == values(found)
    assert again.corners.dtype == np.float64
    assert isinstance(again.centre, tuple)
    assert all(isinstance(place, tuple) for place in again.landmarks.values())


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=10, max_size=10))
def test_every_number_survives_json_to_the_last_bit(numbers: list[float]) -> None:
    found = replace(
        FOUND,
        corners=np.array(numbers[:8]).reshape(4, 2),
        landmarks={"": (numbers[8], numbers[9])},
    )
    again = through_json(found)
    assert again.corners.tobytes() == found.corners.tobytes()
    assert again.landmarks == found.landmarks


@pytest.mark.parametrize(
    "change",
    [
        {"centre": [1.0]},
        {"corners": [[1, 2]]},
        {"corners": None},
        {"landmarks": {"rim": [1]}},
        {"colour": "red"},
        {"landmarks": []},
    ],
)
def test_a_record_of_something_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="does not fit"):
        Detection.from_dict(FOUND.to_dict() | change)


def test_a_record_without_a_field_that_has_no_default_is_refused() -> None:
    plain = FOUND.to_dict()
    del plain["loss"]
    with pytest.raises(SettingsError, match="loss"):
        Detection.from_dict(plain)


def test_size_in_millimetres_needs_the_spacing() -> None:
    assert FOUND.width_mm == pytest.approx(3.0)
    assert FOUND.height_mm == pytest.approx(4.5)
    bare = replace(FOUND, mm_per_px=None)
    assert (bare.width_mm, bare.height_mm) == (None, None)


@pytest.mark.parametrize(("review", "flagged"), [("", False), ("no", False), ("yes", True)])
def test_needs_review_unless_review_is_empty_or_no(review: str, flagged: bool) -> None:
    assert replace(FOUND, review=review).needs_review == flagged


def test_review_reasons_are_those_of_a_flagged_knee() -> None:
    assert replace(FOUND, review="yes", reason="a b; c").review_reasons == ("a b", "c")
    assert replace(FOUND, review="yes", reason=" ").review_reasons == ("not stated",)
    assert replace(FOUND, review="", reason="wrong polarity tag").review_reasons == ()
