"""Images of knees: every point has one place on the film, and films are prepared alike."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

import kneematch.knee.knee_images as module
from kneematch.errors import NoFrontalKnee, SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.knee.knee_images import Preparation, PreparedFilm, knee_images, prepare
from kneematch.models.locator import VIEW_SIZE, KneeLocation, Locator, builtin_locator
from kneematch.sampling import transform
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
    with pytest.raises(SettingsError, match="must be 'R' or 'L', not 'left'"):
        Preparation(left_is="left")
    with pytest.raises(SettingsError, match="1, 2 or None"):
        Preparation(knees=3)


def test_prepare_goes_on_without_a_gpu_that_is_full(
    films: list[Radiograph], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepared(films)

    def full(device: str, *, precise: bool) -> Locator:
        if device != "cpu":
            raise torch.OutOfMemoryError
        return builtin_locator(device, precise=precise)

    monkeypatch.setattr(module, "builtin_locator", full)
    assert_alike(prepared(films), expected)


def test_prepare_finds_nearly_the_same_in_half_precision(films: list[Radiograph]) -> None:
    """As the locator computes on CPUs, but not on GPUs."""
    assert_alike(prepared(films, "cpu"), prepared(films), 1.5)


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


def test_knee_images_have_plateaus_of_100_pixels_in_the_middle() -> None:
    ends = torch.tensor([[250.0, 240.0], [350.0, 240.0]]).double()
    view = knee_images(torch.zeros(500, 600), [KneeLocation(300, 240, 100, 0.0, False)])
    inside = transform(torch.linalg.inv(view.to_film[0]), ends)
    assert np.abs(inside.numpy() - [[-0.4, 0.0], [0.4, 0.0]]).max() < 0.01
