"""Which detections are flagged, and why."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from kneematch.knee.loading import load
from torch import Tensor

from kneematch.errors import NoFrontalKnee
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detector import Detector
from kneematch.knee.knee_images import knee_images
from kneematch.knee.preparation import Preparation, prepare
from kneematch.knee.quality import (
    ATYPICAL,
    CERTAIN_MISMATCH,
    CUT,
    DISAGREE,
    METAL,
    NEGATIVE,
    NO_KNEE,
    SIDES_DIFFER,
    WRONG_TAG,
    Quality,
    cut_by_edge,
    exposed_field,
    measure_quality,
    sides_differ,
)
from kneematch.paper.pose import pose_from_vector
from kneematch.paper.problem import make_problem
from kneematch.sampling import rectangle_to_film
from kneephantoms.phantom import phantom


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector.load()


def quality(*, neural: bool = True, **changed: float) -> Quality:
    """Measures of one area that nothing speaks against, except for what is changed."""
    good = {
        "loss": 0.05,
        "negative": False,
        "mismatch": 0.2,
        "network_distance": 0.01,
        "brightness": 0.1,
    }
    arrays = {name: np.array([[value]]) for name, value in (good | changed).items()}
    return Quality(energy=np.array([0.1]), neural=neural, **arrays)


def test_review_is_empty_without_a_doubt() -> None:
    assert quality().review(0, 0) == ("", "")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"loss": 0.6}, ATYPICAL),
        ({"mismatch": 0.8}, NO_KNEE),
        ({"mismatch": math.nan}, NO_KNEE),
        ({"mismatch": 0.6}, ATYPICAL),
        ({"network_distance": 0.2}, ATYPICAL),
        ({"brightness": 0.9}, METAL),
    ],
)
def test_review_names_each_doubt(changed: dict[str, float], reason: str) -> None:
    assert quality(**changed).review(0, 0) == ("yes", reason)


def test_review_names_a_search_that_disagrees_with_the_network() -> None:
    far, near = (quality(neural=False, network_distance=value) for value in (0.2, 0.06))
    assert far.review(0, 0) == ("yes", DISAGREE)
    assert near.review(0, 0) == ("", "")


def test_review_lists_all_reasons_and_a_negative_only_as_a_note() -> None:
    assert quality(negative=True).review(0, 0) == ("", NEGATIVE)
    review, reason = quality(loss=0.6, negative=True).review(0, 0, cut=True)
    assert review == "yes"
    assert reason.split("; ") == [ATYPICAL, CUT, NEGATIVE]


def test_review_calls_a_tag_wrong_only_where_there_is_one() -> None:
    assert quality(negative=True).review(0, 0, tagged=True) == ("", WRONG_TAG)


def test_review_believes_the_locator_about_unusual_knees() -> None:
    unusual = quality(mismatch=0.6, loss=0.6)
    assert unusual.review(0, 0) == ("yes", ATYPICAL)
    assert unusual.review(0, 0, score=0.9, metal=False) == ("", "")
    assert unusual.review(0, 0, score=0.3, metal=False) == ("yes", ATYPICAL)
    far = quality(network_distance=0.2)
    assert far.review(0, 0, score=0.9, metal=False) == ("yes", ATYPICAL)


@pytest.mark.parametrize(
    ("mismatch", "distance", "reason"),
    [
        (0.6, 0.04, ""),
        (0.85, 0.01, ""),
        (0.85, 0.04, ATYPICAL),
        (0.97, 0.01, NO_KNEE),
    ],
)
def test_review_wants_the_network_to_agree_the_more_the_worse_the_match(
    mismatch: float, distance: float, reason: str
) -> None:
    knee = quality(mismatch=mismatch, network_distance=distance)
    assert knee.review(0, 0, score=0.9, metal=False)[1] == reason


@pytest.mark.parametrize(
    ("score", "mismatch", "distance", "expected"),
    [
        (0.9, 0.9, 0.2, True),  # review flags it
        (0.9, 0.97, 0.01, False),
        (0.4, 0.6, 0.01, True),
        (0.4, 0.9, 0.01, False),
        (0.4, 0.6, 0.2, False),  # the network sees it elsewhere
        (None, 0.97, 0.2, True),  # the locator was not used
    ],
)
def test_is_knee_doubts_what_the_locator_is_not_certain_of(
    score: float | None, mismatch: float, distance: float, expected: bool
) -> None:
    knee = quality(mismatch=mismatch, network_distance=distance)
    assert knee.is_knee(0, 0, score) == expected


def test_review_believes_what_is_known_about_metal() -> None:
    assert quality().review(0, 0, metal=True) == ("yes", METAL)
    assert quality(brightness=0.9).review(0, 0, metal=False) == ("", "")


def test_review_names_knees_that_differ() -> None:
    assert quality().review(0, 0, uneven=True) == ("yes", SIDES_DIFFER)


def test_expected_error_grows_with_the_mismatch() -> None:
    low, high = (
        quality(mismatch=value, network_distance=0.0).expected_error(0, 0) for value in (0.1, 0.6)
    )
    assert 0 < low < high


def test_expected_error_of_a_bad_match_is_known_from_the_network() -> None:
    near, far = (
        quality(mismatch=0.9, network_distance=value).expected_error(0, 0) for value in (0.0, 0.05)
    )
    unknown = replace(quality(mismatch=0.9), network_distance=None).expected_error(0, 0)
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
    assert sides_differ(torch.stack(boxes)[None].numpy()).tolist() == [differ]
    turn = np.array([[0, -1, 300], [1, 0, 0], [0, 0, 1.0]])
    assert sides_differ((turn @ torch.stack(boxes).numpy())[None]).tolist() == [differ]


def test_cut_by_edge_is_true_when_the_inner_part_leaves_the_film() -> None:
    boxes = [(10, 10, 90, 90), (-5, 10, 75, 90), (-20, 10, 60, 90), (10, 40, 90, 120)]
    to_film = torch.stack([rectangle_to_film(*box) for box in boxes])[:, None].numpy()
    fields = np.tile([0, 0, 200, 100], (4, 1))
    # The second box leaves the film only with what surrounds the joint.
    assert cut_by_edge(to_film, fields).tolist() == [[False], [False], [True], [True]]


def test_exposed_field_leaves_even_borders_out() -> None:
    film = np.zeros((120, 200), np.float32)
    assert exposed_field(film) == (0, 0, 200, 120)
    film[16:100, 40:180] = np.random.default_rng(0).random((84, 140))
    assert exposed_field(film) == (40, 16, 180, 100)
    assert exposed_field(1 - film) == (40, 16, 180, 100)
    stripes = np.tile(np.linspace(0, 1, 200, dtype=np.float32), (120, 1))
    assert exposed_field(stripes) == (0, 0, 200, 120)
    faint = 0.01 * film  # most of the range is taken by a letter
    faint[20:24, 60:64] = 1
    assert exposed_field(faint) == (40, 16, 180, 100)


def test_detector_flags_a_joint_that_was_collimated_away(detector: Detector) -> None:
    film = phantom(22, size=(600, 720))
    x, _ = film.knees[1].plateau_lateral
    pixels = film.radiograph.pixels.copy()
    pixels[:, round(x) - 3 :] = 0
    _, cut = detector.detect(Radiograph(pixels=pixels))
    assert CUT in cut.review_reasons


def test_detector_flags_noise_and_not_phantoms(detector: Detector) -> None:
    film = phantom(22, size=(600, 720)).radiograph
    assert [knee.review for knee in detector.detect(film)] == ["", ""]
    noise = np.random.default_rng(0).random((600, 720), dtype=np.float32)
    with pytest.raises(NoFrontalKnee):
        detector.detect(Radiograph(pixels=noise))
    halves = Detector.load(method="neural+sharpen").detect(Radiograph(pixels=noise))
    assert [knee.review for knee in halves] == ["yes", "yes"]
    assert all(knee.reason.split("; ")[0] == NO_KNEE for knee in halves)


def test_detector_notes_a_negative(detector: Detector) -> None:
    film = phantom(22, size=(600, 720)).radiograph
    for knee in detector.detect(replace(film, pixels=1 - film.pixels)):
        assert knee.polarity == "negative"
        assert WRONG_TAG in knee.reason


def test_detector_finds_and_notes_an_upside_down_film(detector: Detector) -> None:
    film = phantom(22, size=(600, 720)).radiograph
    turned = replace(film, pixels=np.flipud(film.pixels).copy())
    assert all("film turned by 180 degrees" in knee.reason for knee in detector.detect(turned))


def test_measure_quality_checks_only_films_whose_match_is_doubtful() -> None:
    detector = Detector.load(method="neural+sharpen")
    checked: list[int] = []

    def check(halves: Tensor, theta: Tensor) -> Tensor:
        checked.append(len(halves))
        return torch.full(theta.shape[:2], 0.3)

    noise = Radiograph(np.random.default_rng(0).random((600, 720), dtype=np.float32))
    films = [phantom(6, size=(600, 720)).radiograph, noise]
    how = Preparation(locate=False)
    prepared = prepare([load(film, how.device) for film in films], how)
    halves = torch.stack([film.views.pixels for film in prepared])
    posed = make_problem(halves, detector.template)
    theta = pose_from_vector(detector.solver(posed), posed.height_ratio)
    found = measure_quality(posed, theta, check, neural=True)  # type: ignore[arg-type]
    assert found.mismatch[0].max() < CERTAIN_MISMATCH < found.mismatch[1].max()
    assert checked == [1]
    assert found.network_distance is not None
    assert found.network_distance.tolist() == [[0.0, 0.0], pytest.approx([0.3, 0.3])]
    measure_quality(posed, theta, check, neural=False)  # type: ignore[arg-type]
    assert checked == [1, 2]


def test_detector_compares_only_knees_that_it_shows(detector: Detector) -> None:
    film = phantom(7, framing="lateral").radiograph  # a frontal knee beside one from the side
    (knee,) = detector.detect(film)
    assert knee.reason == ""


def test_detector_blames_a_difference_on_the_knee_that_is_doubtful(detector: Detector) -> None:
    film = phantom(22, size=(600, 720)).radiograph
    (prepared,) = prepare([load(film, "cpu")], Preparation())
    first, second = (knee.place for knee in prepared.knees)
    places = first, replace(second, y=second.y + second.width)  # not where the knee is
    views = knee_images(torch.from_numpy(film.pixels), places)
    ((good, astray),) = detector.find([replace(prepared, views=views)])
    assert good.reason == ""
    assert {ATYPICAL, SIDES_DIFFER} <= set(astray.reason.split("; "))
