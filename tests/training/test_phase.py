"""Algorithm 1 beside the paper: epochs, rounds, c_u, rates and steps of Adam."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.geometry.pose import pose_from_vector, vector_from_pose
from kneematch.networks.pose_network import PoseNetwork, look, whole
from kneematch.solvers.adam import adam
from kneematch.solvers.anchored_refinement import nearby
from kneematch.solvers.problem import problem
from kneematch.training import distributed as processes
from kneematch.training import phase
from kneematch.training.config import DEFAULT, PAPER, Recipe
from kneematch.training.distributed import Group
from kneematch.training.losses import energy_of
from kneematch.training.phase import Learner, sharpened_energies, train_phase
from kneematch.training.phase_data import Lesson

SHORT = replace(PAPER, rounds=1, epochs=1)
# Nothing moves, so that what is told after an epoch can be worked out by hand.
STILL = replace(SHORT, backbone_rate=0.0, head_rate=0.0, shift=0.0, frozen_statistics=True)


@pytest.fixture
def lesson(cohort: Any) -> Lesson:
    frames = whole(cohort.films.pixels)
    return Lesson(cohort.films, cohort.drawn.coarse, 1.6, frames, printed=True)


def learn(network: Any, lesson: Lesson, objective: Any, recipe: Recipe) -> list[Any]:
    """Train: round, epoch, loss and c_u after every epoch."""
    told: list[Any] = []
    learner = Learner(network, len(lesson.films), recipe, seed=0)

    def report(now: Learner) -> None:
        told.append((now.round, now.epoch, now.loss, now.c_u.clone()))

    train_phase(learner, lesson, objective, recipe, Group(), report)
    return told


def vectors(network: Any, lesson: Lesson) -> Tensor:
    """G(u) of all films, without the lesson's own code."""
    halves = lesson.films.halves(torch.arange(len(lesson.films)))
    return network(look(halves, whole(halves), 1.6))


def energies(v: Tensor, lesson: Lesson) -> Tensor:
    halves = lesson.films.halves(torch.arange(len(lesson.films)))
    return problem(halves, lesson.template, paper=True).energy(v)


