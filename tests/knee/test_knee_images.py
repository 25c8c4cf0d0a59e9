"""Images of located knees: every point of them has one place on the film."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from kneematch.knee.knee_images import knee_images
from kneematch.models.locator import VIEW_SIZE, KneeLocation
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


def test_knee_images_have_plateaus_of_100_pixels_in_the_middle() -> None:
    ends = torch.tensor([[250.0, 240.0], [350.0, 240.0]]).double()
    view = knee_images(torch.zeros(500, 600), [KneeLocation(300, 240, 100, 0.0, False)])
    inside = transform(torch.linalg.inv(view.to_film[0]), ends)
    assert np.abs(inside.numpy() - [[-0.4, 0.0], [0.4, 0.0]]).max() < 0.01


def test_knee_images_are_black_below_the_film() -> None:
    view = knee_images(torch.ones(200, 300), [KneeLocation(150, 190, 100, 0.0, False)])
    assert view.pixels[0, -1].max() == 0
    assert view.pixels[0, 150, 125] == pytest.approx(1)
