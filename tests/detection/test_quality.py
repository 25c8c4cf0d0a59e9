"""Which detections are flagged, and why."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kneematch.detection.detector import Detector
from kneematch.detection.quality import (
    CERTAIN,
    CUT,
    DISAGREE,
    HIGH_ENERGY,
    METAL,
    NEGATIVE,
    NO_KNEE,
    SIDES,
    Measures,
    is_cut,
    measure,
)
from kneematch.geometry.pose import pose_from_vector
from kneematch.geometry.split import split
from kneematch.geometry.view import rectangle_to_film
from kneematch.io.radiograph import Radiograph
from kneematch.solvers.problem import make_problem
from kneematch.synthetic.phantom import phantom


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector.load()


def measures(**changed: float) -> Measures:
    """Of one area about which there is no doubt, but for what is changed."""
    good = Measures(
        energy=torch.tensor([0.1]),
        loss=torch.tensor([[0.05]]),
        negative=torch.tensor([[False]]),
        mismatch=torch.tensor([[0.2]]),
        apart=torch.tensor([[0.01]]),
        scales=torch.tensor([[0.0]]),
        heights=torch.tensor([[0.0]]),
        metal=torch.tensor([[0.1]]),
    )
    return replace(good, **{name: torch.tensor([[value]]) for name, value in changed.items()})


def test_an_area_without_doubt_has_no_reason() -> None:
    assert measures().verdict(0, 0, learnt=True, cut=False) == ("", "")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"loss": 0.6}, HIGH_ENERGY),
        ({"mismatch": 0.8}, NO_KNEE),
        ({"apart": 0.2}, NO_KNEE),
        ({"scales": 0.5}, SIDES),
        ({"heights": 1.0}, SIDES),
        ({"metal": 0.9}, METAL),
    ],
)
def test_each_doubt_is_named(changed: dict[str, float], reason: str) -> None:
    assert measures(**changed).verdict(0, 0, learnt=True, cut=False) == ("yes", reason)


def test_what_a_search_found_elsewhere_than_the_network_is_a_disagreement() -> None:
    assert measures(apart=0.2).verdict(0, 0, learnt=False, cut=False) == ("yes", DISAGREE)
    assert measures(apart=0.06).verdict(0, 0, learnt=False, cut=False) == ("", "")


def test_reasons_add_up_and_a_negative_is_only_a_note() -> None:
    assert measures(negative=True).verdict(0, 0, learnt=True, cut=False) == ("", NEGATIVE)
    review, reason = measures(loss=0.6, negative=True).verdict(0, 0, learnt=True, cut=True)
    assert review == "yes"
    assert reason.split("; ") == [HIGH_ENERGY, CUT, NEGATIVE]


def test_a_joint_is_cut_when_its_inner_part_leaves_the_film() -> None:
    size = (100, 200)
    assert not is_cut(rectangle_to_film(10, 10, 90, 90), size)
    assert not is_cut(rectangle_to_film(-5, 10, 75, 90), size)  # only what is around the joint
    assert is_cut(rectangle_to_film(-20, 10, 60, 90), size)
    assert is_cut(rectangle_to_film(10, 40, 90, 120), size)


def test_phantom_knees_are_not_flagged_and_noise_is(detector: Detector) -> None:
    film = phantom(22, size=(600, 720)).radiograph
    assert [knee.review for knee in detector.detect(film)] == ["", ""]
    noise = np.random.default_rng(0).random((600, 720), dtype=np.float32)
    for knee in detector.detect(Radiograph(pixels=noise)):
        assert knee.review == "yes"
        assert NO_KNEE in knee.reason


def test_a_negative_is_found_and_noted(detector: Detector) -> None:
    film = phantom(22, size=(600, 720)).radiograph
    for knee in detector.detect(replace(film, pixels=1 - film.pixels)):
        assert knee.polarity == "negative"
        assert NEGATIVE in knee.reason


def test_an_upside_down_film_is_flagged(detector: Detector) -> None:
    film = phantom(22, size=(600, 720)).radiograph
    turned = replace(film, pixels=np.flipud(film.pixels).copy())
    assert any(knee.review for knee in detector.detect(turned))


def test_the_network_is_asked_only_about_films_whose_match_leaves_doubts(
    detector: Detector,
) -> None:
    asked_about: list[int] = []

    def look(halves: Tensor, theta: Tensor) -> Tensor:
        asked_about.append(len(halves))
        return torch.full(theta.shape[:2], 0.3)

    noise = Radiograph(np.random.default_rng(0).random((600, 720), dtype=np.float32))
    films = [phantom(22, size=(600, 720)).radiograph, noise]
    halves = torch.stack([split(film, room=detector.room).pixels for film in films])
    asked = make_problem(halves, detector.template)
    theta = pose_from_vector(detector.minimiser(asked).v, asked.height_ratio)
    measured = measure(asked, theta, look, learnt=True)  # type: ignore[arg-type]
    assert measured.mismatch[0].max() < CERTAIN < measured.mismatch[1].max()
    assert asked_about == [1]
    assert measured.apart is not None
    assert measured.apart.tolist() == [[0.0, 0.0], pytest.approx([0.3, 0.3])]
    measure(asked, theta, look, learnt=False)  # type: ignore[arg-type]
    assert asked_about == [1, 2]
