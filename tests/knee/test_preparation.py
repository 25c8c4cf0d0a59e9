"""Films are prepared alike in any batch; the patient's side is stated only where it is told."""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import pytest
import torch
from kneematch.knee.loading import load
from torch import Tensor

from kneematch.errors import NoFrontalKnee, SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.knee import loading, preparation
from kneematch.knee.preparation import (
    Laterality,
    Preparation,
    PreparedFilm,
    prepare,
    resolve_laterality,
    usual_mirroring,
)
from kneematch.models.locator import Locator, shipped_locator
from kneematch.models.markers import Marker
from kneephantoms.phantom import phantom

BOTH = (True, False)  # the lateral sides of two knees point outwards


def film(laterality: str | None = None, seen_from_front: bool | None = None) -> Radiograph:
    return Radiograph(
        np.zeros((2, 2), np.float32), laterality=laterality, seen_from_front=seen_from_front
    )


def sides(known: tuple[Laterality, ...]) -> str:
    return "".join(each.side or "-" for each in known)


def sources(known: tuple[Laterality, ...]) -> set[str]:
    return {each.source for each in known}


@pytest.mark.parametrize("laterality", [None, "B", "R"])
def test_resolve_laterality_does_not_guess(laterality: str | None) -> None:
    assert resolve_laterality(film(laterality), BOTH) == (Laterality(), Laterality())
    assert resolve_laterality(film(), ()) == ()


@pytest.mark.parametrize(("from_front", "expected"), [(True, "RL"), (False, "LR")])
def test_resolve_laterality_follows_the_orientation_of_the_picture(
    from_front: bool, expected: str
) -> None:
    known = resolve_laterality(film("B", from_front), BOTH)
    assert sides(known) == expected
    assert sources(known) == {"header"}
    for mirrored, side in zip(BOTH, expected, strict=True):
        assert sides(resolve_laterality(film(None, from_front), [mirrored])) == side


@pytest.mark.parametrize(("left_is", "expected"), [("R", "RL"), ("L", "LR")])
def test_resolve_laterality_believes_the_user(left_is: str, expected: str) -> None:
    known = resolve_laterality(film(), BOTH, left_is)
    assert sides(known) == expected
    assert sources(known) == {"user"}
    assert not any(each.conflict for each in known)


@pytest.mark.parametrize("mirrored", [True, False])
def test_resolve_laterality_of_one_knee_is_its_tag(mirrored: bool) -> None:
    assert resolve_laterality(film("R"), [mirrored]) == (Laterality("R", "header"),)


def test_resolve_laterality_reports_sources_that_disagree() -> None:
    flipped = film("B", seen_from_front=False)
    known = resolve_laterality(flipped, BOTH, "R")
    assert sides(known) == "RL"
    assert {each.conflict for each in known} == {"sides disagree (user and header)"}
    (one,) = resolve_laterality(film("R", seen_from_front=True), [False])
    assert (one.side, one.conflict) == ("R", "sides disagree (header)")


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ({"R": 0.1, "L": 0.9}, "RL"),
        ({"L": 0.1, "R": 0.9}, "LR"),
        ({"R": 0.2, "L": 0.4}, "RL"),  # both lie beside the same leg
        ({"R": 0.1}, "RL"),
        ({"R": 0.9}, "LR"),
        ({"L": 0.9}, "RL"),
        ({"L": 0.2}, "LR"),
        ({"L": 0.4}, "--"),  # its fellow may not have been read
        ({}, "--"),
    ],
)
def test_resolve_laterality_of_two_knees_follows_the_markers(
    letters: dict[str, float], expected: str
) -> None:
    markers = [Marker(letter, x) for letter, x in letters.items()]
    known = resolve_laterality(film(), BOTH, markers=markers)
    assert sides(known) == expected
    assert sources(known) == ({""} if "-" in expected else {"marker"})


def test_resolve_laterality_ignores_markers_that_contradict_each_other() -> None:
    markers = [Marker("R", 0.1), Marker("L", 0.5), Marker("R", 0.9)]
    assert sides(resolve_laterality(film(), BOTH, markers=markers)) == "--"
    assert sides(resolve_laterality(film(), [True], markers=markers)) == "-"


@pytest.mark.parametrize("mirrored", [True, False])
def test_resolve_laterality_of_one_knee_is_its_marker(mirrored: bool) -> None:
    (known,) = resolve_laterality(film(), [mirrored], markers=[Marker("L", 0.1)])
    assert known == Laterality("L", "marker")


