"""The grid: the starts of the appendix, and the lowest value met from all of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.paper.energy import Problem, paper_problem
from kneematch.paper.grid_search import grid_search, grid_starts
from kneematch.paper.sharpening import sharpen
from kneematch.sampling import resize
from kneematch.search.robust_energy import resize_template


@pytest.fixture
def question(clouds: Callable, cut: Callable) -> Problem:
    template, _ = cut(clouds())
    return paper_problem(clouds().expand(1, 2, 192, 120), template)


def test_grid_starts_are_as_many_as_in_the_appendix(question: Problem) -> None:
    # s = 0.15: 1 + ceil(1.7 / 0.075) = 24 across, 1.7 / 23 apart, so up to 4 apart are within 1/3:
    # 24 + 2 (23 + 22 + 21 + 20) = 196 pairs. s2 = 0.09375: 1 + ceil(1.8125 / 0.046875) = 40 down.
    # s = 0.95: 1 + ceil(0.1 / 0.475) = 2 across, all 4 pairs within 1/3; s2 = 0.59375:
    # 1 + ceil(0.8125 / 0.296875) = 4 down.
    assert grid_starts(question, 2, 0.25).shape == (196 * 40 + 4 * 4, 2, 4)
    # s = 5 / 12: 7 strides of 1 / 6 in 7 / 6, though more in floating point, hence 8 across;
    # s2 = 25 / 96: 14.2 strides, hence 16 down.
    one = question.rearrange(lambda tensor: tensor[:, :1])
    starts = grid_starts(one, 4, 0.2)
    assert int(((starts[..., 0] - 5 / 12).abs() < 1e-4).sum()) == 8 * 16


def test_grid_starts_are_those_of_the_appendix(question: Problem) -> None:
    theta = grid_starts(question, 10, 0.25)
    left, right = theta.unbind(1)
    assert torch.equal(left[:, [0, 2, 3]], right[:, [0, 2, 3]])  # scale, height and no rotation
    assert bool((theta[..., 3] == 0).all())
    assert ((left - right)[:, 1].abs() < 1 / 3 + 1e-6).all()
    scales = torch.linspace(0.15, 0.95, 10, dtype=torch.float64)
    nearest = (left[:, :1] - scales).abs()
    assert nearest.min(1).values.max() < 1e-6
    assert len(theta.float().unique(dim=0)) == len(theta)
    for k, scale in enumerate(scales.tolist()):  # neighbours are at most a stride apart
        for axis, reach in ((1, scale), (2, scale / 1.6)):
            centres = theta[nearest.argmin(1) == k, 0, axis].unique()
            assert centres.diff().max() < 0.25 * 2 * reach + 1e-3
            ends = float(centres.min()), float(centres.max())
            assert ends == pytest.approx((reach - 1, 1 - reach), abs=0.01)


def small(half: Tensor, cut: Callable, sides: int) -> tuple[Problem, Tensor]:
    """A film of 80 x 50 pixels whose sides show the template, and its pose."""
    template, theta = cut(half)
    halves = resize(half, (80, 50)).expand(1, sides, 80, 50)
    little = resize_template(template, (21, 21))
    return paper_problem(halves, little), theta


@pytest.mark.parametrize("sides", [1, 2])
def test_grid_search_finds_a_template_without_a_start_at_it(
    clouds: Callable, cut: Callable, sides: int
) -> None:
    half = clouds()
    asked, truth = small(half, cut, sides)
    starts = grid_starts(asked, 4, 0.8)
    assert (starts[:, 0] - truth).abs().amax(1).min() > 0.05
    found = grid_search(asked, n_scales=4, stride=0.8, steps=40)
    assert found.shape == (1, sides, 4)
    assert float(asked.energy(found)) < 0.02
    assert ((found - truth)[..., :3].abs() * 25).max() < 0.7  # pixels


def test_grid_search_returns_the_lowest_of_all_descents(clouds: Callable, cut: Callable) -> None:
    asked, _ = small(clouds(), cut, 2)
    starts = grid_starts(asked, 3, 0.9)
    copies = paper_problem(asked.images.repeat(len(starts), 1, 1, 1), asked.template)
    each = sharpen(copies, starts, steps=3)
    found = grid_search(asked, n_scales=3, stride=0.9, steps=3)
    assert float(asked.energy(found)) == pytest.approx(float(each.energy.min()), abs=1e-6)
