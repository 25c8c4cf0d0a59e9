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
    Preparation,
    PreparedFilm,
    PreparedKnee,
    knee_images,
    prepare,
)
from kneematch.knee.quality import (
    ATYPICAL,
    CERTAIN_MISMATCH,
    CUT,
    DISAGREE,
    GROWTH_PLATES,
    METAL,
    MORE_KNEES,
    NEGATIVE,
    NO_KNEE,
    SECOND_LEG,
    SIDES_DIFFER,
    WRONG_SPACING,
    WRONG_TAG,
    Quality,
    cut_by_edge,
    exposed_field,
    measure_quality,
    shows_second_leg,
    sides_differ,
)
from kneematch.models.findings import NOTHING, Findings
from kneematch.models.locator import KneeLocation
from kneematch.sampling import View, rectangle_to_film
from kneematch.search.robust_energy import robust_problem
from kneephantoms import phantom
from phantom_films import radiograph

UNLOCATED = PreparedKnee(False, Laterality())
IMAGES = View(torch.zeros(1, 4, 4), torch.eye(3)[None].double())
FILM = PreparedFilm(IMAGES, (UNLOCATED,), (0, 0, 600, 600), 0.3, tagged=False)
ORDINARY = radiograph(phantom(22, size=(600, 720)))
NOISE = Radiograph(np.random.default_rng(0).random((600, 720), dtype=np.float32))


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector.load()


def located(
    score: float,
    findings: Findings = NOTHING,
    *,
    turns: int = 0,
    again: float = 1.0,
    distinct: bool = False,
) -> PreparedKnee:
    location = KneeLocation(300.0, 300.0, 250.0, 0.0, False, turns, score, again, distinct)
    return PreparedKnee(False, Laterality(), location, findings)


def quality(*, neural: bool = True, **changed: Any) -> Quality:
    """Measures of one area that nothing speaks against, except for what is changed."""
    return replace(Quality(0.1, 0.05, False, 0.2, 0.01, neural), **changed)


def reasons(
    measured: Quality, knee: PreparedKnee = UNLOCATED, film: PreparedFilm = FILM, **flags: bool
) -> tuple[str, ...]:
    """The reasons for review of an area; asserts that there are none without a review."""
    flagged, found = measured.review(knee, film, **({"is_cut": False, "uneven": False} | flags))
    assert flagged == bool(set(found) - {NEGATIVE, WRONG_TAG})
    return found


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ()),
        ({"neural": False, "network_distance": 0.2}, (DISAGREE,)),
        ({"neural": False, "network_distance": 0.06}, ()),
        ({"loss": 0.6}, (ATYPICAL,)),
        ({"mismatch": 0.8}, (NO_KNEE,)),
        ({"mismatch": math.nan}, (NO_KNEE,)),
        ({"mismatch": 0.6}, (ATYPICAL,)),
        ({"network_distance": 0.2}, (ATYPICAL,)),
        ({"negative": True}, (NEGATIVE,)),
    ],
)
def test_review_names_each_doubt(changed: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert reasons(quality(**changed)) == expected


def test_review_lists_reasons_and_notes() -> None:
    found = reasons(quality(loss=0.6, negative=True), is_cut=True, uneven=True)
    assert found == (ATYPICAL, SIDES_DIFFER, CUT, NEGATIVE)
    assert reasons(quality(negative=True), film=replace(FILM, tagged=True)) == (WRONG_TAG,)
    beside = replace(FILM, second_leg=True)
    found = quality().review(located(0.9), beside, is_cut=False, uneven=False)
    assert found == (False, (SECOND_LEG,))
    known = replace(UNLOCATED, laterality=Laterality("R", "user", "sides disagree (user)"))
    assert reasons(quality(), known) == ("sides disagree (user)",)
    assert reasons(quality(), located(0.9), replace(FILM, mm_per_px=3.0)) == (WRONG_SPACING,)
    both = Findings(metal=True, growth_plates=True)
    assert reasons(quality(), located(0.9, both)) == (METAL, GROWTH_PLATES)
    seen = located(0.9)
    assert seen.location is not None
    crowd = replace(seen, location=replace(seen.location, more=True))
    assert reasons(quality(), crowd) == (MORE_KNEES,)
    turned, pair = located(0.9, turns=2), replace(FILM, knees=(located(0.9), located(0.9)))
    note = ("film turned by 180 degrees",)
    assert quality().review(turned, pair, is_cut=False, uneven=False) == (False, note)
    alone = replace(FILM, knees=(turned,))
    assert quality().review(turned, alone, is_cut=False, uneven=False) == (True, note)


@pytest.mark.parametrize(
    ("score", "mismatch", "distance", "expected"),
    [
        (0.9, 0.6, 0.01, ()),  # the locator is believed about unusual knees
        (0.9, 0.2, 0.2, (ATYPICAL,)),
        (0.9, 0.6, 0.04, ()),
        (0.9, 0.85, 0.01, ()),
        (0.9, 0.85, 0.04, (ATYPICAL,)),  # the worse the match, the more must the network agree
        (0.9, 0.97, 0.01, (NO_KNEE,)),
    ],
)
def test_review_of_located_knees(
    score: float, mismatch: float, distance: float, expected: tuple[str, ...]
) -> None:
    measured = quality(mismatch=mismatch, network_distance=distance, loss=0.6)
    assert reasons(measured, located(score)) == expected


@pytest.mark.parametrize(
    ("score", "again", "distinct", "expected"),
    [
        (0.4, 0.4, False, (ATYPICAL,)),
        (0.4, 0.6, False, ()),  # certain in one of two looks
        (0.6, 0.3, False, ()),
        (0.6, 0.2, False, (ATYPICAL,)),  # not seen in the other one
        (0.4, 0.4, True, ()),  # other parts do not look so
        (0.4, 0.2, True, (ATYPICAL,)),
    ],
)
def test_review_asks_for_two_looks_at_a_knee(
    score: float, again: float, distinct: bool, expected: tuple[str, ...]
) -> None:
    assert reasons(quality(), located(score, again=again, distinct=distinct)) == expected


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
        (UNLOCATED, 0.97, 0.2, True),
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


def test_measure_quality_checks_only_films_whose_match_is_doubtful() -> None:
    detector = Detector.load(method="neural+sharpen")
    checked: list[int] = []

    def check(halves: Tensor, theta: Tensor) -> Tensor:
        checked.append(len(halves))
        return torch.full(theta.shape[:2], 0.3)

    films = prepare([radiograph(phantom(6, size=(600, 720))), NOISE], Preparation(locate=False))
    halves = torch.stack([film.images.pixels for film in films if isinstance(film, PreparedFilm)])
    posed = robust_problem(halves, detector.template)
    theta = detector.solver(posed)
    good, bad = measure_quality(posed, theta, check, neural=True)
    assert max(each.mismatch for each in good) < CERTAIN_MISMATCH
    assert max(each.mismatch for each in bad) > CERTAIN_MISMATCH
    distances = [each.network_distance for each in (*good, *bad)]
    assert distances == pytest.approx([0.0, 0.0, 0.3, 0.3])
    measure_quality(posed, theta, check, neural=False)
    assert checked == [1, 2]


def test_detector_flags_noise_and_not_phantoms(detector: Detector) -> None:
    assert [knee.reasons for knee in detector.detect(ORDINARY)] == [(), ()]
    for knee in Detector.load(method="neural+sharpen").detect(NOISE):
        assert knee.review_reasons[0] == NO_KNEE


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
