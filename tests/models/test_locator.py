"""How many knees a film shows, and where."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kneematch.models.locator import (
    CERTAIN,
    LEAST_CUT_OUT,
    KneeLocation,
    builtin_locator,
    choose_knees,
    is_pair,
    locate_knees,
    turn_upright,
)
from kneematch.sampling import transform
from kneephantoms.rendering import phantom

LEFT = KneeLocation(60.0, 100.0, 50.0, 0.0, lateral_left=0.9, score=0.9)
RIGHT = KneeLocation(190.0, 105.0, 52.0, 0.0, lateral_left=0.1, score=0.8)
FILM = phantom(1, framing="bilateral")
PIXELS = torch.from_numpy(FILM.pixels)


def locate(pixels: Tensor, **how: bool) -> list[KneeLocation]:
    (found,) = locate_knees([pixels], builtin_locator(), **how)
    return found


def test_choose_knees_takes_a_pair_before_a_single_knee() -> None:
    assert choose_knees([LEFT, RIGHT]) == [LEFT, RIGHT]
    assert choose_knees([LEFT, RIGHT], single=True) == [LEFT]
    assert choose_knees([LEFT]) == [LEFT]
    assert choose_knees([replace(LEFT, score=0.1)]) == []
    assert choose_knees([replace(LEFT, score=0.1)], single=True) != []
    weak = replace(LEFT, score=0.25)
    assert choose_knees([weak]) == []
    assert choose_knees([weak], least=LEAST_CUT_OUT) == [weak]


def test_is_pair_wants_knees_of_one_person() -> None:
    assert is_pair(LEFT, RIGHT)
    assert is_pair(LEFT, replace(RIGHT, lateral_left=1.0))  # one of the two may be misjudged
    inwards = replace(LEFT, lateral_left=0.1), replace(RIGHT, lateral_left=0.9)
    assert not is_pair(*inwards)
    for change in ({"width": 90.0}, {"x": 80.0}, {"y": 300.0}):  # too large, too near, too low
        assert not is_pair(LEFT, replace(RIGHT, **change))


@pytest.mark.parametrize(("framing", "seed"), [("single", 4), ("full_leg", 3), ("offcentre", 2)])
def test_locate_knees_finds_the_knees_of_phantoms(framing: str, seed: int) -> None:
    made = phantom(seed, framing=framing)
    found = locate(torch.from_numpy(made.pixels))
    true = sorted(made.knees, key=lambda knee: knee.centre)
    assert len(found) == len(true) > 0
    for place, knee in zip(found, true, strict=True):
        width = math.dist(knee.plateau_medial, knee.plateau_lateral)
        assert math.dist((place.x, place.y), knee.centre) < 0.1 * width
        assert place.width == pytest.approx(width, rel=0.12)
        assert place.mirrored == knee.lateral_is_left
        assert place.score > 0.3


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_locate_knees_turns_a_film_upright(turns: int) -> None:
    turned = PIXELS.rot90(turns)  # anticlockwise
    wanted, found = locate(PIXELS), locate(turned)
    _, to_film = turn_upright(turned, turns)
    for one, other in zip(wanted, found, strict=True):
        assert other.quarter_turns == turns
        assert other.distinct == (turns == 0)
        assert other.mirrored == one.mirrored
        assert other.width == pytest.approx(one.width, rel=0.02)
        place = transform(to_film, torch.tensor([[one.x, one.y]])).tolist()[0]
        assert math.dist(place, (other.x, other.y)) < 0.03 * one.width


def test_locate_knees_says_where_there_are_more_and_takes_one_if_told_so() -> None:
    assert [knee.more for knee in locate(PIXELS)] == [False, False]
    for axis in (0, 1):
        several = locate(torch.cat([PIXELS] * 2, axis))
        assert several
        assert all(knee.more for knee in several)
    assert len(locate(PIXELS, single=True)) == 1


def test_locate_knees_finds_a_joint_that_was_cut_out_of_its_film() -> None:
    for knee in FILM.knees:
        (x0, y0), (x1, y1) = sorted((knee.plateau_medial, knee.plateau_lateral))
        x, y, reach = (x0 + x1) / 2, (y0 + y1) / 2, round(0.68 * (x1 - x0))
        left, top = round(x) - reach, round(y) - reach
        (found,) = locate(PIXELS[top : top + 2 * reach, left : left + 2 * reach])
        assert found.score > CERTAIN
        assert math.dist((found.x + left, found.y + top), (x, y)) < 0.05 * (x1 - x0)
