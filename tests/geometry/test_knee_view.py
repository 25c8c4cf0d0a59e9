"""Views around located knees: upright, of one scale, and mapped back to film pixels."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from kneematch.geometry.knee_view import VIEW_SIZE, KneePlace, cut_views, turn_upright
from kneematch.geometry.view import transform


def film_with_dots(height: int, width: int, dots: list[tuple[float, float]]) -> Tensor:
    """A black film with a soft bright dot at each point (x, y)."""
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    film = torch.zeros(height, width)
    for px, py in dots:
        film += torch.exp(-((x - px) ** 2 + (y - py) ** 2) / 18)
    return film


def brightest(view: Tensor) -> Tensor:
    """The place of the brightest pixel in a view's [-1, 1]^2."""
    row, column = divmod(int(view.argmax()), view.shape[1])
    height, width = view.shape
    return torch.tensor([2 * (column + 0.5) / width - 1, 2 * (row + 0.5) / height - 1])


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_turn_upright_maps_pixels_back_to_the_film(turns: int) -> None:
    film = torch.arange(12.0).reshape(3, 4)
    turned, back = turn_upright(film, turns)
    for row in range(turned.shape[0]):
        for column in range(turned.shape[1]):
            x, y, _ = (back @ torch.tensor([column + 0.5, row + 0.5, 1.0]).double()).tolist()
            assert film[int(y), int(x)] == turned[row, column]


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("degrees", [0.0, 20.0, -35.0])
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_cut_views_shows_what_to_film_says(mirrored: bool, degrees: float, turns: int) -> None:
    dot = (330.0, 260.0)
    film = film_with_dots(500, 600, [dot])
    place = KneePlace(300.0, 240.0, 120.0, math.radians(degrees), mirrored, turns)
    view = cut_views(film, [place])
    assert view.pixels.shape == (1, *VIEW_SIZE)
    found = transform(view.to_film[0], brightest(view.pixels[0])[None])[0]
    assert found.tolist() == pytest.approx(dot, abs=1.0)
    assert (torch.linalg.det(view.to_film[0][:2, :2]) < 0) == mirrored


def test_cut_views_has_plateaus_of_100_pixels_in_the_middle() -> None:
    ends = torch.tensor([[250.0, 240.0], [350.0, 240.0]]).double()
    view = cut_views(film_with_dots(500, 600, []), [KneePlace(300, 240, 100, 0.0, mirrored=False)])
    inside = transform(torch.linalg.inv(view.to_film[0]), ends)
    assert np.abs(inside.numpy() - [[-0.4, 0.0], [0.4, 0.0]]).max() < 0.01


def test_cut_views_is_black_below_the_film() -> None:
    view = cut_views(torch.ones(200, 300), [KneePlace(150, 190, 100, 0.0, mirrored=False)])
    assert view.pixels[0, -1].max() == 0
    assert view.pixels[0, 150, 125] == pytest.approx(1)
