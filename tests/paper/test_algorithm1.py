"""Algorithm 1 against the paper: epochs, rounds, c_u, learning rates, translations."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.paper.algorithm1 import (
    Hyperparameters,
    PhaseData,
    PhaseState,
    energy_loss,
    random_translation,
    sharpened_energies,
    train_phase,
)
from kneematch.paper.energy import Problem, Solution, paper_problem
from kneematch.paper.network import network_input
from kneematch.paper.pose import pose_from_vector
from kneematch.paper.sharpening import sharpen

SHORT = Hyperparameters(rounds=1, epochs=1)
STILL = replace(SHORT, backbone_rate=0.0, head_rate=0.0)  # so that losses can be computed here


@pytest.fixture
def data(films: Any) -> PhaseData:
    return PhaseData(films.images.__getitem__, 5, films.template)


def halved(problem: Problem, theta: Tensor) -> Solution:
    """A quick refinement that meets half of the energy."""
    return Solution(theta, problem.energy(theta) / 2)


def learn(network: Any, data: PhaseData, numbers: Hyperparameters, shift: float = 0.0) -> list[Any]:
    """Train in evaluation mode; return round, epoch, loss and c_u after every epoch."""
    state = PhaseState(network, 5, seed=0)
    steps = train_phase(state, data, energy_loss(shift), numbers, lambda network: network.eval())
    return [(state.round, state.epoch, state.loss, state.c_u.clone()) for _ in steps]


def poses(network: Any, data: PhaseData) -> Tensor:
    """Return D(G(u)) of all films, without the code under test."""
    images = data.images(torch.arange(5))
    return pose_from_vector(network(network_input(images)), data.template.aspect / 1.6)


def energies(network: Any, data: PhaseData) -> Tensor:
    return paper_problem(data.images(torch.arange(5)), data.template).energy(poses(network, data))


def test_train_phase_runs_the_rounds_epochs_and_batches(
    small_network: Callable, data: PhaseData
) -> None:
    batches: list[Tensor] = []

    def loss(network: Any, data: PhaseData, rows: Tensor, state: PhaseState) -> Tensor:
        batches.append(rows)
        return energy_loss(0.0)(network, data, rows, state)

    state = PhaseState(small_network(0), 5, seed=0)
    numbers = Hyperparameters(rounds=3, epochs=2, batch_size=2)
    steps = train_phase(state, replace(data, refine=halved), loss, numbers)
    assert [(state.round, state.epoch) for _ in steps] == [(t, m) for t in range(3) for m in (1, 2)]
    assert [len(rows) for rows in batches] == 6 * [2, 2, 1]
    orders = [torch.cat(batches[k : k + 3]).tolist() for k in range(0, 18, 3)]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert not state.network.training
    normed, before = (net.backbone[1].running_mean for net in (state.network, small_network(0)))
    assert not torch.equal(normed, before)  # BatchNorm was in training mode


def test_train_phase_weighs_films_by_the_inverse_of_their_lowest_energy(
    small_network: Callable, data: PhaseData
) -> None:
    network = small_network(0)
    numbers = replace(STILL, rounds=2, batch_size=2)
    first, second = learn(network, replace(data, refine=halved), numbers)
    with torch.no_grad():
        values = energies(network, data)
    assert torch.equal(first[3], torch.ones(5))
    assert torch.allclose(second[3], 2 / values, rtol=1e-5)
    assert first[2] == pytest.approx(float(values.mean()), rel=1e-5)
    assert second[2] == pytest.approx(2, rel=1e-5)


def test_sharpened_energies_are_the_lowest_of_300_steps(
    small_network: Callable, data: PhaseData
) -> None:
    network, few = small_network(0), replace(data, count=2)
    found = sharpened_energies(network, few)
    with torch.no_grad():
        start = poses(network, data)[:2]
    problem = paper_problem(data.images(torch.arange(2)), data.template)
    assert torch.allclose(found, sharpen(problem, start, steps=300).energy, rtol=1e-3)
    assert bool((found < 0.8 * problem.energy(start)).all())  # else the start would have done


def test_train_phase_takes_steps_of_adam_with_the_papers_rates(
    small_network: Callable, data: PhaseData
) -> None:
    before, network = small_network(0), small_network(0)
    learn(network, data, SHORT)
    parameters = dict(before.named_parameters())
    slopes = torch.autograd.grad(energies(before, data).mean(), list(parameters.values()))
    after = dict(network.named_parameters())
    for (name, parameter), slope in zip(parameters.items(), slopes, strict=True):
        rate = 1e-5 if name.startswith("backbone.") else 1e-4
        # The first step: both means, freed of their bias, are those of the gradient itself.
        wanted = -rate * slope / (slope.abs() + 1e-8)
        assert torch.allclose(after[name] - parameter, wanted, rtol=0.05, atol=2e-6), name


def test_train_phase_lowers_the_energy_by_rates_that_decay(
    small_network: Callable, data: PhaseData
) -> None:
    seen: list[float] = []
    numbers = Hyperparameters(
        1, 30, 8, 1e-2, 1e-2, decay=lambda done: seen.append(done) or 1 - done
    )
    epochs = learn(small_network(0), data, numbers)
    assert epochs[-1][2] < 0.97 * epochs[0][2]
    assert seen == pytest.approx([k / 30 for k in range(30)])


def test_random_translation_moves_images_by_whole_pixels(films: Any) -> None:
    seen = set()
    for seed in range(20):
        moved = random_translation(films.images, 0.05, torch.Generator().manual_seed(seed))
        seen.add(offset(films.images[0, 0], moved[0, 0]))  # at most 5 %
    assert len(seen) > 15
    same = random_translation(films.images, 0.0, torch.Generator())
    assert torch.allclose(same, films.images, atol=1e-5)


def offset(image: Tensor, moved: Tensor) -> tuple[int, int]:
    """Return the (x, y) that was added to the pixels' places; fail if they are not the same."""
    inner = moved[20:-20, 20:-20]
    for y in range(-10, 11):
        for x in range(-6, 7):
            part = image[20 + y : 172 + y, 20 + x : 100 + x]
            if torch.allclose(part, inner, atol=1e-4):
                return x, y
    raise AssertionError("not a translation by whole pixels")


def test_energy_loss_translates_image_and_template_search_alike(
    small_network: Callable, data: PhaseData
) -> None:
    network, rows = small_network(0), torch.tensor([3, 0])
    state = PhaseState(small_network(1), 5, seed=7)
    with torch.no_grad():
        found = energy_loss(0.1)(network, data, rows, state)
        moved = random_translation(data.images(rows), 0.1, torch.Generator().manual_seed(7))
        theta = pose_from_vector(network(network_input(moved)), data.template.aspect / 1.6)
        wanted = paper_problem(moved, data.template).energy(theta)
    assert torch.allclose(found, wanted, rtol=1e-5)