def test_resolve_laterality_reports_header_and_marker_that_disagree() -> None:
    markers = [Marker("L", 0.1), Marker("R", 0.9)]
    known = resolve_laterality(film("B", seen_from_front=True), BOTH, markers=markers)
    assert sides(known) == "RL"
    assert {each.conflict for each in known} == {"sides disagree (header and marker)"}


@pytest.mark.parametrize("laterality", ["R", "L"])
@pytest.mark.parametrize("from_front", [True, False, None])
def test_usual_mirroring_agrees_with_the_header(laterality: str, from_front: bool | None) -> None:
    one = film(laterality, from_front)
    (known,) = resolve_laterality(one, [usual_mirroring(one)])
    assert known == Laterality(laterality, "header")


def test_usual_mirroring_hangs_films_in_the_usual_way() -> None:
    assert usual_mirroring(film("R"))
    assert not usual_mirroring(film("L"))
    assert usual_mirroring(film("L"), "L")


def test_preparation_refuses_other_sides_and_numbers() -> None:
    Preparation(left_is="R", knees=1)
    with pytest.raises(SettingsError, match="expected 'R' or 'L'"):
        Preparation(left_is="left")
    with pytest.raises(SettingsError, match="expected 1, 2 or None"):
        Preparation(knees=3)


@pytest.fixture(scope="module")
def films() -> list[Radiograph]:
    """Films of several sizes, of two knees, of one, and of none."""
    noise = Radiograph(np.random.default_rng(0).random((300, 400), dtype=np.float32))
    bilateral = [phantom(seed, size=(480, 600)).radiograph for seed in (1, 2, 3)]
    return [bilateral[0], noise, phantom(4, framing="single").radiograph, *bilateral[1:]]


def prepared(
    films: Sequence[Radiograph], device: str = "cpu"
) -> list[PreparedFilm | NoFrontalKnee]:
    how = Preparation(device=device, precise=device != "cpu")
    return prepare([load(film, how.device) for film in films], how)


def assert_alike(
    found: Sequence[PreparedFilm | NoFrontalKnee],
    expected: Sequence[PreparedFilm | NoFrontalKnee],
    pixels: float,
) -> None:
    """Compare films; views may lie elsewhere by a number of pixels."""
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, NoFrontalKnee) or isinstance(other, NoFrontalKnee):
            assert type(one) is type(other)
            continue
        assert torch.allclose(one.views.to_film, other.views.to_film, atol=pixels)
        assert (one.views.pixels - other.views.pixels).abs().mean() < 0.01 * pixels + 1e-5
        for knee, same in zip(one.knees, other.knees, strict=True):
            assert (knee.mirrored, knee.metal) == (same.mirrored, same.metal)
            assert knee.laterality == same.laterality


def test_prepare_does_not_depend_on_the_batch(films: list[Radiograph]) -> None:
    together = prepared(films, "cpu:0")  # by this name the CPU is used as a GPU is
    assert [isinstance(film, NoFrontalKnee) for film in together] == [False, True, *[False] * 3]
    assert_alike(together, [prepared([film], "cpu:0")[0] for film in films], 0.0)
    assert prepared([]) == []


def test_prepare_goes_on_without_a_gpu_that_is_full(
    films: list[Radiograph], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepared(films, "cpu:0")

    def full(device: str, *, precise: bool) -> Locator:
        if device != "cpu":
            raise torch.OutOfMemoryError
        return shipped_locator(device, precise=precise)

    monkeypatch.setattr(preparation, "shipped_locator", full)
    assert_alike(prepared(films, "cpu:0"), expected, 0.0)


def test_prepare_finds_nearly_the_same_in_half_precision(films: list[Radiograph]) -> None:
    """As the locator computes on CPUs, but not on GPUs."""
    assert_alike(prepared(films), prepared(films, "cpu:0"), 1.5)


def test_load_leaves_a_film_on_the_cpu_if_a_gpu_is_full(
    films: list[Radiograph], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = Preparation(device="cpu:0", precise=True)
    there = load(films[0], how.device)
    assert there.radiograph.pixels.size == 0  # they need not be kept
    assert torch.equal(there.pixels, torch.from_numpy(films[0].pixels))

    def full(pixels: Tensor, device: str) -> NoReturn:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(loading, "copy_to", full)
    left = load(films[0], how.device)
    assert left.radiograph is films[0]
    assert_alike(prepare([left], how), prepare([there], how), 0.0)
