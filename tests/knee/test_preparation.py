"""Films are prepared alike in any batch."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from kneematch.errors import NoFrontalKnee, SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.knee import preparation
from kneematch.knee.preparation import Preparation, PreparedFilm, prepare
from kneematch.models.locator import Locator, builtin_locator
from kneephantoms import phantom
from phantom_films import radiograph

Prepared = Sequence[PreparedFilm | NoFrontalKnee]


@pytest.fixture(scope="module")
def films() -> list[Radiograph]:
    """Films of several sizes, of two knees, of one, and of none."""
    noise = Radiograph(np.random.default_rng(0).random((300, 400), dtype=np.float32))
    bilateral = [radiograph(phantom(seed, size=(480, 600))) for seed in (1, 2, 3)]
    return [bilateral[0], noise, radiograph(phantom(4, framing="single")), *bilateral[1:]]


def prepared(films: Sequence[Radiograph], device: str = "cpu:0") -> Prepared:
    """Prepare films; by the name cpu:0 the CPU is used as a GPU is."""
    return prepare(films, Preparation(device=device, precise=device != "cpu"))


def assert_alike(found: Prepared, expected: Prepared, pixels: float = 0.0) -> None:
    """Compare films; images may lie elsewhere by a number of pixels."""
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, NoFrontalKnee) or isinstance(other, NoFrontalKnee):
            assert type(one) is type(other)
            continue
        assert torch.allclose(one.images.to_film, other.images.to_film, atol=pixels)
        assert (one.images.pixels - other.images.pixels).abs().mean() < 0.01 * pixels + 1e-5
        for knee, same in zip(one.knees, other.knees, strict=True):
            assert (knee.mirrored, knee.metal) == (same.mirrored, same.metal)
            assert knee.laterality == same.laterality


def test_preparation_refuses_other_sides_and_numbers() -> None:
    Preparation(left_is="R", knees=1)
    with pytest.raises(SettingsError, match="'R' or 'L'; not 'left'"):
        Preparation(left_is="left")
    with pytest.raises(SettingsError, match="1 or 2 knees"):
        Preparation(knees=3)


def test_prepare_does_not_depend_on_the_batch(films: list[Radiograph]) -> None:
    together = prepared(films)
    assert [isinstance(film, NoFrontalKnee) for film in together] == [False, True, *[False] * 3]
    assert_alike(together, [prepared([film])[0] for film in films])
    assert prepared([]) == []


def test_prepare_goes_on_without_a_gpu_that_is_full(
    films: list[Radiograph], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepared(films)

    def full(device: str, *, precise: bool) -> Locator:
        if device != "cpu":
            raise torch.OutOfMemoryError
        return builtin_locator(device, precise=precise)

    monkeypatch.setattr(preparation, "builtin_locator", full)
    assert_alike(prepared(films), expected)


def test_prepare_finds_nearly_the_same_in_half_precision(films: list[Radiograph]) -> None:
    """As the locator computes on CPUs, but not on GPUs."""
    assert_alike(prepared(films, "cpu"), prepared(films), 1.5)
