"""The patient's side is stated only where it is told."""

import numpy as np
import pytest

from kneematch.films.radiograph import Radiograph
from kneematch.knee.sides import Laterality, resolve_laterality, usual_mirroring
from kneematch.models.markers import Marker

BOTH = (True, False)  # the lateral sides of two knees point outwards


def film(laterality: str | None = None, seen_from_front: bool | None = None) -> Radiograph:
    return Radiograph(
        np.zeros((2, 2), np.float32), laterality=laterality, seen_from_front=seen_from_front
    )


def both(first: str, second: str, source: str, conflict: str = "") -> tuple[Laterality, ...]:
    return Laterality(first, source, conflict), Laterality(second, source, conflict)


@pytest.mark.parametrize("laterality", [None, "B", "R"])
def test_resolve_laterality_does_not_guess(laterality: str | None) -> None:
    assert resolve_laterality(film(laterality), BOTH) == (Laterality(), Laterality())
    assert resolve_laterality(film(), ()) == ()


@pytest.mark.parametrize(("from_front", "left_is"), [(True, "R"), (False, "L")])
def test_resolve_laterality_follows_the_header_and_the_user(from_front: bool, left_is: str) -> None:
    right_is = "L" if left_is == "R" else "R"
    found = resolve_laterality(film("B", from_front), BOTH)
    assert found == both(left_is, right_is, "header")
    assert resolve_laterality(film(), BOTH, left_is) == both(left_is, right_is, "user")
    for mirrored, side in zip(BOTH, (left_is, right_is), strict=True):
        one = resolve_laterality(film(None, from_front), [mirrored])
        assert one == (Laterality(side, "header"),)


@pytest.mark.parametrize("mirrored", [True, False])
def test_resolve_laterality_of_one_knee_is_its_tag_or_marker(mirrored: bool) -> None:
    assert resolve_laterality(film("R"), [mirrored]) == (Laterality("R", "header"),)
    found = resolve_laterality(film(), [mirrored], markers=[Marker("L", 0.1)])
    assert found == (Laterality("L", "marker"),)


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("R 0.1 L 0.9", "RL"),
        ("L 0.1 R 0.9", "LR"),
        ("R 0.2 L 0.4", "RL"),  # both lie beside the same leg
        ("R 0.1", "RL"),
        ("R 0.9", "LR"),
        ("L 0.9", "RL"),
        ("L 0.2", "LR"),
        ("L 0.4", ""),  # its fellow may not have been read
        ("R 0.1 L 0.5 R 0.9", ""),  # they contradict each other
        ("", ""),
    ],
)
def test_resolve_laterality_of_two_knees_follows_the_markers(letters: str, expected: str) -> None:
    words = letters.split()
    markers = [Marker(letter, float(x)) for letter, x in zip(words[::2], words[1::2], strict=True)]
    found = resolve_laterality(film(), BOTH, markers=markers)
    assert found == (both(*expected, "marker") if expected else (Laterality(), Laterality()))


def test_resolve_laterality_reports_sources_that_disagree() -> None:
    flipped = film("B", seen_from_front=False)
    known = resolve_laterality(flipped, BOTH, "R")
    assert known == both("R", "L", "user", "sides disagree (user and header)")
    (one,) = resolve_laterality(film("R", seen_from_front=True), [False])
    assert one == Laterality("R", "header", "sides disagree (header)")
    markers = [Marker("L", 0.1), Marker("R", 0.9)]
    known = resolve_laterality(film("B", seen_from_front=True), BOTH, markers=markers)
    assert known == both("R", "L", "header", "sides disagree (header and marker)")


@pytest.mark.parametrize("laterality", ["R", "L"])
@pytest.mark.parametrize("from_front", [True, False, None])
def test_usual_mirroring_agrees_with_the_header(laterality: str, from_front: bool | None) -> None:
    one = film(laterality, from_front)
    (known,) = resolve_laterality(one, [usual_mirroring(one)])
    assert known == Laterality(laterality, "header")
    assert usual_mirroring(film("R"))
    assert usual_mirroring(film("L"), "L")
