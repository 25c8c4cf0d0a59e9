"""How many knees a film shows, and where."""

import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from kneematch.errors import NoFrontalKnee
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detector import Detector
from kneematch.models.locator import (
    KneeLocation,
    builtin_locator,
    choose_knees,
    find_knees,
    is_pair,
    is_plausible,
    locate_knees,
)
from kneematch.sampling import resize
from kneephantoms.rendering import Phantom, phantom
from phantom_films import radiograph

LEFT = KneeLocation(60.0, 100.0, 50.0, 0.0, lateral_left=0.9, score=0.9)
RIGHT = KneeLocation(190.0, 105.0, 52.0, 0.0, lateral_left=0.1, score=0.8)


def test_choose_knees_takes_a_pair_before_a_single_knee() -> None:
    assert choose_knees([LEFT, RIGHT]) == [LEFT, RIGHT]
    assert choose_knees([LEFT, RIGHT], knees=1) == [LEFT]
    assert choose_knees([LEFT]) == [LEFT]
    assert choose_knees([replace(LEFT, score=0.1)]) == []
    assert choose_knees([replace(LEFT, score=0.1)], knees=1) != []


def test_is_pair_wants_knees_of_one_person() -> None:
    assert is_pair(LEFT, RIGHT)
    assert is_pair(LEFT, replace(RIGHT, lateral_left=1.0))  # one of the two may be misjudged
    inwards = replace(LEFT, lateral_left=0.1), replace(RIGHT, lateral_left=0.9)
    assert not is_pair(*inwards)
    for change in ({"width": 90.0}, {"x": 80.0}, {"y": 300.0}):  # too large, too near, too low
        assert not is_pair(LEFT, replace(RIGHT, **change))


@pytest.mark.parametrize(
    ("x", "width", "plausible"),
    [(100, 30, True), (5, 30, False), (195, 30, False), (100, 5, False)],
)
def test_is_plausible_wants_a_plateau_on_the_film_and_large_enough(
    x: float, width: float, plausible: bool
) -> None:
    knee = KneeLocation(x, 50.0, width, 0.0, lateral_left=0.0)
    assert is_plausible(knee, (100, 200)) == plausible


@pytest.mark.parametrize(
    ("framing", "seed"), [("bilateral", 1), ("single", 4), ("full_leg", 3), ("offcentre", 2)]
)
def test_locate_knees_finds_the_knees_of_phantoms(framing: str, seed: int) -> None:
    made = phantom(seed, framing=framing)
    (found,) = locate_knees([torch.from_numpy(made.pixels)], builtin_locator())
    true = sorted(made.knees, key=lambda knee: knee.centre)
    assert len(found) == len(true) > 0
    for place, knee in zip(found, true, strict=True):
        width = math.dist(knee.plateau_medial, knee.plateau_lateral)
        assert math.dist((place.x, place.y), knee.centre) < 0.1 * width
        assert place.width == pytest.approx(width, rel=0.12)
        assert place.mirrored == knee.lateral_is_left
        assert place.score > 0.3


def test_locate_knees_looks_at_films_of_any_sizes_together() -> None:
    kinds = ("bilateral", "single", "full_leg")
    films = [torch.from_numpy(phantom(k, framing=kind).pixels) for k, kind in enumerate(kinds)]
    films += [films[0].rot90(1), torch.zeros(64, 80)]
    together = locate_knees(films, builtin_locator())
    assert [len(places) for places in together] == [2, 1, 2, 2, 0]
    for film, places in zip(films, together, strict=True):
        (alone,) = locate_knees([film], builtin_locator())
        assert [place.quarter_turns for place in places] == [place.quarter_turns for place in alone]
        for one, other in zip(places, alone, strict=True):
            assert math.dist((one.x, one.y), (other.x, other.y)) < 0.01 * other.width


@pytest.fixture(scope="module")
def film() -> Phantom:
    return phantom(1, framing="bilateral")


def test_find_knees_sees_the_same_as_in_float32(film: Phantom) -> None:
    image = resize(torch.from_numpy(film.pixels), (224, 256))
    network = builtin_locator()
    found, wanted = (
        find_knees(each, [image])[0][:2] for each in (network, deepcopy(network).float())
    )
    assert len(found) == len(wanted) == 2
    for one, other in zip(found, wanted, strict=True):
        assert one.score == pytest.approx(other.score, abs=0.01)
        assert math.dist((one.x, one.y), (other.x, other.y)) < 0.005 * other.width
        assert one.width == pytest.approx(other.width, rel=0.005)
        assert one.rotation == pytest.approx(other.rotation, abs=0.005)


def turn_back(point: tuple[float, float], turns: int, size: tuple[int, int]) -> tuple[float, float]:
    """Where a point of a film that was turned anticlockwise lies on the film of a size."""
    (x, y), (height, width) = point, size
    return {1: (width - y, x), 2: (width - x, height - y), 3: (y, height - x)}[turns]


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_detector_finds_the_knees_of_a_turned_film(film: Phantom, turns: int) -> None:
    pixels = np.rot90(film.pixels, turns).copy()
    detector = Detector.load(device="cpu")
    upright, turned = detector.detect([radiograph(film), replace(radiograph(film), pixels=pixels)])
    for one, other in zip(upright, turned, strict=True):
        back = turn_back(other.centre, turns, radiograph(film).size)
        assert back == pytest.approx(one.centre, abs=0.03 * one.width_px)
        assert other.side == one.side
        assert f"film turned by {90 * turns} degrees" in other.reason
        assert other.width_px == pytest.approx(one.width_px, rel=0.02)


def test_detector_says_that_there_is_no_frontal_knee() -> None:
    noise = Radiograph(np.random.default_rng(0).random((300, 400), dtype=np.float32))
    (result,) = Detector.load(device="cpu").detect_each([noise])
    assert isinstance(result.failure, NoFrontalKnee)
    assert result.detections == ()


def test_detector_takes_the_number_of_knees_from_the_user(film: Phantom) -> None:
    one, two = (Detector.load(device="cpu", knees=k).detect(radiograph(film)) for k in (1, 2))
    assert len(one) == 1
    assert [knee.side for knee in two] == ["left", "right"]
