"""Adam: the best of all values met, and a descent that arrives."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from kneematch.paper.pose import vector_from_pose
from kneematch.paper.problem import make_problem
from kneematch.paper.sharpening import adam


@dataclass
class Wavy:
    """A stand-in for a problem that remembers what it was asked."""

    asked: list[Tensor] = field(default_factory=list)
    told: list[Tensor] = field(default_factory=list)

    def energy(self, v: Tensor) -> Tensor:
        value = (v.square().mean((1, 2)) + (300 * v).sin().mean((1, 2))).clone()
        self.asked.append(v.detach().clone())
        self.told.append(value.detach().clone())
        return value


def test_adam_returns_the_best_of_301_values() -> None:
    wavy = Wavy()
    start = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
    found = adam(wavy, start)  # type: ignore[arg-type]
    told, asked = torch.stack(wavy.told), torch.stack(wavy.asked)
    assert len(told) == 301
    assert torch.equal(asked[0], start)
    best = told.argmin(0)
    assert torch.equal(found.energy, told.min(0).values)
    assert torch.equal(found.v, asked[best, torch.arange(5)])
    assert len(set(best.tolist())) > 1  # else the last would have done


def test_adam_counts_the_last_value() -> None:
    wavy = Wavy()
    found = adam(wavy, torch.full((1, 1, 4), 1e-3), steps=1, rate=1e-4)  # type: ignore[arg-type]
    assert len(wavy.told) == 2
    assert torch.equal(found.energy, wavy.told[1])


def test_adam_without_steps_returns_the_start() -> None:
    start = torch.full((2, 1, 4), 0.3)
    found = adam(Wavy(), start, steps=0)  # type: ignore[arg-type]
    assert torch.equal(found.v, start)


def test_adam_keeps_a_start_at_the_minimum(clouds: Callable, cut: Callable) -> None:
    half = clouds()
    template, theta = cut(half)
    start = vector_from_pose(theta, 1 / 1.6).float().expand(1, 2, 4)
    found = adam(make_problem(half.expand(1, 2, 192, 120), template, paper=True), start, steps=5)
    assert torch.equal(found.v, start)
    assert float(found.energy) < 1e-5
    assert not found.v.requires_grad


@pytest.mark.parametrize("sides", [1, 2])
def test_adam_descends_to_a_template_nearby(clouds: Callable, cut: Callable, sides: int) -> None:
    half = clouds()
    template, theta = cut(half)
    question = make_problem(half.expand(1, sides, 192, 120), template, paper=True)
    truth = vector_from_pose(theta, 1 / 1.6).float().expand(1, sides, 4)
    start = truth + torch.tensor([0.03, -0.04, 0.03, 0.2])
    found = adam(question, start, steps=100)
    assert question.energy(start) > 0.02
    assert float(found.energy) < 2e-3
    assert torch.allclose(found.energy, question.energy(found.v))


@pytest.mark.parametrize("paper", [True, False])
def test_adam_is_finite_on_black_halves(clouds: Callable, cut: Callable, paper: bool) -> None:
    template, _ = cut(clouds())
    question = make_problem(torch.zeros(2, 2, 192, 120), template, paper=paper)
    found = adam(question, torch.full((2, 2, 4), 0.1), steps=3)
    assert bool(found.energy.isfinite().all())
    assert bool(found.v.isfinite().all())
