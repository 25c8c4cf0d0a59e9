"""Algorithm 2 beside the paper: T in the halves, then T~ in the enlarged patches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.geometry.frames import within
from kneematch.geometry.pose import pose_from_vector
from kneematch.networks.pose_network import look, whole
from kneematch.training import two_phases
from kneematch.training.config import DEFAULT, PAPER
from kneematch.training.distributed import Group
from kneematch.training.phase import Learner
from kneematch.training.phase_data import Lesson
from kneematch.training.two_phases import Task, around, found, second_phase, train

FAST = {"rounds": 1, "epochs": 1, "backbone_rate": 0.05, "head_rate": 0.05}


def papers(cohort: Any) -> Task:
    return Task(cohort.films, cohort.drawn, replace(PAPER, **FAST), None, seed=0)


def coarse_patches(network: Any, cohort: Any) -> Tensor:
    """D(G(u; phi_coarse)), without the code under test."""
    halves, ratio = cohort.films.pixels, cohort.drawn.coarse.aspect / 1.6
    with torch.no_grad():
        return pose_from_vector(network(look(halves, whole(halves), 1.6)), ratio)


@pytest.fixture
def lessons(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Learner, Lesson]]:
    """What train_phase is asked to teach, which it still does."""
    asked: list[tuple[Learner, Lesson]] = []
    teach = two_phases.train_phase

    def note(learner: Learner, lesson: Lesson, *more: Any) -> None:
        asked.append((learner, lesson))
        teach(learner, lesson, *more)

    monkeypatch.setattr(two_phases, "train_phase", note)
    return asked


def test_the_second_phase_looks_at_the_trained_coarse_patches_enlarged(
    cohort: Any, small: Callable, lessons: list[tuple[Learner, Lesson]]
) -> None:
    networks, told = (small(0), small(1)), []
    train(papers(cohort), networks, Group(), lambda phase, learner: told.append(phase))
    (coarse, first), (fine, second) = lessons
    assert told == ["coarse", "fine"]
    assert (coarse.network, fine.network) == networks
    assert first.template is cohort.drawn.coarse
    assert torch.equal(first.frames, torch.tensor([1.0, 0, 0, 0]).expand(5, 2, 4))
    assert second.template is cohort.drawn.fine
    assert second.aspect == cohort.drawn.coarse.aspect
    trained, untrained = (coarse_patches(net, cohort) for net in (networks[0], small(0)))
    enlarged = trained * torch.tensor([1.2, 1, 1, 1])
    assert torch.allclose(second.frames, enlarged, atol=1e-6)
    assert not torch.allclose(trained, untrained, atol=1e-3)


def test_both_phases_start_from_their_own_network_and_leave_the_other(
    cohort: Any, small: Callable
) -> None:
    networks, halfway = (small(0), small(1)), []

    def report(phase: str, learner: Learner) -> None:
        halfway.append([net.regress.weight.detach().clone() for net in networks])

    train(papers(cohort), networks, Group(), report)
    after_coarse, after_fine = halfway
    assert torch.equal(after_coarse[1], small(1).regress.weight)
    assert not torch.equal(after_coarse[0], small(0).regress.weight)
    assert torch.equal(after_fine[0], after_coarse[0])
    assert not torch.equal(after_fine[1], after_coarse[1])


def test_around_the_fine_box_as_drawn_lies_the_coarse_box_as_drawn(cohort: Any) -> None:
    drawn = cohort.drawn
    moved = torch.tensor([0.3, 0.1, -0.2, 0.05])
    both = torch.stack([drawn.fine_pose, moved])[None]
    found = around(both, drawn)[0]
    assert torch.allclose(found[0], drawn.coarse_pose, atol=1e-6)
    grown = drawn.coarse_pose[0] / drawn.fine_pose[0]
    assert float(found[1, 0]) == pytest.approx(0.3 * float(grown), rel=1e-5)
    assert float(found[1, 3]) == pytest.approx(0.05, rel=1e-5)


def test_learning_from_targets_the_second_phase_looks_around_them(
    cohort: Any, small: Callable
) -> None:
    task = Task(cohort.films, cohort.drawn, DEFAULT, cohort.truth)
    lesson, _ = second_phase(task, small(0), Group())
    assert torch.allclose(lesson.frames[0, 1, 0], 1.2 * cohort.drawn.coarse_pose[0], atol=1e-6)
    assert torch.allclose(lesson.frames[0, 1, 1:], cohort.drawn.coarse_pose[1:], atol=1e-6)
    assert not lesson.printed


def test_what_a_network_sees_in_a_frame_is_told_in_the_half(cohort: Any, small: Callable) -> None:
    frames = torch.tensor([0.8, 0.1, -0.1, 0.05]).expand(5, 2, 4)
    drawn = cohort.drawn
    lesson = Lesson(cohort.films, drawn.fine, drawn.coarse.aspect, frames, printed=True)
    network = small(1)
    with torch.no_grad():
        v = network(look(cohort.films.pixels, frames, drawn.coarse.aspect))
    seen = pose_from_vector(v, drawn.fine.aspect / drawn.coarse.aspect)
    wanted = within(frames, seen, drawn.coarse.aspect, 1.6)
    assert torch.allclose(found(network, lesson, Group()), wanted, atol=1e-6)


def test_learning_from_targets_brings_both_networks_nearer_to_them(
    cohort: Any, small: Callable
) -> None:
    recipe = replace(DEFAULT, epochs=24, backbone_rate=0.003, head_rate=0.01)
    losses: dict[str, list[float]] = {"coarse": [], "fine": []}
    task = Task(cohort.films, cohort.drawn, recipe, cohort.truth)
    networks = small(0), small(1)
    train(task, networks, Group(), lambda phase, learner: losses[phase].append(learner.loss))
    for phase, values in losses.items():
        assert len(values) == 24
        assert sum(values[-6:]) < 0.9 * sum(values[:6]), phase
