"""Outlines, and measures of outlines whose joint space is known."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.knee.measure import (
    CROSSING,
    LATERAL,
    MEDIAL,
    NO_SD,
    NO_SIDE,
    PICTURE_UNITS,
    SHORT_SHAFT,
    UNCLEAR,
    UNITS,
    WIDTH,
    Array,
    JointMeasures,
    Measure,
    Outlines,
    in_mm,
    joint_line_angle,
    landmarks,
    measure_outlines,
    narrowest_line,
    narrowest_place,
    tibiofemoral_angle,
    widths_at,
)


def line(*points: tuple[float, float]) -> Array:
    return np.array(points, dtype=float)


SPINES = line((100, 300), (180, 300), (190, 280), (200, 290), (215, 270), (230, 310), (300, 300))
CONDYLES = line((100, 285), (150, 290), (200, 250), (260, 300), (300, 300))
PLATEAU = line((100, 300), (300, 300))  # 200 pixels wide


def wedge(medial: str = "left") -> Outlines:
    """4 % wide at the left margin and 12 % at the right one: 8 pixels and 24 pixels."""
    return Outlines(line((100, 292), (300, 276)), PLATEAU, medial)


def flat(gap_px: float, sd_px: float = 0.2, mm_per_px: float | None = None) -> Outlines:
    """A joint space of even width over a plateau of 200 pixels."""
    x = np.linspace(100, 300, 21)
    femur, tibia = (np.stack([x, np.full(21, y)], axis=1) for y in (300 - gap_px, 300))
    sd = np.full(21, sd_px)
    return Outlines(femur, tibia, "left", sd, sd, mm_per_px=mm_per_px)


def legs(femur_lean: float, tibia_lean: float, reach: float = 400) -> Outlines:
    """Straight shafts, 60 pixels wide, that lean in x per y."""

    def sides(y: Array, lean: float) -> tuple[Array, Array]:
        left, right = (np.stack([x + lean * (y - 300), y], axis=1) for x in (170, 230))
        return left, right

    femur = sides(np.linspace(290, 290 - reach, 50), femur_lean)
    tibia = sides(np.linspace(310, 310 + reach, 50), tibia_lean)
    borders = line((100, 290), (300, 290)), PLATEAU
    return Outlines(*borders, "left", femur_sides=femur, tibia_sides=tibia)


def rotated(outlines: Outlines, degrees: float) -> Outlines:
    """The same knee on a film that was turned and enlarged."""
    c, s = 1.5 * math.cos(math.radians(degrees)), 1.5 * math.sin(math.radians(degrees))
    turn = np.array([[c, s], [-s, c]])

    def moved(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        return pair[0] @ turn + 70, pair[1] @ turn + 70

    femur, tibia = moved((outlines.femur, outlines.tibia))
    sides = (moved(pair) for pair in (outlines.femur_sides, outlines.tibia_sides))
    return Outlines(femur, tibia, outlines.medial, NO_SD, NO_SD, *sides)


@pytest.mark.parametrize("turn_deg", [0.0, 3.0, -20.0])
def test_widths_at_and_joint_line_angle_of_a_wedge(turn_deg: float) -> None:
    x, known = np.array([0.0, 0.15, 0.25, 0.5, 1.0]), [4, 5.2, 6, 8, 12]
    left, right = (rotated(wedge(medial), turn_deg) for medial in ("left", "right"))
    assert widths_at(left, x) == pytest.approx(known)
    assert widths_at(right, 1 - x) == pytest.approx(known)
    angle = math.degrees(math.atan2(16, 200))
    assert joint_line_angle(left) == pytest.approx(angle)
    assert joint_line_angle(right) == pytest.approx(-angle)


def test_measure_outlines_of_a_wedge() -> None:
    found = measure_outlines(wedge())
    assert found["jsw_medial_mean"].value == pytest.approx(5.6)
    assert found["jsw_lateral_mean"].value == pytest.approx(10.4)
    assert found["joint_space_medial_area"].value == pytest.approx(0.20 * 5.6)
    for outlines, compartment, x, width in (
        (wedge(), MEDIAL, 0.10, 4.8),
        (wedge(), LATERAL, 0.70, 9.6),
        (wedge("right"), MEDIAL, 0.30, 9.6),
    ):
        minimum = measure_outlines(outlines)[f"jsw_{compartment}_minimum"].value
        assert minimum == pytest.approx(width)
        assert narrowest_place(outlines, compartment) == pytest.approx(x)
        line = narrowest_line(outlines, compartment)
        assert 100 * math.dist(*line) / outlines.width_px == pytest.approx(width)
        assert outlines.in_plateau_widths(line)[:, 0] == pytest.approx([x, x])


def test_tibiofemoral_angle_of_straight_shafts() -> None:
    assert tibiofemoral_angle(legs(0.0, 0.0)).value == pytest.approx(0)
    lean = math.tan(math.radians(6))
    varus = legs(0.0, -lean)  # the foot is medial
    for known in (varus, legs(lean, 0.0), rotated(varus, 25.0)):
        assert tibiofemoral_angle(known).value == pytest.approx(6)
    assert tibiofemoral_angle(legs(0.0, 0.0, reach=160)).value is None  # 0.8 plateau widths
    short, long = (
        measure_outlines(legs(0.0, -lean, reach))["tibiofemoral_angle"] for reach in (200, 300)
    )
    assert short.value == pytest.approx(6)
    assert short.sd > 2 > 1 > long.sd
    assert tibiofemoral_angle(wedge()).value is None


def test_measure_outlines_of_an_even_joint_space() -> None:
    found = measure_outlines(flat(10))
    assert {name: each.unit for name, each in found.items()} == UNITS
    for name, each in found.items():
        if each.unit == WIDTH:
            assert each.value == pytest.approx(5), name
            assert each.sd == pytest.approx(100 * np.hypot(0.2, 0.2) / 200), name
    assert found["joint_line_angle"].value == pytest.approx(0)
    assert found["tibiofemoral_angle"] == Measure(None, None, "deg", SHORT_SHAFT)


def test_measure_outlines_states_the_spread_of_the_joint_line_angle() -> None:
    """Each compartment's border of the femur is off by an error of its own."""
    rng, angles = np.random.default_rng(0), []
    known = replace(flat(10, sd_px=1.0), tibia_sd=np.zeros(21))
    for errors in rng.normal(0, 1.0, (400, 2)):
        femur = known.femur + np.stack([np.zeros(21), np.repeat(errors, (11, 10))], axis=1)
        angles.append(joint_line_angle(replace(known, femur=femur)))
    assert measure_outlines(known)["joint_line_angle"].sd == pytest.approx(np.std(angles), rel=0.1)


