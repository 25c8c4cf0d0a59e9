import json
from dataclasses import replace

import numpy as np
import pytest

from kneematch.knee.measure import (
    CROSSING,
    SHORT_SHAFT,
    UNCLEAR,
    UNITS,
    WIDTH,
    WRONG_SIZE,
    Measure,
    doubts,
    in_mm,
    measure_outlines,
    measures_from_dict,
    measures_to_dict,
)
from kneematch.knee.outlines import Outlines


def flat(gap_px: float, sd_px: float = 0.2, mm_per_px: float | None = None) -> Outlines:
    """A joint space of even width over a plateau of 200 pixels."""
    x = np.linspace(100, 300, 21)
    femur, tibia = (np.stack([x, np.full(21, y)], axis=1) for y in (300 - gap_px, 300))
    sd = np.full(21, sd_px)
    return Outlines(femur, tibia, "left", sd, sd, mm_per_px=mm_per_px)


def test_measure_outlines_of_an_even_joint_space() -> None:
    found = measure_outlines(flat(10))
    assert set(found) == set(UNITS)
    assert {name: each.unit for name, each in found.items()} == UNITS
    for name, each in found.items():
        if each.unit == WIDTH:
            assert each.value == pytest.approx(5), name
            known = 100 * np.hypot(0.2, 0.2) / 200
            assert each.sd == pytest.approx(known), name
    assert found["joint_space_medial_area"].value == pytest.approx(0.20 * 5)
    assert found["joint_line_angle"].value == pytest.approx(0)
    assert found["tibiofemoral_angle"] == Measure(None, None, "deg", SHORT_SHAFT)


def test_measure_outlines_states_the_spread_of_the_joint_line_angle() -> None:
    """Each compartment's border of the femur is off by an error of its own."""
    rng, angles = np.random.default_rng(0), []
    outlines = flat(10, sd_px=1.0)
    known = replace(outlines, tibia_sd=np.zeros(21))
    for errors in rng.normal(0, 1.0, (400, 2)):
        femur = outlines.femur + np.stack([np.zeros(21), np.repeat(errors, (11, 10))], axis=1)
        angles.append(measure_outlines(replace(known, femur=femur))["joint_line_angle"].value)
    stated = measure_outlines(known)["joint_line_angle"].sd
    assert stated == pytest.approx(np.std(angles), rel=0.1)


def test_measure_outlines_leaves_out_what_is_not_credible() -> None:
    assert measure_outlines(flat(-3))["jsw_x250"] == Measure(None, None, WIDTH, CROSSING)
    assert measure_outlines(flat(10, sd_px=40))["jsw_x250"] == Measure(None, None, WIDTH, UNCLEAR)
    assert measure_outlines(flat(-0.2))["jsw_x250"].value == 0  # bone on bone


def test_measure_outlines_doubts_a_minimum_where_it_lies() -> None:
    """An unclear place spoils the mean and the area, but only a minimum that lies there."""
    for narrow, credible in ((5, False), (2, True)):  # points at x = 0.25 and 0.10
        outlines = flat(10)
        outlines.femur_sd[5] = 20
        outlines.femur[narrow, 1] += 4
        found = measure_outlines(outlines)
        assert (found["jsw_medial_minimum"].value is not None) == credible
        assert found["jsw_medial_mean"].reason == UNCLEAR
        assert found["joint_space_medial_area"].reason == UNCLEAR
        assert found["jsw_lateral_mean"].value == pytest.approx(5)


def test_measure_outlines_of_a_person_has_no_uncertainty() -> None:
    outlines = flat(10)
    found = measure_outlines(outlines)
    drawn = measure_outlines(outlines.redrawn(outlines.femur, outlines.tibia))
    for name, each in drawn.items():
        assert (each.value, each.sd, each.reason) == (found[name].value, None, found[name].reason)


def test_doubts_names_every_reason() -> None:
    assert doubts(flat(10), detected_px=205) == []
    assert doubts(flat(10), detected_px=120) == [WRONG_SIZE]
    assert doubts(flat(-3, sd_px=40), detected_px=200) == [CROSSING, UNCLEAR]


def test_in_mm_divides_by_the_magnification() -> None:
    outlines = flat(10, mm_per_px=0.4)  # a plateau of 80 mm
    found = measure_outlines(outlines)
    assert in_mm(found["jsw_x250"], outlines) == pytest.approx(4)
    assert in_mm(found["jsw_x250"], outlines, 1.25) == pytest.approx(3.2)
    assert in_mm(found["joint_space_medial_area"], outlines) == pytest.approx(16 * 4)
    assert in_mm(found["joint_line_angle"], outlines) is None
    assert in_mm(found["jsw_x250"], flat(10)) is None


def test_measures_survive_json() -> None:
    found = measure_outlines(flat(10))
    assert measures_from_dict(json.loads(json.dumps(measures_to_dict(found)))) == found
