"""The sliding baseline: what is planted is found, at the scale of the lowest loss."""

from collections.abc import Callable

import pytest
import torch

from kneematch.paper.energy import paper_problem
from kneematch.paper.sliding_window import SCALES, sliding_window

OWN = 50 / 120  # the scale of the template in the clouds that it was cut from


@pytest.mark.parametrize(("sides", "negative"), [(1, True), (2, False), (2, True)])
def test_sliding_window_finds_a_planted_template_exactly(
    clouds: Callable, cut: Callable, sides: int, negative: bool
) -> None:
    template, truth = cut(clouds())
    halves = clouds(2, sides, seed=1)
    halves[..., 70:120, 40:90] = template.image
    question = paper_problem(1 - halves if negative else halves, template)
    found = sliding_window(question, scales=(0.3, OWN, 0.6))
    assert torch.allclose(found.double(), truth.expand(2, sides, 4), atol=1e-5)
    assert question.energy(found).max() < 1e-4


def test_sliding_window_takes_the_scale_of_the_lowest_sum_over_both_sides(
    clouds: Callable, cut: Callable
) -> None:
    template, _ = cut(clouds())
    halves = clouds(4, 2, seed=1)
    question = paper_problem(halves, template)
    each = [sliding_window(question, scales=(scale,)) for scale in SCALES]
    sums = torch.stack([question.losses(one) for one in each])
    best = sums.sum(-1).argmin(0)
    together = sliding_window(question)
    for n, k in enumerate(best):
        assert torch.equal(together[n], each[k][n])
    assert len(set(best.tolist())) > 1


def test_sliding_window_is_finite_on_a_single_grey(clouds: Callable, cut: Callable) -> None:
    template, _ = cut(clouds())
    question = paper_problem(torch.full((1, 2, 192, 120), 0.7), template)
    found = sliding_window(question)
    assert bool(found.isfinite().all())
    assert float(question.energy(found)) == pytest.approx(2, abs=0.1)
