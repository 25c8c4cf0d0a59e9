"""Tests of the preview: halves side by side, poses drawn where they lie."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kneematch.io.display import LEFT_COLOUR, RIGHT_COLOUR
from kneematch.training.config import DEFAULT, PAPER
from kneematch.training.distributed import Group
from kneematch.training.phase import predict_poses
from kneematch.training.preview import GAP_PX, HEIGHT_PX, draw_poses, draw_preview
from kneematch.training.two_phases import Task, coarse_phase, fine_phase

WIDTH = 250  # of a half of 800 x 500 that is 400 high


def picture(theta: torch.Tensor, count: int = 2) -> np.ndarray:
    ramp = torch.linspace(0, 1, 800)[:, None].expand(count, 2, 800, 500)
    return np.asarray(draw_poses(ramp, theta.expand(count, 2, 4), 0.8))


def test_draw_poses_puts_halves_side_by_side_each_with_its_own_colour() -> None:
    sheet = picture(torch.tensor([0.5, 0.0, 0.0, 0.0]))
    assert sheet.shape == (HEIGHT_PX, 4 * WIDTH + 3 * GAP_PX, 3)
    for k, colour in enumerate((LEFT_COLOUR, RIGHT_COLOUR) * 2):
        left = k * (WIDTH + GAP_PX)
        own = (sheet[:, left : left + WIDTH] == colour).all(-1)
        assert own.sum() > 200
        assert (sheet == colour).all(-1).sum() > own.sum()  # the other film's, too
    assert not sheet[:, WIDTH : WIDTH + GAP_PX].any()


def test_draw_poses_draws_a_pose_where_it_lies() -> None:
    sheet = picture(torch.tensor([0.4, 0.2, -0.3, 0.0]), count=1)
    rows, columns = np.nonzero((sheet[:, :WIDTH] == LEFT_COLOUR).all(-1))
    # Centre (0.2, -0.3), half as wide as 0.4 and as high as 0.4 * 0.8 / 1.6, of [-1, 1].
    assert (columns.min(), columns.max()) == pytest.approx((100, 200), abs=2)
    assert (rows.min(), rows.max()) == pytest.approx((100, 180), abs=2)


def test_draw_poses_draws_a_rotated_pose_rotated() -> None:
    upright, turned = (
        np.nonzero((picture(torch.tensor([0.4, 0, 0, angle]), 1)[:, :WIDTH] == LEFT_COLOUR).all(-1))
        for angle in (0.0, 0.13)
    )
    assert np.ptp(turned[0]) > np.ptp(upright[0]) + 5


def test_draw_poses_accepts_a_pose_past_the_edge_and_a_black_film() -> None:
    far = torch.tensor([1.4, 0.9, -0.9, 0.1]).expand(1, 2, 4)
    assert draw_poses(torch.zeros(1, 2, 800, 500), far, 1.0).size == (2 * WIDTH + GAP_PX, HEIGHT_PX)


@pytest.mark.parametrize("phase", ["coarse", "fine"])
@pytest.mark.parametrize("recipe", [DEFAULT, PAPER], ids=["default", "paper"])
def test_draw_preview_shows_the_first_films_with_the_poses_predicted_on_all(
    phantoms: Any, small_network: Callable, phase: str, recipe: Any
) -> None:
    labels = None if recipe.minimise_energy else phantoms.truth
    task = Task(phantoms.films, phantoms.templates, recipe, labels)
    networks = small_network(0), small_network(1)
    if phase == "coarse":
        (data, _), network = coarse_phase(task), networks[0]
    else:
        (data, _), network = fine_phase(task, networks[0], Group()), networks[1]
    theta = predict_poses(network, data, Group())[:4]
    aspect = getattr(phantoms.templates, phase).aspect
    wanted = np.asarray(draw_poses(phantoms.films.pixels[:4], theta, aspect), dtype=float)
    found = np.asarray(draw_preview(task, networks, phase), dtype=float)
    assert found.shape == wanted.shape
    assert (np.abs(found - wanted).max(-1) > 40).mean() < 0.001  # a line may round to a neighbour
