"""Outlines of detected knees; how exact they are is measured by lab/measure.py."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from kneematch.films.radiograph import Radiograph
from kneematch.knee.detection import Detection
from kneematch.knee.measure import UNCLEAR, measure_outlines
from kneematch.knee.measuring import find_outlines, measure_knees, outline_network
from kneematch.knee.quality import METAL
from kneematch.models.outlines import OutlineNetwork, builtin_network
from kneematch.training.outline_crops import true_outlines
from kneephantoms.film_plan import plan_film
from kneephantoms.rendering import Phantom, phantom
from phantom_films import radiograph

SHIPPED = pytest.mark.skipif(not builtin_network().exists(), reason="no built-in outline network")


@pytest.fixture(scope="module")
def made() -> Phantom:
    return phantom(4, size=(600, 720))


@pytest.fixture(scope="module")
def untrained() -> OutlineNetwork:
    torch.manual_seed(0)
    return OutlineNetwork((4, 4, 4, 4, 4)).eval()


def detection(made: Phantom, side: int) -> Detection:
    """The knee as a perfect detector would find it."""
    knee = made.knees[side]
    left, right = np.array(knee.plateau_left), np.array(knee.plateau_right)
    across = 0.7 * (right - left)
    down = np.array([-across[1], across[0]])
    centre = np.array(knee.centre)
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    return Detection(
        side=knee.side,
        laterality=knee.laterality,
        energy=0.1,
        loss=0.05,
        polarity="positive",
        method="neural",
        corners=np.array([centre + x * across + y * down for x, y in signs]),
        centre=knee.centre,
        width_px=2 * float(np.linalg.norm(across)),
        height_px=2 * float(np.linalg.norm(across)),
        rotation_deg=knee.rotation_deg,
        mm_per_px=made.mm_per_px,
        landmarks={"plateau_medial": knee.plateau_medial, "plateau_lateral": knee.plateau_lateral},
    )


def test_measure_knees_flags_what_an_untrained_network_sees(
    made: Phantom, untrained: OutlineNetwork
) -> None:
    found = [replace(detection(made, side), review="", reason="") for side in (0, 1)]
    for knee in measure_knees(radiograph(made), found, untrained):
        assert knee.needs_review
        assert UNCLEAR in knee.reason
        assert all(each.value is None and each.reason for each in knee.measures.values())
        assert knee.outlines is not None
        assert knee.outlines.medial == ("right" if knee.side == "left" else "left")


def test_measure_knees_leaves_out_what_is_no_knee(made: Phantom, untrained: OutlineNetwork) -> None:
    found = replace(detection(made, 0), review="yes", reason=f"sides disagree; {METAL}")
    (knee,) = measure_knees(radiograph(made), [found], untrained)
    assert {each.reason for each in knee.measures.values()} == {METAL}


def test_measure_knees_states_no_lengths_by_an_implausible_spacing(
    made: Phantom, untrained: OutlineNetwork
) -> None:
    film, found = radiograph(made), detection(made, 0)
    assert film.mm_per_px is not None
    for factor, stated in ((1.0, True), (10.0, False), (0.1, False)):
        scaled = replace(film, mm_per_px=factor * film.mm_per_px)
        (knee,) = measure_knees(scaled, [found], untrained)
        assert knee.outlines is not None
        assert (knee.outlines.mm_per_px is not None) == stated


def test_measured_detection_survives_json(made: Phantom, untrained: OutlineNetwork) -> None:
    (knee,) = measure_knees(radiograph(made), [detection(made, 0)], untrained)
    plain = json.loads(json.dumps(knee.to_dict()))
    assert Detection.from_dict(plain).to_dict() == plain


def test_find_outlines_on_a_blank_film_returns_finite_points(untrained: OutlineNetwork) -> None:
    blank = Radiograph(np.zeros((300, 300), np.float32))
    centre, across = np.array([150.0, 150.0]), np.array([120.0, 0.0])
    outlines = find_outlines(blank, centre, across, untrained, medial="left")
    assert np.isfinite(outlines.femur).all()


@SHIPPED
@pytest.mark.parametrize("side", [0, 1])
def test_measure_knees_finds_the_margins_of_a_phantom(made: Phantom, side: int) -> None:
    truth, found = made.knees[side], detection(made, side)
    # The first guess is off by 5 % of the plateau's width.
    shifted = {name: (x + 9, y - 9) for name, (x, y) in found.landmarks.items()}
    (knee,) = measure_knees(
        radiograph(made), [replace(found, landmarks=shifted)], outline_network()
    )
    assert knee.outlines is not None
    ends = knee.outlines.tibia[[0, -1]]
    error = np.linalg.norm(ends - [truth.plateau_left, truth.plateau_right], axis=1)
    assert error.max() < 0.05 * knee.outlines.width_px
    known = measure_outlines(true_outlines(plan_film(4, size=(600, 720)))[side])
    for name in ("jsw_x250", "jsw_x750"):
        assert knee.measures[name].value == pytest.approx(known[name].value, abs=2.0), name


@SHIPPED
def test_measure_knees_does_not_depend_on_how_a_film_is_turned(made: Phantom) -> None:
    film, found = radiograph(made), detection(made, 1)
    height, width = film.size

    def turned(points: np.ndarray) -> np.ndarray:
        return np.array([width, height]) - points

    upside_down = replace(
        found,
        corners=turned(found.corners),
        centre=tuple(turned(np.array(found.centre))),
        rotation_deg=found.rotation_deg + 180,
        landmarks={name: tuple(turned(np.array(at))) for name, at in found.landmarks.items()},
    )
    over = replace(film, pixels=np.ascontiguousarray(film.pixels[::-1, ::-1]))
    (one,), (other,) = (
        measure_knees(film, [found], outline_network()),
        measure_knees(over, [upside_down], outline_network()),
    )
    for name in ("jsw_x250", "jsw_x750"):
        assert other.measures[name].value == pytest.approx(one.measures[name].value, abs=0.05)
