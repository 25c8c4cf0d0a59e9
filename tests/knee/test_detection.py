"""Detection: geometry from its matrix, and records that come back as they were."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detections import make_detection
from kneematch.errors import SettingsError
from kneematch.knee.detection import Detection
from kneematch.knee.measure import JointMeasures, Outlines

FOUND = make_detection(
    "left",
    (20.0, 25.0),
    (30.0, 20.0),
    7.5,
    loss=1 / 3,
    mm_per_px=0.15,
    landmarks={"rim": (1 / 7, -2.0), "Kärki": (3.0, 4e-17)},
    needs_review=True,
    reasons=("metal", "bright and dark are swapped"),
)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("turn_deg", [0.0, 7.5, -170.0])
def test_detection_geometry_is_that_of_its_matrix(side: str, turn_deg: float) -> None:
    found = make_detection(side, (20.0, 25.0), (30.0, 20.0), turn_deg, mm_per_px=0.15)
    assert (found.width_px, found.height_px) == pytest.approx((20.0, 30.0))
    assert (found.width_mm, found.height_mm) == pytest.approx((3.0, 4.5))
    assert found.centre == pytest.approx(found.corners.mean(0)) == (20.0, 25.0)
    assert found.rotation_deg == pytest.approx(turn_deg)
    assert found.mirrored == (side == "left")
    bare = replace(found, mm_per_px=None)
    assert (bare.width_mm, bare.height_mm) == (None, None)


def test_label_names_the_patients_side_only_where_it_is_known() -> None:
    found = replace(FOUND, laterality="L")
    assert found.label == "left knee"
    assert replace(found, laterality="R").label == "right knee"
    unknown = replace(found, laterality="")
    assert unknown.label == "knee on the image's left"
    assert replace(unknown, alone=True).label == "knee"
    assert replace(found, alone=True).label == "left knee"


def test_label_has_the_smallest_widths() -> None:
    x = np.linspace(0.0, 120.0, 9)
    femur, tibia = (np.stack([x, np.full(9, y)], axis=1) for y in (0.0, 30.0))
    for mm_per_px, widths in ((0.5, "15.0, lateral 15.0 mm"), (None, "25.0, lateral 25.0 % of")):
        bones = Outlines(femur, tibia, "right", mm_per_px=mm_per_px)
        measured = replace(FOUND, laterality="L", measures=JointMeasures.from_outlines(bones))
        assert measured.label.startswith(f"left knee, smallest joint space medial {widths}")


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=8, max_size=8))
def test_from_json_returns_every_number_to_the_last_bit(numbers: list[float]) -> None:
    to_film = np.array([*numbers[:6], 0, 0, 1]).reshape(3, 3)
    found = replace(FOUND, to_film=to_film, landmarks={"": (numbers[6], numbers[7])})
    again = Detection.from_json(json.dumps(found.to_dict(), allow_nan=False))
    assert again.to_film.tobytes() == found.to_film.tobytes()
    assert again.landmarks == found.landmarks
    assert again.to_dict() == found.to_dict()


@pytest.mark.parametrize(
    "change",
    [
        *({"to_film": map_} for map_ in (None, [[1, 2]], [[1, 0, math.inf], [0, 1, 2], [0, 0, 1]])),
        *({"landmarks": points} for points in ([], {"rim": [1]}, {"rim": [1, math.nan]})),
        {"colour": "red"},
        {"side": "../left"},
        {"laterality": "../R"},
    ],
)
def test_from_json_refuses_a_record_of_something_else(change: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        Detection.from_json(json.dumps(FOUND.to_dict() | change))
