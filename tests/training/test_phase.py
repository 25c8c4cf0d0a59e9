"""Tests of Algorithm 1 against the paper: epochs, rounds, c_u, learning rates, steps of Adam."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.paper.network import PoseNetwork, crop_views, full_frames
from kneematch.paper.pose import pose_from_vector, vector_from_pose
from kneematch.paper.problem import make_problem
from kneematch.paper.sharpening import adam
from kneematch.search.anchored_refinement import refine_anchored
from kneematch.training import distributed, phase
from kneematch.training.config import DEFAULT, PAPER, Recipe
from kneematch.training.distributed import Group
from kneematch.training.losses import energy_loss
from kneematch.training.phase import PhaseData, PhaseState, refined_energies, train_phase

SHORT = replace(PAPER, rounds=1, epochs=1)
# Learning rates of 0, so that the loss of an epoch can be computed here.
STILL = replace(SHORT, backbone_rate=0.0, head_rate=0.0, shift=0.0, frozen_statistics=True)


@pytest.fixture
def data(phantoms: Any) -> PhaseData:
    frames = full_frames(phantoms.films.pixels)
    return PhaseData(phantoms.films, phantoms.templates.coarse, 1.6, frames, paper_energy=True)


def learn(network: Any, data: PhaseData, loss: Any, recipe: Recipe) -> list[Any]:
    """Train; return round, epoch, loss and c_u after every epoch."""
    state = PhaseState(network, len(data.films), seed=0)
    return [
        (state.round, state.epoch, state.loss, state.c_u.clone())
        for _ in train_phase(state, data, loss, recipe, Group())
    ]


def vectors(network: Any, data: PhaseData) -> Tensor:
    """Return G(u) of all films, without the code under test."""
    halves = data.films.halves(torch.arange(len(data.films)))
    return network(crop_views(halves, full_frames(halves), 1.6))


def energies(v: Tensor, data: PhaseData) -> Tensor:
    halves = data.films.halves(torch.arange(len(data.films)))
    return make_problem(halves, data.template, paper=True).energy(v)


def test_train_phase_runs_the_rounds_epochs_and_batches_of_the_recipe(
    small_network: Callable, recording: Callable, data: PhaseData, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []

    def energies_of_ones(network: Any, data: PhaseData, group: Group) -> Tensor:
        passes.append(len(loss.rows))
        return torch.ones(len(data.films))

    monkeypatch.setattr(phase, "refined_energies", energies_of_ones)
    loss = recording(energy_loss(0.02))
    recipe = replace(PAPER, rounds=3, epochs=2, batch_size=2)
    epochs = learn(small_network(0), data, loss, recipe)
    assert [(number, epoch) for number, epoch, *_ in epochs] == [
        (t, m) for t in range(3) for m in (1, 2)
    ]
    assert [len(rows) for rows in loss.rows] == 6 * [2, 2, 1]
    assert passes == [6, 12]  # c_u is made before the second and before the third round
    orders = [torch.cat(loss.rows[k : k + 3]).tolist() for k in range(0, 18, 3)]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_train_phase_sets_c_u_to_the_inverse_of_the_lowest_energy_of_300_steps(
    small_network: Callable, data: PhaseData
) -> None:
    network = small_network(0)
    epochs = learn(network, data, energy_loss(0.0), replace(STILL, rounds=2))
    assert torch.equal(epochs[0][3], torch.ones(5))
    with torch.no_grad():
        start = vectors(network, data)
    problem = make_problem(data.films.halves(torch.arange(5)), data.template, paper=True)
    # Through D and back, whose rounding 300 steps would make visible.
    theta = pose_from_vector(start, problem.height_ratio)
    lowest = adam(problem, vector_from_pose(theta, problem.height_ratio), steps=300).energy
    assert torch.allclose(epochs[1][3], 1 / lowest, rtol=1e-4)
    assert bool((lowest < 0.8 * energies(start, data)).all())  # else the start would have done


def test_train_phase_gives_the_mean_of_c_u_times_the_energy(
    small_network: Callable, data: PhaseData, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowest = torch.tensor([0.5, 0.25, 1.0, 0.2, 0.8])
    monkeypatch.setattr(phase, "refined_energies", lambda network, data, group: lowest)
    network = small_network(0)
    epochs = learn(network, data, energy_loss(0.0), replace(STILL, rounds=2, batch_size=2))
    with torch.no_grad():
        values = energies(vectors(network, data), data)
    assert epochs[0][2] == pytest.approx(float(values.mean()), rel=1e-5)
    assert epochs[1][2] == pytest.approx(float((values / lowest).mean()), rel=1e-5)


def test_train_phase_takes_steps_of_adam_with_the_papers_rates(
    small_network: Callable, data: PhaseData
) -> None:
    before, network = small_network(0), small_network(0)
    learn(network, data, energy_loss(0.0), replace(SHORT, shift=0.0))
    before.train()
    loss = energies(vectors(before, data), data).mean()
    gradients = dict(
        zip(
            [name for name, _ in before.named_parameters()],
            torch.autograd.grad(loss, list(before.parameters())),
            strict=True,
        )
    )
    after = dict(network.named_parameters())
    for name, parameter in before.named_parameters():
        rate = 1e-5 if name.startswith("backbone.") else 1e-4
        slope = gradients[name]
        # The first step: both means, freed of their bias, are those of the gradient itself.
        wanted = -rate * slope / (slope.abs() + 1e-8)
        # A weight of 1 is known to 1e-7.
        assert torch.allclose(after[name] - parameter, wanted, rtol=0.02, atol=2e-7), name


@pytest.mark.parametrize("random", [False, True])
def test_phase_state_gives_every_parameter_the_rate_of_its_part(random: bool) -> None:
    network = PoseNetwork()
    state = PhaseState(network, 2, seed=0, random=random)
    for progress in (0.0, 0.5, 0.99):
        state.set_learning_rates(PAPER, progress)
        rates = {
            parameter: float(group["lr"])
            for group in state.optimiser.param_groups
            for parameter in group["params"]
        }
        assert len(rates) == len(list(network.parameters()))
        for name, parameter in network.named_parameters():
            wanted = 1e-5 if name.startswith("backbone.") and not random else 1e-4
            assert rates[parameter] == pytest.approx(wanted), name


def test_phase_state_lets_the_default_rates_decay_to_zero(small_network: Callable) -> None:
    state = PhaseState(small_network(0), 2, seed=0)
    seen = []
    for progress in (0.0, 0.5, 1.0):
        state.set_learning_rates(DEFAULT, progress)
        seen.append([float(group["lr"]) for group in state.optimiser.param_groups])
    full = [DEFAULT.backbone_rate, DEFAULT.head_rate]
    assert seen[0] == pytest.approx(full)
    assert seen[1] == pytest.approx([rate / 2 for rate in full])
    assert seen[2] == pytest.approx([0, 0], abs=1e-12)


def test_train_phase_enlarges_the_images_of_the_energy_from_round_to_round(
    small_network: Callable, recording: Callable, data: PhaseData
) -> None:
    seen = []
    whole = energy_loss(0.0)

    def loss(network: Any, data: PhaseData, *more: Any) -> Tensor:
        seen.append(data.shrink)
        return whole(network, data, *more)

    learn(small_network(0), data, loss, replace(STILL, rounds=4, shrink=16, batch_size=5))
    assert seen == [16, 4, 1, 1]


def test_train_phase_lowers_the_energy(small_network: Callable, data: PhaseData) -> None:
    recipe = replace(SHORT, epochs=30, backbone_rate=1e-2, head_rate=1e-2, shift=0.0)
    epochs = learn(small_network(0), data, energy_loss(0.0), recipe)
    assert epochs[-1][2] < 0.7 * epochs[0][2]


@pytest.mark.parametrize("frozen", [True, False])
def test_train_phase_freezes_batch_norm_only_if_the_recipe_says_so(
    small_network: Callable, data: PhaseData, frozen: bool
) -> None:
    network = small_network(0)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    recipe = replace(SHORT, frozen_statistics=frozen, head_rate=0.1, backbone_rate=0.1)
    learn(network, data, energy_loss(0.0), recipe)
    after = network.state_dict()
    assert (
        torch.equal(after["backbone.1.running_mean"], before["backbone.1.running_mean"]) == frozen
    )
    assert not torch.equal(after["backbone.1.weight"], before["backbone.1.weight"])
    assert not network.training


def test_train_phase_depends_on_the_seed_alone(small_network: Callable, data: PhaseData) -> None:
    recipe, ends = replace(SHORT, batch_size=2, head_rate=0.01), []
    for seed in (0, 0, 1):
        state = PhaseState(small_network(0), 5, seed)
        for _ in train_phase(state, data, energy_loss(0.02), recipe, Group()):
            pass
        ends.append(state.network.regress.weight.detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_refined_energies_of_the_robust_energy_use_the_anchored_refinement(
    small_network: Callable, data: PhaseData
) -> None:
    network, ours = small_network(0), replace(data, paper_energy=False)
    found = refined_energies(network, ours, Group())
    problem = make_problem(data.films.halves(torch.arange(5)), data.template)
    with torch.no_grad():
        wanted = refine_anchored(problem, vectors(network, data)).energy
    assert torch.allclose(found, wanted, rtol=1e-3)


def test_refined_energies_do_not_depend_on_the_number_of_processes(
    small_network: Callable, data: PhaseData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "FILMS_AT_ONCE", 2)
    ours, network = replace(data, paper_energy=False), small_network(0)
    alone = refined_energies(network, ours, Group())
    monkeypatch.setattr(distributed.dist, "all_reduce", lambda values: None)
    shares = [refined_energies(network, ours, Group(rank, 2)) for rank in (0, 1)]
    assert [int((share != 0).sum()) for share in shares] == [3, 2]
    assert torch.equal(shares[0] + shares[1], alone)


def test_predict_in_the_whole_half_is_what_the_network_says(
    small_network: Callable, data: PhaseData
) -> None:
    halves = data.films.halves(torch.arange(5))
    with torch.no_grad():
        found = data.predict(small_network(0), halves, data.frames)
        wanted = pose_from_vector(vectors(small_network(0), data), data.template.aspect / 1.6)
    assert torch.allclose(found, wanted, atol=1e-6)
