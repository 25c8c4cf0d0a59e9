"""Tests of Algorithm 2 against the paper: T in the halves, then T~ in the enlarged patches."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.paper.network import crop_views, full_frames
from kneematch.paper.pose import compose_pose, pose_from_vector
from kneematch.training import two_phases
from kneematch.training.config import DEFAULT, PAPER
from kneematch.training.distributed import Group
from kneematch.training.phase import PhaseData, PhaseState, predict_poses
from kneematch.training.two_phases import Task, coarse_poses, fine_phase, train_two_phases

FAST = {"rounds": 1, "epochs": 1, "backbone_rate": 0.05, "head_rate": 0.05}


def papers(phantoms: Any) -> Task:
    return Task(phantoms.films, phantoms.templates, replace(PAPER, **FAST), None, seed=0)


def coarse_patches(network: Any, phantoms: Any) -> Tensor:
    """Return D(G(u; phi_coarse)), without the code under test."""
    halves, ratio = phantoms.films.pixels, phantoms.templates.coarse.aspect / 1.6
    with torch.no_grad():
        return pose_from_vector(network(crop_views(halves, full_frames(halves), 1.6)), ratio)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[PhaseState, PhaseData]]:
    """Record what train_phase is called with; it still trains."""
    calls: list[tuple[PhaseState, PhaseData]] = []
    train_phase = two_phases.train_phase

    def record(state: PhaseState, data: PhaseData, *more: Any) -> Iterator[None]:
        calls.append((state, data))
        yield from train_phase(state, data, *more)

    monkeypatch.setattr(two_phases, "train_phase", record)
    return calls


def test_train_two_phases_looks_for_the_fine_template_in_the_trained_coarse_patches(
    phantoms: Any, small_network: Callable, trained: list[tuple[PhaseState, PhaseData]]
) -> None:
    networks = small_network(0), small_network(1)
    steps = [
        (phase, state.epoch)
        for phase, state in train_two_phases(papers(phantoms), networks, Group())
    ]
    (coarse, first), (fine, second) = trained
    assert steps == [("coarse", 0), ("coarse", 1), ("fine", 0), ("fine", 1)]
    assert (coarse.network, fine.network) == networks
    assert first.template is phantoms.templates.coarse
    assert torch.equal(first.frames, torch.tensor([1.0, 0, 0, 0]).expand(5, 2, 4))
    assert second.template is phantoms.templates.fine
    assert second.aspect == phantoms.templates.coarse.aspect
    after, before = (coarse_patches(net, phantoms) for net in (networks[0], small_network(0)))
    enlarged = after * torch.tensor([1.2, 1, 1, 1])
    assert torch.allclose(second.frames, enlarged, atol=1e-6)
    assert not torch.allclose(after, before, atol=1e-3)


def test_train_two_phases_trains_one_network_at_a_time(
    phantoms: Any, small_network: Callable
) -> None:
    networks = small_network(0), small_network(1)
    weights = [
        [net.regress.weight.detach().clone() for net in networks]
        for _, state in train_two_phases(papers(phantoms), networks, Group())
        if state.epoch == 1
    ]
    after_coarse, after_fine = weights
    assert torch.equal(after_coarse[1], small_network(1).regress.weight)
    assert not torch.equal(after_coarse[0], small_network(0).regress.weight)
    assert torch.equal(after_fine[0], after_coarse[0])
    assert not torch.equal(after_fine[1], after_coarse[1])


def test_coarse_poses_lie_around_the_fine_ones_as_annotated(phantoms: Any) -> None:
    drawn = phantoms.templates
    moved = torch.tensor([0.3, 0.1, -0.2, 0.05])
    both = torch.stack([drawn.fine_pose, moved])[None]
    found = coarse_poses(both, drawn)[0]
    assert torch.allclose(found[0], drawn.coarse_pose, atol=1e-6)
    grown = drawn.coarse_pose[0] / drawn.fine_pose[0]
    assert float(found[1, 0]) == pytest.approx(0.3 * float(grown), rel=1e-5)
    assert float(found[1, 3]) == pytest.approx(0.05, rel=1e-5)


def test_fine_phase_with_pseudo_labels_looks_around_them(
    phantoms: Any, small_network: Callable
) -> None:
    task = Task(phantoms.films, phantoms.templates, DEFAULT, phantoms.truth)
    data, _ = fine_phase(task, small_network(0), Group())
    assert torch.allclose(data.frames[0, 1, 0], 1.2 * phantoms.templates.coarse_pose[0], atol=1e-6)
    assert torch.allclose(data.frames[0, 1, 1:], phantoms.templates.coarse_pose[1:], atol=1e-6)
    assert not data.paper_energy


def test_predict_poses_of_views_are_poses_in_the_halves(
    phantoms: Any, small_network: Callable
) -> None:
    frames = torch.tensor([0.8, 0.1, -0.1, 0.05]).expand(5, 2, 4)
    drawn = phantoms.templates
    data = PhaseData(phantoms.films, drawn.fine, drawn.coarse.aspect, frames, paper_energy=True)
    network = small_network(1)
    with torch.no_grad():
        v = network(crop_views(phantoms.films.pixels, frames, drawn.coarse.aspect))
    seen = pose_from_vector(v, drawn.fine.aspect / drawn.coarse.aspect)
    wanted = compose_pose(frames, seen, drawn.coarse.aspect, 1.6)
    assert torch.allclose(predict_poses(network, data, Group()), wanted, atol=1e-6)


def test_train_two_phases_with_pseudo_labels_brings_both_networks_nearer_to_them(
    phantoms: Any, small_network: Callable
) -> None:
    recipe = replace(DEFAULT, epochs=24, backbone_rate=0.003, head_rate=0.01)
    losses: dict[str, list[float]] = {"coarse": [], "fine": []}
    task = Task(phantoms.films, phantoms.templates, recipe, phantoms.truth)
    networks = small_network(0), small_network(1)
    for phase, state in train_two_phases(task, networks, Group()):
        if state.epoch:
            losses[phase].append(state.loss)
    for phase, values in losses.items():
        assert len(values) == 24
        assert sum(values[-6:]) < 0.9 * sum(values[:6]), phase