def test_rounds_epochs_and_batches_are_as_many_as_asked_for(
    small: Callable, watched: Callable, lesson: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []

    def energies_of_ones(network: Any, lesson: Lesson, group: Group) -> Tensor:
        passes.append(len(objective.rows))
        return torch.ones(len(lesson.films))

    monkeypatch.setattr(phase, "sharpened_energies", energies_of_ones)
    objective = watched(energy_of(0.02))
    recipe = replace(PAPER, rounds=3, epochs=2, batch_size=2)
    told = learn(small(0), lesson, objective, recipe)
    assert [(number, epoch) for number, epoch, *_ in told] == [
        (t, m) for t in range(3) for m in (1, 2)
    ]
    assert [len(rows) for rows in objective.rows] == 6 * [2, 2, 1]
    assert passes == [6, 12]  # c_u is made before the second and before the third round
    orders = [torch.cat(objective.rows[k : k + 3]).tolist() for k in range(0, 18, 3)]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_c_u_is_one_and_then_the_inverse_of_the_lowest_of_300_steps_of_adam(
    small: Callable, lesson: Lesson
) -> None:
    network = small(0)
    told = learn(network, lesson, energy_of(0.0), replace(STILL, rounds=2))
    assert torch.equal(told[0][3], torch.ones(5))
    with torch.no_grad():
        start = vectors(network, lesson)
    asked = problem(lesson.films.halves(torch.arange(5)), lesson.template, paper=True)
    # Through D and back, whose rounding 300 steps would make visible.
    theta = pose_from_vector(start, asked.height_ratio)
    lowest = adam(asked, vector_from_pose(theta, asked.height_ratio), steps=300).energy
    assert torch.allclose(told[1][3], 1 / lowest, rtol=1e-4)
    assert bool((lowest < 0.8 * energies(start, lesson)).all())  # else the start would have done


def test_the_loss_that_is_told_is_the_mean_of_c_u_times_the_energy(
    small: Callable, lesson: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowest = torch.tensor([0.5, 0.25, 1.0, 0.2, 0.8])
    monkeypatch.setattr(phase, "sharpened_energies", lambda network, lesson, group: lowest)
    network = small(0)
    told = learn(network, lesson, energy_of(0.0), replace(STILL, rounds=2, batch_size=2))
    with torch.no_grad():
        values = energies(vectors(network, lesson), lesson)
    assert told[0][2] == pytest.approx(float(values.mean()), rel=1e-5)
    assert told[1][2] == pytest.approx(float((values / lowest).mean()), rel=1e-5)


def test_a_step_is_adams_with_the_papers_rates(small: Callable, lesson: Lesson) -> None:
    before, network = small(0), small(0)
    learn(network, lesson, energy_of(0.0), replace(SHORT, shift=0.0))
    before.train()
    loss = energies(vectors(before, lesson), lesson).mean()
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


def test_every_parameter_has_the_rate_of_its_part() -> None:
    network = PoseNetwork()
    learner = Learner(network, 2, PAPER, seed=0)
    for progress in (0.0, 0.5, 0.99):
        learner.set_rates(PAPER, progress)
        rates = {
            parameter: float(group["lr"])
            for group in learner.optimiser.param_groups
            for parameter in group["params"]
        }
        assert len(rates) == len(list(network.parameters()))
        for name, parameter in network.named_parameters():
            wanted = 1e-5 if name.startswith("backbone.") else 1e-4
            assert rates[parameter] == pytest.approx(wanted), name


def test_rates_of_the_default_recipe_fall_to_nothing(small: Callable) -> None:
    learner = Learner(small(0), 2, DEFAULT, seed=0)
    seen = []
    for progress in (0.0, 0.5, 1.0):
        learner.set_rates(DEFAULT, progress)
        seen.append([float(group["lr"]) for group in learner.optimiser.param_groups])
    full = [DEFAULT.backbone_rate, DEFAULT.head_rate]
    assert seen[0] == pytest.approx(full)
    assert seen[1] == pytest.approx([rate / 2 for rate in full])
    assert seen[2] == pytest.approx([0, 0], abs=1e-12)


def test_training_lowers_the_energy(small: Callable, lesson: Lesson) -> None:
    recipe = replace(SHORT, epochs=30, backbone_rate=1e-2, head_rate=1e-2, shift=0.0)
    told = learn(small(0), lesson, energy_of(0.0), recipe)
    assert told[-1][2] < 0.7 * told[0][2]


@pytest.mark.parametrize("frozen", [True, False])
def test_statistics_are_kept_only_where_the_recipe_says_so(
    small: Callable, lesson: Lesson, frozen: bool
) -> None:
    network = small(0)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    recipe = replace(SHORT, frozen_statistics=frozen, head_rate=0.1, backbone_rate=0.1)
    learn(network, lesson, energy_of(0.0), recipe)
    after = network.state_dict()
    assert (
        torch.equal(after["backbone.1.running_mean"], before["backbone.1.running_mean"]) == frozen
    )
    assert not torch.equal(after["backbone.1.weight"], before["backbone.1.weight"])
    assert not network.training


def test_the_same_seed_gives_the_same_weights_and_another_others(
    small: Callable, lesson: Lesson
) -> None:
    recipe, ends = replace(SHORT, batch_size=2, head_rate=0.01), []
    for seed in (0, 0, 1):
        learner = Learner(small(0), 5, recipe, seed)
        train_phase(learner, lesson, energy_of(0.02), recipe, Group(), lambda now: None)
        ends.append(learner.network.regress.weight.detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_our_c_u_comes_from_a_sharpening_nearby(small: Callable, lesson: Lesson) -> None:
    network, ours = small(0), replace(lesson, printed=False)
    found = sharpened_energies(network, ours, Group())
    asked = problem(lesson.films.halves(torch.arange(5)), lesson.template)
    with torch.no_grad():
        wanted = nearby(asked, vectors(network, lesson)).energy
    assert torch.allclose(found, wanted, rtol=1e-3)


def test_energies_do_not_depend_on_how_many_processes_share_the_films(
    small: Callable, lesson: Lesson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phase, "SHARPENED_AT_ONCE", 2)
    ours, network = replace(lesson, printed=False), small(0)
    alone = sharpened_energies(network, ours, Group())
    monkeypatch.setattr(processes.dist, "all_reduce", lambda values: None)
    shares = [sharpened_energies(network, ours, Group(rank, 2)) for rank in (0, 1)]
    assert [int((share != 0).sum()) for share in shares] == [3, 2]
    assert torch.equal(shares[0] + shares[1], alone)


def test_a_view_of_the_whole_half_answers_where_the_network_says(
    small: Callable, lesson: Lesson
) -> None:
    halves = lesson.films.halves(torch.arange(5))
    with torch.no_grad():
        found = lesson.answer(small(0), halves, lesson.frames)
        wanted = pose_from_vector(vectors(small(0), lesson), lesson.template.aspect / 1.6)
    assert torch.allclose(found, wanted, atol=1e-6)
