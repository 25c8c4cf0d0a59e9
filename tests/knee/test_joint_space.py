import math

import numpy as np
import pytest
from kneematch.knee.joint_space import (
    LATERAL,
    MEDIAL,
    area,
    joint_line_angle,
    mean_width,
    minimum_width,
    narrowest_place,
    orthogonal_minimum_width,
    tibiofemoral_angle,
    widths_at,
)

from kneematch.knee.outlines import Array, Outlines


def line(*points: tuple[float, float]) -> Array:
    return np.array(points, dtype=float)


PLATEAU = line((100, 300), (300, 300))  # 200 pixels wide


def rotated(outlines: Outlines, degrees: float) -> Outlines:
    """The same knee on a film that was turned and enlarged."""
    c, s = 1.5 * math.cos(math.radians(degrees)), 1.5 * math.sin(math.radians(degrees))
    turn = np.array([[c, s], [-s, c]])
    return Outlines(
        outlines.femur @ turn + 70,
        outlines.tibia @ turn + 70,
        outlines.medial,
        femur_sides=tuple(side @ turn + 70 for side in outlines.femur_sides),  # type: ignore[arg-type]
        tibia_sides=tuple(side @ turn + 70 for side in outlines.tibia_sides),  # type: ignore[arg-type]
    )


def wedge(medial: str = "left") -> Outlines:
    """4 % wide at the left margin and 12 % at the right one: 8 pixels and 24 pixels."""
    return Outlines(line((100, 292), (300, 276)), PLATEAU, medial)


@pytest.mark.parametrize("turn_deg", [0.0, 3.0, -20.0])
def test_widths_at_of_a_wedge(turn_deg: float) -> None:
    x = np.array([0.0, 0.15, 0.25, 0.5, 1.0])
    known = [4, 5.2, 6, 8, 12]
    assert widths_at(rotated(wedge(), turn_deg), x) == pytest.approx(known)
    assert widths_at(rotated(wedge("right"), turn_deg), 1 - x) == pytest.approx(known)


def test_minimum_and_mean_width_of_a_wedge() -> None:
    assert minimum_width(wedge(), MEDIAL) == pytest.approx(4.8)  # at x = 0.10
    assert minimum_width(wedge(), LATERAL) == pytest.approx(9.6)  # at x = 0.70
    assert minimum_width(wedge("right"), MEDIAL) == pytest.approx(9.6)  # at x = 0.30
    assert mean_width(wedge(), MEDIAL) == pytest.approx(5.6)
    assert mean_width(wedge(), LATERAL) == pytest.approx(10.4)


def test_narrowest_place_of_a_wedge() -> None:
    assert narrowest_place(wedge(), MEDIAL) == pytest.approx(0.10)
    assert narrowest_place(wedge("right"), MEDIAL) == pytest.approx(0.30)


def test_area_is_width_times_mean() -> None:
    assert area(wedge(), MEDIAL) == pytest.approx(0.20 * 5.6)


def test_area_does_not_count_crossed_borders() -> None:
    crossed = Outlines(line((100, 310), (300, 310)), PLATEAU, "left")
    assert area(crossed, MEDIAL) == 0
    assert minimum_width(crossed, MEDIAL) == pytest.approx(-5)
    assert orthogonal_minimum_width(crossed, MEDIAL) == pytest.approx(-5)


def test_orthogonal_minimum_width_is_the_shortest_distance() -> None:
    # Between x = 0.05 and 0.45 the tibia falls by 45 degrees, 20 pixels below the femur vertically.
    tibia = line((100, 300), (110, 280), (190, 360), (290, 300), (300, 300))
    femur = line((100, 250), (190, 340), (300, 340))
    outlines = Outlines(femur, tibia, "left")
    assert minimum_width(outlines, MEDIAL) == pytest.approx(10)
    assert orthogonal_minimum_width(outlines, MEDIAL) == pytest.approx(10 / math.sqrt(2))


@pytest.mark.parametrize("turn_deg", [0.0, 10.0])
def test_joint_line_angle_of_a_wedge(turn_deg: float) -> None:
    known = math.degrees(math.atan2(16, 200))
    assert joint_line_angle(rotated(wedge(), turn_deg)) == pytest.approx(known)
    assert joint_line_angle(rotated(wedge("right"), turn_deg)) == pytest.approx(-known)


def legs(femur_lean: float, tibia_lean: float, reach: float = 400) -> Outlines:
    """Straight shafts, 60 pixels wide, that lean in x per y."""
    up, down = np.linspace(290, 290 - reach, 50), np.linspace(310, 310 + reach, 50)

    def side(y: Array, lean: float, x: float) -> Array:
        return np.stack([x + lean * (y - 300), y], axis=1)

    return Outlines(
        line((100, 290), (300, 290)),
        PLATEAU,
        "left",
        femur_sides=(side(up, femur_lean, 170), side(up, femur_lean, 230)),
        tibia_sides=(side(down, tibia_lean, 170), side(down, tibia_lean, 230)),
    )


def test_tibiofemoral_angle_of_straight_shafts() -> None:
    assert tibiofemoral_angle(legs(0.0, 0.0)) == pytest.approx(0)
    lean = math.tan(math.radians(6))
    assert tibiofemoral_angle(legs(0.0, -lean)) == pytest.approx(6)  # the foot is medial: varus
    assert tibiofemoral_angle(legs(lean, 0.0)) == pytest.approx(6)
    assert tibiofemoral_angle(rotated(legs(0.0, -lean), 25.0)) == pytest.approx(6)


def test_tibiofemoral_angle_needs_both_shafts() -> None:
    assert tibiofemoral_angle(legs(0.0, 0.0, reach=200)) is None  # one plateau width
    assert tibiofemoral_angle(wedge()) is None
