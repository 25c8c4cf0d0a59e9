"""Which detections are flagged, and why."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kneematch.films.radiograph import Radiograph
from kneematch.knee.detector import Detector
from kneematch.knee.knee_images import (
    Laterality,
    PreparedFilm,
    PreparedKnee,
    knee_images,
)
from kneematch.knee.quality import (
    ATYPICAL,
    CUT,
    DISAGREE,
    GROWTH_PLATES,
    METAL,
    MORE_KNEES,
    NEGATIVE,
    SECOND_LEG,
    SIDES_DIFFER,
    WRONG_SPACING,
    WRONG_TAG,
    Quality,
    cut_by_edge,
    exposed_field,
    shows_second_leg,
    sides_differ,
)
from kneematch.models.findings import NOTHING, Findings
from kneematch.models.locator import KneeLocation
from kneematch.sampling import View, rectangle_to_film
from kneephantoms import phantom
from phantom_films import radiograph

IMAGES = View(torch.zeros(1, 4, 4), torch.eye(3)[None].double())
ORDINARY = radiograph(phantom(22, size=(600, 720)))


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector.load()


def located(
    score: float, findings: Findings = NOTHING, *, turns: int = 0, **seen: Any
) -> PreparedKnee:
    location = KneeLocation(300.0, 300.0, 250.0, 0.0, False, turns, score)
    return PreparedKnee(False, Laterality(), replace(location, **seen), findings)


SURE = located(0.9)
FILM = PreparedFilm(IMAGES, (SURE,), (0, 0, 600, 600), 0.3, tagged=False)


def quality(*, neural: bool = True, **changed: Any) -> Quality:
    """Measures of one area that nothing speaks against, except for what is changed."""
    return replace(Quality(0.1, 0.05, False, 0.2, 0.01, neural), **changed)


def reasons(
    measured: Quality, knee: PreparedKnee = SURE, film: PreparedFilm = FILM, **flags: bool
) -> tuple[str, ...]:
    """The reasons for review of an area; asserts that there are none without a review."""
    flagged, found = measured.review(knee, film, **({"is_cut": False, "uneven": False} | flags))
    assert flagged == bool(set(found) - {NEGATIVE, WRONG_TAG})
    return found


@pytest.mark.parametrize(
    ("changed", "knee", "expected"),
    [
        ({}, SURE, ()),
        ({"neural": False, "network_distance": 0.2}, SURE, (DISAGREE,)),
        ({"neural": False, "network_distance": 0.06}, SURE, ()),
        ({"mismatch": math.nan}, SURE, (ATYPICAL,)),
        ({"negative": True}, SURE, (NEGATIVE,)),
        # The locator is believed about unusual knees.
        ({"mismatch": 0.6, "network_distance": 0.04, "loss": 0.6}, located(0.9), ()),
        ({"mismatch": 0.2, "network_distance": 0.2}, located(0.9), (ATYPICAL,)),
        # The worse the match, the more must the network agree.
        ({"mismatch": 0.85, "network_distance": 0.01}, located(0.9), ()),
        ({"mismatch": 0.85, "network_distance": 0.04}, located(0.9), (ATYPICAL,)),
        ({"mismatch": 0.97}, located(0.9), (ATYPICAL,)),
        # One of two looks is certain, and the other one sees the knee at all.
        ({}, located(0.4, seen_again=0.4), (ATYPICAL,)),
        ({}, located(0.4, seen_again=0.6), ()),
        ({}, located(0.6, seen_again=0.3), ()),
        ({}, located(0.6, seen_again=0.2), (ATYPICAL,)),
        ({}, located(0.4, seen_again=0.4, distinct=True), ()),  # other parts do not look so
        ({}, located(0.4, seen_again=0.2, distinct=True), (ATYPICAL,)),
        ({}, located(0.9, Findings(metal=True, growth_plates=True)), (METAL, GROWTH_PLATES)),
        ({}, located(0.9, more=True), (MORE_KNEES,)),
    ],
)
def test_review_names_each_doubt(
    changed: dict[str, Any], knee: PreparedKnee, expected: tuple[str, ...]
) -> None:
    assert reasons(quality(**changed), knee) == expected


def test_review_lists_reasons_and_notes() -> None:
    found = reasons(quality(network_distance=0.2, negative=True), is_cut=True, uneven=True)
    assert found == (ATYPICAL, SIDES_DIFFER, CUT, NEGATIVE)
    assert reasons(quality(negative=True), film=replace(FILM, tagged=True)) == (WRONG_TAG,)
    assert reasons(quality(), located(0.9), replace(FILM, mm_per_px=3.0)) == (WRONG_SPACING,)
    known = replace(SURE, laterality=Laterality("R", "user", "sides disagree (user)"))
    assert reasons(quality(), known) == ("sides disagree (user)",)
    note, turned = "film turned by 180 degrees", located(0.9, turns=2)
    for knee, film, expected in (
        (located(0.9), replace(FILM, second_leg=True), (False, (SECOND_LEG,))),
        (turned, replace(FILM, knees=(located(0.9), located(0.9))), (False, (note,))),
        (turned, replace(FILM, knees=(turned,)), (True, (note,))),
    ):
        assert quality().review(knee, film, is_cut=False, uneven=False) == expected


@pytest.mark.parametrize(
    ("knee", "mismatch", "distance", "expected"),
    [
        (located(0.9), 0.9, 0.2, True),  # review flags it
        (located(0.9), 0.97, 0.01, False),
        (located(0.4), 0.6, 0.01, True),
        (located(0.4), 0.9, 0.01, False),
        (located(0.4), 0.6, 0.2, False),  # the network sees it elsewhere
        (located(0.4, distinct=True), 0.9, 0.2, True),  # other parts do not look so
        (located(0.4, distinct=True), 0.97, 0.2, False),
        (PreparedKnee(False, Laterality()), 0.97, 0.2, True),  # another part
    ],
)
def test_is_knee_doubts_what_the_locator_is_not_certain_of(
    knee: PreparedKnee, mismatch: float, distance: float, expected: bool
) -> None:
    assert quality(mismatch=mismatch, network_distance=distance).is_knee(knee) == expected


def test_expected_error_grows_with_mismatch_and_distance() -> None:
    low, high = (quality(mismatch=m, network_distance=0.0).expected_error() for m in (0.1, 0.6))
    assert 0 < low < high
    near, far = (quality(mismatch=0.9, network_distance=d).expected_error() for d in (0.0, 0.05))
    unknown = quality(mismatch=0.9, network_distance=None).expected_error()
    assert near < far < unknown


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        ((110, 0, 210, 100), False),
        ((110, 0, 240, 130), True),  # larger
        ((110, 80, 210, 180), True),  # lower
    ],
)
def test_sides_differ_compares_size_and_height(
    other: tuple[float, float, float, float], differ: bool
) -> None:
    boxes = [rectangle_to_film(0, 0, 100, 100, mirrored=True), rectangle_to_film(*other)]
    turn = np.array([[0, -1, 300], [1, 0, 0], [0, 0, 1.0]])
    for matrix in (np.eye(3), turn):
        assert sides_differ(matrix @ torch.stack(boxes).numpy()) == differ


@pytest.mark.parametrize(("framing", "expected"), [("bilateral", True), ("single", False)])
def test_shows_second_leg_beside_a_knee(framing: str, expected: bool) -> None:
    made = phantom(22, size=(600, 720), framing=framing)
    knee = made.knees[0]
    (x0, y0), (x1, y1) = sorted((knee.plateau_medial, knee.plateau_lateral))
    place = KneeLocation((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, 0.0, 0.5)
    pixels = made.pixels
    assert shows_second_leg(pixels, place, exposed_field(pixels)) == expected


def test_cut_by_edge_is_true_when_the_inner_part_leaves_the_film() -> None:
    boxes = [(10, 10, 90, 90), (-5, 10, 75, 90), (-20, 10, 60, 90), (10, 60, 90, 140)]
    to_film = torch.stack([rectangle_to_film(*box) for box in boxes]).numpy()
    # The second box leaves the film only with what surrounds the joint.
    assert cut_by_edge(to_film, (0, 0, 200, 100)).tolist() == [False, False, True, True]


def test_exposed_field_leaves_even_borders_out() -> None:
    film = np.zeros((120, 200), np.float32)
    assert exposed_field(film) == (0, 0, 200, 120)
    film[16:100, 40:180] = np.random.default_rng(0).random((84, 140))
    faint = 0.01 * film  # most of the range is taken by a letter
    faint[20:24, 60:64] = 1
    for shown in (film, 1 - film, faint):
        assert exposed_field(shown) == (40, 16, 180, 100)
    stripes = np.tile(np.linspace(0, 1, 200, dtype=np.float32), (120, 1))
    assert exposed_field(stripes) == (0, 0, 200, 120)


@pytest.mark.parametrize("method", ["auto", "search"])
def test_detector_does_not_flag_ordinary_phantoms(method: str) -> None:
    assert [knee.reasons for knee in Detector.load(method=method).detect(ORDINARY)] == [(), ()]


def test_detector_notes_negatives_and_turned_films(detector: Detector) -> None:
    for knee in detector.detect(replace(ORDINARY, pixels=1 - ORDINARY.pixels)):
        assert (knee.polarity, WRONG_TAG in knee.reasons) == ("negative", True)
    turned = replace(ORDINARY, pixels=np.flipud(ORDINARY.pixels).copy())
    for knee in detector.detect(turned):
        assert "film turned by 180 degrees" in knee.reasons


def test_detector_compares_only_knees_that_it_shows(detector: Detector) -> None:
    film = radiograph(phantom(7, framing="lateral"))  # a frontal knee beside one from the side
    (knee,) = detector.detect(film)
    assert knee.reasons == ()


def test_detector_blames_a_difference_on_the_knee_that_is_doubtful(
    detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def astray(pixels: Tensor, knees: list[KneeLocation]) -> View:
        """Images of the first knee, and of a place below the second."""
        first, second = knees
        return knee_images(pixels, [first, replace(second, y=second.y + second.width)])

    monkeypatch.setattr("kneematch.knee.knee_images.knee_images", astray)
    good, doubtful = detector.detect(ORDINARY)
    assert good.reasons == ()
    assert {ATYPICAL, SIDES_DIFFER} <= set(doubtful.review_reasons)


def test_detector_flags_a_joint_that_was_collimated_away(detector: Detector) -> None:
    film = phantom(22, size=(600, 720))
    x, _ = film.knees[1].plateau_lateral
    pixels = film.pixels.copy()
    pixels[:, round(x) - 12 :] = 0
    _, cut = detector.detect(Radiograph(pixels=pixels))
    assert CUT in cut.review_reasons
