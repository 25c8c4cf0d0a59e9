"""A few films as a network sees them: halves side by side, poses drawn where they lie."""

import numpy as np
import pytest
import torch

from kneematch.io.display import LEFT_COLOUR, RIGHT_COLOUR
from kneematch.training.preview import GAP, HEIGHT, draw_poses

WIDTH = 250  # of a half of 800 x 500 that is 400 high


def picture(theta: torch.Tensor, count: int = 2) -> np.ndarray:
    ramp = torch.linspace(0, 1, 800)[:, None].expand(count, 2, 800, 500)
    return np.asarray(draw_poses(ramp, theta.expand(count, 2, 4), 0.8))


def test_halves_stand_side_by_side_each_with_its_own_colour() -> None:
    sheet = picture(torch.tensor([0.5, 0.0, 0.0, 0.0]))
    assert sheet.shape == (HEIGHT, 4 * WIDTH + 3 * GAP, 3)
    for k, colour in enumerate((LEFT_COLOUR, RIGHT_COLOUR) * 2):
        left = k * (WIDTH + GAP)
        own = (sheet[:, left : left + WIDTH] == colour).all(-1)
        assert own.sum() > 200
        assert (sheet == colour).all(-1).sum() > own.sum()  # the other film's, too
    assert not sheet[:, WIDTH : WIDTH + GAP].any()


def test_a_pose_is_drawn_where_it_lies() -> None:
    sheet = picture(torch.tensor([0.4, 0.2, -0.3, 0.0]), count=1)
    rows, columns = np.nonzero((sheet[:, :WIDTH] == LEFT_COLOUR).all(-1))
    # Centre (0.2, -0.3), half as wide as 0.4 and as high as 0.4 * 0.8 / 1.6, of [-1, 1].
    assert (columns.min(), columns.max()) == pytest.approx((100, 200), abs=2)
    assert (rows.min(), rows.max()) == pytest.approx((100, 180), abs=2)


def test_a_turned_pose_is_drawn_turned() -> None:
    upright, turned = (
        np.nonzero((picture(torch.tensor([0.4, 0, 0, angle]), 1)[:, :WIDTH] == LEFT_COLOUR).all(-1))
        for angle in (0.0, 0.13)
    )
    assert np.ptp(turned[0]) > np.ptp(upright[0]) + 5


def test_a_pose_past_the_edge_and_a_black_film_can_be_drawn() -> None:
    far = torch.tensor([1.4, 0.9, -0.9, 0.1]).expand(1, 2, 4)
    assert draw_poses(torch.zeros(1, 2, 800, 500), far, 1.0).size == (2 * WIDTH + GAP, HEIGHT)
