import json

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.knee.landmarks import landmarks, texture_regions
from kneematch.knee.outlines import Outlines

TIBIA = np.array(
    [[100, 300], [180, 300], [190, 280], [200, 290], [215, 270], [230, 310], [300, 320]]
)
FEMUR = np.array([[100, 285], [150, 290], [200, 250], [260, 300], [300, 300]])


@pytest.mark.parametrize("medial", ["left", "right"])
def test_in_plateau_widths_and_back(medial: str) -> None:
    outlines = Outlines(FEMUR.astype(float), TIBIA.astype(float), medial)
    points = np.array([[100.0, 300.0], [300.0, 320.0], [150.0, 400.0]])
    x, y = outlines.in_plateau_widths(points).T
    assert x[:2] == pytest.approx([0, 1] if medial == "left" else [1, 0])
    assert y[:2] == pytest.approx([0, 0], abs=1e-12)
    assert y[2] > 0  # towards the foot
    assert outlines.to_film(np.stack([x, y], axis=1)) == pytest.approx(points)


def test_outlines_survive_json() -> None:
    sides = np.array([[1.0, 2.0], [3.0, 4.0]])
    outlines = Outlines(
        FEMUR / 3.0, TIBIA / 3.0, "left", np.ones(5), np.ones(7), (sides, sides), mm_per_px=0.2
    )
    again = Outlines.from_dict(json.loads(json.dumps(outlines.to_dict())))
    assert again.to_dict() == outlines.to_dict()
    assert np.abs(again.femur - FEMUR / 3.0).max() < 1e-3
    assert again.width_mm == pytest.approx(0.2 * np.hypot(200, 20) / 3, abs=1e-3)


@pytest.mark.parametrize("change", [{"femur": []}, {"medial": "up"}, {"tibia": [[0, "x"]]}])
def test_outlines_from_dict_refuses_what_is_no_outline(change: dict[str, object]) -> None:
    plain = Outlines(FEMUR.astype(float), TIBIA.astype(float), "left").to_dict()
    with pytest.raises(SettingsError, match=r"outline|medial"):
        Outlines.from_dict(plain | change)


@pytest.mark.parametrize("medial", ["left", "right"])
def test_landmarks_are_on_the_outlines(medial: str) -> None:
    flat = TIBIA * 1.0
    flat[-1, 1] = 300
    found = landmarks(Outlines(FEMUR * 1.0, flat, medial))
    assert len(found) == 16
    ends = {"tibia_medial_margin": (100, 300), "tibia_lateral_margin": (300, 300)}
    spines = {"tibia_medial_spine": (190, 280), "tibia_lateral_spine": (215, 270)}
    if medial == "right":
        ends = dict(zip(ends, reversed(ends.values()), strict=True))
        spines = dict(zip(spines, reversed(spines.values()), strict=True))
    for name, place in (ends | spines).items():
        assert found[name] == pytest.approx(place, abs=1.0), name
    assert found["femur_notch"] == pytest.approx((200, 250), abs=1.0)
    outer = "lateral" if medial == "right" else "medial"
    assert found[f"tibia_{outer}_plateau_outer"] == pytest.approx((130, 300))
    assert found[f"femur_{outer}_condyle_outer"] == pytest.approx((116, 286.6))


@pytest.mark.parametrize("medial", ["left", "right"])
def test_texture_regions_lie_under_the_plateau(medial: str) -> None:
    flat = TIBIA * 1.0
    flat[-2:, 1] = 310, 300
    found = texture_regions(Outlines(FEMUR * 1.0, flat, medial))
    outer = "medial" if medial == "left" else "lateral"
    box = found[outer]
    assert box[:, 0].min() == pytest.approx(130)
    assert box[:, 0].max() == pytest.approx(170)
    assert box[:, 1].min() == pytest.approx(304)  # the plateau is at 300 there
    assert box[:, 1].max() == pytest.approx(328)
