"""Images of knees: every point has one place on the film, and films are prepared alike."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from kneematch.films.radiograph import Radiograph
from kneematch.knee.knee_images import (
    Laterality,
    knee_images,
    resolve_laterality,
    usual_mirroring,
)
from kneematch.models.locator import VIEW_SIZE, KneeLocation
from kneematch.models.markers import Marker
from kneematch.sampling import transform


def film_with_dot(height: int, width: int, x: float, y: float) -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.exp(-((columns + 0.5 - x) ** 2 + (rows + 0.5 - y) ** 2) / 18)


def brightest(view: Tensor) -> Tensor:
    """The place of the brightest pixel in a view's [-1, 1]^2."""
    row, column = divmod(int(view.argmax()), view.shape[1])
    height, width = view.shape
    return torch.tensor([2 * (column + 0.5) / width - 1, 2 * (row + 0.5) / height - 1])


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("degrees", "turns"), [(0.0, 0), (-35.0, 1), (0.0, 2), (20.0, 3)])
def test_knee_images_show_what_to_film_says(mirrored: bool, degrees: float, turns: int) -> None:
    place = KneeLocation(300.0, 240.0, 120.0, math.radians(degrees), mirrored, turns)
    view = knee_images(film_with_dot(500, 600, 330.0, 260.0), [place])
    assert view.pixels.shape == (1, *VIEW_SIZE)
    found = transform(view.to_film[0], brightest(view.pixels[0])[None])[0]
    assert found.tolist() == pytest.approx((330.0, 260.0), abs=1.0)
    assert (torch.linalg.det(view.to_film[0][:2, :2]) < 0) == mirrored


BOTH = (True, False)  # the lateral sides of two knees point outwards


def bare_film(laterality: str | None = None, from_front: bool | None = None) -> Radiograph:
    pixels = np.zeros((2, 2), np.float32)
    return Radiograph(pixels, laterality=laterality, seen_from_front=from_front)


def both(first: str, second: str, source: str, conflict: str = "") -> tuple[Laterality, ...]:
    return Laterality(first, source, conflict), Laterality(second, source, conflict)


@pytest.mark.parametrize("laterality", [None, "B", "R"])
def test_resolve_laterality_does_not_guess(laterality: str | None) -> None:
    assert resolve_laterality(bare_film(laterality), BOTH) == (Laterality(), Laterality())
    assert resolve_laterality(bare_film(), ()) == ()


@pytest.mark.parametrize(("from_front", "left_is"), [(True, "R"), (False, "L")])
def test_resolve_laterality_follows_the_header_and_the_user(from_front: bool, left_is: str) -> None:
    right_is = "L" if left_is == "R" else "R"
    found = resolve_laterality(bare_film("B", from_front), BOTH)
    assert found == both(left_is, right_is, "header")
    assert resolve_laterality(bare_film(), BOTH, left_is) == both(left_is, right_is, "user")
    for mirrored, side in zip(BOTH, (left_is, right_is), strict=True):
        one = resolve_laterality(bare_film(None, from_front), [mirrored])
        assert one == (Laterality(side, "header"),)


@pytest.mark.parametrize("mirrored", [True, False])
def test_resolve_laterality_of_one_knee_is_its_tag_or_marker(mirrored: bool) -> None:
    assert resolve_laterality(bare_film("R"), [mirrored]) == (Laterality("R", "header"),)
    found = resolve_laterality(bare_film(), [mirrored], markers=[Marker("L", 0.1)])
    assert found == (Laterality("L", "marker"),)
    turned = [Marker("R", 0.9, turned=True)]  # the place of a letter on a turned film tells nothing
    assert resolve_laterality(bare_film(), [mirrored], markers=turned)[0].side == "R"
    assert resolve_laterality(bare_film(), BOTH, markers=turned) == (Laterality(), Laterality())


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
    found = resolve_laterality(bare_film(), BOTH, markers=markers)
    assert found == (both(*expected, "marker") if expected else (Laterality(), Laterality()))


def test_resolve_laterality_reports_sources_that_disagree() -> None:
    flipped = bare_film("B", from_front=False)
    known = resolve_laterality(flipped, BOTH, "R")
    assert known == both("R", "L", "user", "sides disagree (user and header)")
    (one,) = resolve_laterality(bare_film("R", from_front=True), [False])
    assert one == Laterality("R", "header", "sides disagree (header)")
    markers = [Marker("L", 0.1), Marker("R", 0.9)]
    known = resolve_laterality(bare_film("B", from_front=True), BOTH, markers=markers)
    assert known == both("R", "L", "header", "sides disagree (header and marker)")


@pytest.mark.parametrize("laterality", ["R", "L"])
@pytest.mark.parametrize("from_front", [True, False, None])
def test_usual_mirroring_agrees_with_the_header(laterality: str, from_front: bool | None) -> None:
    one = bare_film(laterality, from_front)
    (known,) = resolve_laterality(one, [usual_mirroring(one)])
    assert known == Laterality(laterality, "header")
    assert usual_mirroring(bare_film("R"))
    assert usual_mirroring(bare_film("L"), "L")
