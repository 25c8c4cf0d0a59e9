"""Outlines of detected knees; how exact they are is measured by lab/measure.py."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from detections import make_detection
from kneematch.knee import measuring
from kneematch.knee.detection import Detection
from kneematch.knee.measure import UNCLEAR, measure_outlines
from kneematch.knee.measuring import (
    measure_knees,
    measure_placed_knees,
    move_to_edge,
    smooth,
    until_jump,
)
from kneematch.knee.quality import CUT, METAL
from kneematch.models.outlines import OutlineNetwork
from kneephantoms.film_plan import plan_film
from kneephantoms.rendering import Phantom, phantom
from phantom_films import radiograph
from phantom_outlines import true_outlines

X = np.arange(100) + 0.5
EVERYWHERE = (0.0, 100.0)


@pytest.fixture(scope="module")
def made() -> Phantom:
    return phantom(4, size=(600, 720))


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = OutlineNetwork((4, 4, 4, 4, 4)).eval()
    monkeypatch.setattr(measuring, "outline_network", lambda frame: network)


def detection(made: Phantom, side: int) -> Detection:
    """The knee as a perfect detector would find it."""
    knee = made.knees[side]
    width = 1.4 * float(np.linalg.norm(np.subtract(knee.plateau_right, knee.plateau_left)))
    landmarks = {"plateau_medial": knee.plateau_medial, "plateau_lateral": knee.plateau_lateral}
    found = make_detection(knee.side, knee.centre, (width, width), knee.rotation_deg)
    return replace(found, mm_per_px=made.mm_per_px, landmarks=landmarks)


def values(knee: Detection) -> dict[str, float | None]:
    assert knee.measures is not None
    return {name: each.value for name, each in knee.measures.values.items()}


@pytest.mark.usefixtures("untrained")
def test_measure_knees_flags_what_an_untrained_network_sees(made: Phantom) -> None:
    found = [detection(made, side) for side in (0, 1)]
    for knee in measure_knees(radiograph(made), found):
        assert UNCLEAR in knee.review_reasons
        assert set(values(knee).values()) == {None}
        assert knee.measures is not None
        assert knee.measures.outlines.medial == ("right" if knee.side == "left" else "left")
        again = Detection.from_json(json.dumps(knee.to_dict()))
        assert again.to_dict() == knee.to_dict()


def test_measure_placed_knees_looks_for_obstacles_at_the_new_place(made: Phantom) -> None:
    knee = replace(detection(made, 0), needs_review=True, reasons=(METAL,))
    to_edge = np.array([[1, 0, -knee.centre[0]], [0, 1, 0], [0, 0, 1]])
    edge = replace(knee, to_film=to_edge @ knee.to_film, landmarks={})
    good, cut = measure_placed_knees(radiograph(made), [knee, edge])
    assert values(good)["jsw_x250"] is not None
    assert cut.measures is not None
    assert {each.reason for each in cut.measures.values.values()} == {CUT}
    assert (good.needs_review, good.reasons, cut.needs_review) == (False, (), False)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(("factor", "stated"), [(1.0, True), (10.0, False), (0.1, False)])
def test_measure_knees_states_no_lengths_by_an_implausible_spacing(
    made: Phantom, factor: float, stated: bool
) -> None:
    film = replace(radiograph(made), mm_per_px=factor * made.mm_per_px)
    (knee,) = measure_knees(film, [detection(made, 0)])
    assert knee.measures is not None
    assert (knee.measures.outlines.mm_per_px is not None) == stated


@pytest.mark.parametrize("side", [0, 1])
def test_measure_knees_finds_the_margins_of_a_phantom(made: Phantom, side: int) -> None:
    truth, found = made.knees[side], detection(made, side)
    # The first guess is off by 5 % of the plateau's width.
    shifted = {name: (x + 9, y - 9) for name, (x, y) in found.landmarks.items()}
    (knee,) = measure_knees(radiograph(made), [replace(found, landmarks=shifted)])
    assert knee.measures is not None
    outlines = knee.measures.outlines
    ends = outlines.tibia[[0, -1]]
    error = np.linalg.norm(ends - [truth.plateau_left, truth.plateau_right], axis=1)
    assert error.max() < 0.05 * outlines.width_px
    known = measure_outlines(true_outlines(plan_film(4, size=(600, 720)))[side])
    for name in ("jsw_x250", "jsw_x750"):
        assert values(knee)[name] == pytest.approx(known[name].value, abs=2.0), name


def test_measure_knees_does_not_depend_on_how_a_film_is_turned(made: Phantom) -> None:
    film, found = radiograph(made), detection(made, 1)
    height, width = film.size
    turn = np.array([[-1.0, 0, width], [0, -1, height], [0, 0, 1]])
    upside_down = replace(
        found,
        to_film=turn @ found.to_film,
        landmarks={name: (width - x, height - y) for name, (x, y) in found.landmarks.items()},
    )
    over = replace(film, pixels=np.ascontiguousarray(film.pixels[::-1, ::-1]))
    (one,), (other,) = measure_knees(film, [found]), measure_knees(over, [upside_down])
    for name in ("jsw_x250", "jsw_x750"):
        assert values(other)[name] == pytest.approx(values(one)[name], abs=0.05)


def test_until_jump_ends_a_side_that_jumps_outwards_and_no_other() -> None:
    y = np.arange(20.0)
    inwards = np.stack([np.where(y < 8, 100.0, 80.0), y], axis=1)  # from the fibula to the tibia
    outwards = np.stack([np.where(y < 15, 100.0, 130.0), y], axis=1)
    across = np.array([100.0, 0.0])  # the plateau's ends; the side is the right one
    for side, direction, kept in ((inwards, 1, 20), (outwards, 1, 15), (outwards, -1, 20)):
        assert np.array_equal(until_jump(side, direction * across), side[:kept])
    assert until_jump(outwards[:0], across).shape == (0, 2)


def test_smooth_bridges_uncertain_columns_and_ignores_those_beyond_the_plateau() -> None:
    line, sd = 20 + 0.3 * X, np.full(100, 0.5)
    wrong = line.copy()
    wrong[40:50], sd[40:50] = 90, 60
    assert smooth(wrong, sd, between=EVERYWHERE)[45] == pytest.approx(line[45], abs=2)
    wrong[:10] = 90
    assert smooth(wrong, sd, between=(10, 100))[10:] == pytest.approx(line[10:], abs=2)


@pytest.mark.parametrize(("bone_above", "left"), [(True, 1.2), (False, 1.7)])
def test_move_to_edge_approaches_an_edge(bone_above: bool, left: float) -> None:
    """An edge along a parabola, blurred, and a first guess that is off by 2 pixels.

    The tibia's edge is trusted less than the femur's.
    """
    x, y = np.meshgrid(np.arange(300) + 0.5, np.arange(200) + 0.5)
    edge = 100.3 + 0.0008 * (x - 150) ** 2
    sign = 1 if bone_above else -1
    film = (1 / (1 + np.exp(sign * (y - edge) / 0.4))).astype(np.float32)
    places = np.linspace(40, 260, 101)
    true = np.stack([places, 100.3 + 0.0008 * (places - 150) ** 2], axis=1)
    inner = slice(10, -10)
    for shift, most in ((2.0, left), (0.0, 0.1)):
        guess = true + np.array([0.0, shift])
        moved = move_to_edge(film, guess, 220.0, bone_above=bone_above)
        assert np.abs(moved - true)[inner, 1].max() < most
    other = move_to_edge(film, guess, 220.0, bone_above=not bone_above)
    assert np.abs(other - guess).max() < 1  # no edge of that sign