def test_measure_outlines_leaves_out_what_is_not_credible() -> None:
    crossed = measure_outlines(flat(-3))
    assert crossed["jsw_x250"] == Measure(None, None, WIDTH, CROSSING)
    assert crossed["joint_space_medial_area"] == Measure(None, None, "pct2", CROSSING)
    assert measure_outlines(flat(10, sd_px=40))["jsw_x250"] == Measure(None, None, WIDTH, UNCLEAR)
    assert measure_outlines(flat(-0.2))["jsw_x250"].value == 0  # bone on bone


def test_measure_outlines_doubts_a_minimum_where_it_lies() -> None:
    """An unclear place spoils the mean and the area, but only a minimum that lies there."""
    for narrow, credible in ((5, False), (2, True)):  # points at x = 0.25 and 0.10
        outlines = flat(10)
        outlines.femur_sd[5] = 60
        outlines.femur[narrow, 1] += 4
        found = measure_outlines(outlines)
        assert (found["jsw_medial_minimum"].value is not None) == credible
        assert found["jsw_medial_mean"].reason == UNCLEAR
        assert found["joint_space_medial_area"].reason == UNCLEAR
        assert found["jsw_lateral_mean"].value == pytest.approx(5)


def test_in_mm_takes_the_spacing_of_outlines() -> None:
    outlines = flat(10, mm_per_px=0.4)  # a plateau of 80 mm
    found = measure_outlines(outlines)
    assert in_mm(found["jsw_x250"], outlines) == pytest.approx(4)
    smaller = JointMeasures(outlines, found).magnified(1.25).outlines
    assert in_mm(found["jsw_x250"], smaller) == pytest.approx(3.2)
    assert in_mm(found["joint_space_medial_area"], outlines) == pytest.approx(16 * 4)
    assert in_mm(found["joint_line_angle"], outlines) is None
    assert in_mm(found["jsw_x250"], flat(10)) is None


@pytest.mark.parametrize("medial", ["left", "right"])
def test_landmarks_are_on_the_outlines(medial: str) -> None:
    found = landmarks(Outlines(CONDYLES, SPINES, medial))
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


def test_measure_outlines_of_a_person_has_no_uncertainty() -> None:
    outlines = flat(10)
    found = measure_outlines(outlines)
    drawn = measure_outlines(outlines.redrawn(outlines.femur, outlines.tibia))
    assert drawn == {name: replace(each, sd=None) for name, each in found.items()}


def test_outlines_survive_json() -> None:
    sides = np.array([[1.0, 2.0], [3.0, 4.0]])
    femur, sd = CONDYLES / 3.0, (np.ones(5), np.ones(7))
    outlines = Outlines(femur, SPINES / 3.0, "left", *sd, (sides, sides), mm_per_px=0.2)
    again = Outlines.from_dict(json.loads(json.dumps(outlines.to_dict())))
    assert again.to_dict() == outlines.to_dict()
    assert np.abs(again.femur - femur).max() < 1e-3
    assert again.width_mm == pytest.approx(0.2 * 200 / 3, abs=1e-3)


def test_outlines_from_dict_refuses_what_is_no_outline() -> None:
    plain = Outlines(CONDYLES, SPINES, "left").to_dict()
    changes: list[dict[str, object]] = [{"femur": []}, {"medial": "up"}, {"tibia": [[0, "x"]]}]
    for change in changes:
        with pytest.raises(SettingsError, match=r"outline|medial"):
            Outlines.from_dict(plain | change)


def test_measure_outlines_names_compartments_by_the_picture_where_medial_is_unknown() -> None:
    known, unknown = wedge(), replace(wedge(), medial="")
    found, expected = measure_outlines(unknown), measure_outlines(known)
    assert found["jsw_left_minimum"] == expected["jsw_medial_minimum"]
    assert found["joint_space_right_area"] == expected["joint_space_lateral_area"]
    assert all(found[name] == Measure(None, None, UNITS[name], NO_SIDE) for name in UNITS)
    assert found.keys() == {**UNITS, **PICTURE_UNITS}.keys()
    assert landmarks(unknown) == {}
