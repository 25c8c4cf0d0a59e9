"""Sharpening: the best of all values met, and a descent that arrives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.paper.energy import paper_problem
from kneematch.paper.pose import pose_from_vector
from kneematch.paper.sharpening import sharpen


class Wavy:
    """A stand-in for a problem that remembers what it was asked."""

    height_ratio = 0.7

    def __init__(self) -> None:
        self.asked, self.told = [], []

    def energy(self, theta: Tensor) -> Tensor:
        value = theta.square().mean((1, 2)) + (900 * theta).sin().mean((1, 2))
        self.asked.append(theta.detach().clone())
        self.told.append(value.detach().clone())
        return value


def starts(*shape: int) -> Tensor:
    v = torch.randn(*shape, 4, generator=torch.Generator().manual_seed(0))
    return pose_from_vector(v, 0.7)


def test_sharpen_returns_the_best_of_301_values() -> None:
    wavy, start = Wavy(), starts(5, 2)
    found = sharpen(wavy, start)  # type: ignore[arg-type]
    told, asked = torch.stack(wavy.told), torch.stack(wavy.asked)
    assert len(told) == 301
    assert torch.allclose(asked[0], start, atol=1e-5)
    best = told.argmin(0)
    assert torch.equal(found.energy, told.min(0).values)
    assert torch.equal(found.theta, asked[best, torch.arange(5)])
    assert len(set(best.tolist())) > 1  # else the last would have done


@pytest.mark.parametrize("sides", [1, 2])
def test_sharpen_descends_to_a_template_nearby(clouds: Callable, cut: Callable, sides: int) -> None:
    template, theta = cut(clouds())
    question = paper_problem(clouds().expand(1, sides, 192, 120), template)
    truth = theta.float().expand(1, sides, 4)
    start = truth + torch.tensor([0.01, -0.02, 0.02, 0.02])
    found = sharpen(question, start, steps=100)
    assert question.energy(start) > 0.02
    assert float(found.energy) < 2e-3
    assert torch.allclose(found.energy, question.energy(found.theta))
    assert not found.theta.requires_grad
