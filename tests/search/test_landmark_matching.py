"""Landmarks to the point."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, map_coordinates
from torch import Tensor

from kneematch.sampling import axes_to_film, transform
from kneematch.search.landmark_matching import (
    MATCH_PX,
    LandmarkModel,
    area_frame,
    find_landmarks,
    landmark_model,
)

SIDE = 900  # of a film
AREA = axes_to_film((224.0, 0.0), (0.0, 224.0), (450.0, 450.0))
POINTS = torch.tensor([[x, y] for x in (-120.0, 0.0, 120.0) for y in (-90.0, 20.0, 130.0)])


def film(stretch: float = 1.0, blank: tuple[int, int] | None = None) -> Tensor:
    """A texture, stretched about its middle; with a patch of another one around a point."""
    texture = gaussian_filter(np.random.default_rng(0).standard_normal((SIDE, SIDE)), 5)
    y, x = (np.mgrid[:SIDE, :SIDE] - SIDE / 2) / stretch + SIDE / 2
    shown = map_coordinates(texture, [y, x], order=1, mode="nearest")
    if blank is not None:
        other = gaussian_filter(np.random.default_rng(1).standard_normal((180, 180)), 5)
        shown[blank[1] - 90 : blank[1] + 90, blank[0] - 90 : blank[0] + 90] = other
    return torch.from_numpy(shown / texture.std()).float()


@pytest.fixture(scope="module")
def model() -> LandmarkModel:
    return landmark_model(area_frame(film(), AREA)[0], POINTS)


def test_area_frame_maps_pixels_from_the_middle_to_the_film() -> None:
    mirrored = AREA * torch.tensor([-0.5, 0.5, 1.0])
    levels, frame = area_frame(film(), mirrored)
    assert [level.shape[-1] for level in levels] == [192, 384, 768]
    there = transform(frame, torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]]))
    assert torch.allclose(there, torch.tensor([[450.0, 450], [400, 450], [450, 500]]).double())


def test_find_landmarks_follows_a_stretched_film_to_half_a_pixel(model: LandmarkModel) -> None:
    found = find_landmarks(area_frame(film(1.06), AREA)[0], model)
    assert (found.points - 1.06 * POINTS).norm(dim=1).max() < 0.5
    assert found.variance.sqrt().max() < 1.5 * MATCH_PX


def test_find_landmarks_expects_a_hidden_one_where_the_others_say(model: LandmarkModel) -> None:
    hidden = 4  # (0, 20), in the middle
    found = find_landmarks(area_frame(film(1.04, blank=(450, 471)), AREA)[0], model)
    away = (found.points - 1.04 * POINTS).norm(dim=1)
    others = [k for k in range(len(POINTS)) if k != hidden]
    assert away[others].max() < 2
    assert away[hidden] < 30
    assert found.variance[hidden] > 3 * found.variance[others].max()


def test_find_landmarks_is_uncertain_of_an_area_of_a_single_grey(model: LandmarkModel) -> None:
    found = find_landmarks(area_frame(torch.ones(SIDE, SIDE), AREA)[0], model)
    assert found.points.isfinite().all()
    assert found.variance.sqrt().min() > 5 * MATCH_PX
