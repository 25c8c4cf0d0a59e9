"""Our recipe around Algorithm 2: pseudo-labels and their loss, exposures, BatchNorm, ranges."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.two_stage import NARROW_JITTER, PoseJitter, corner_distance
from kneematch.paper.algorithm1 import Hyperparameters, PhaseData
from kneematch.paper.pose import relative_pose, vector_from_pose
from kneematch.training import TrainConfig, recipes
from kneematch.training.recipes import (
    Task,
    coarse_poses,
    hyperparameters,
    make_pseudo_labels,
    pose_loss,
    train_task,
    vary_exposures,
)

ROWS = torch.tensor([3, 0, 4, 2])
SIZE = (48, 64)


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def state() -> Any:
    """What a loss needs of the state of a phase."""
    return SimpleNamespace(generator=generator())


def distance(poses: Tensor, phantoms: Any) -> Tensor:
    """Return the mean distance (N, 2) of the corners from the truth, in template widths."""
    return corner_distance(poses, phantoms.truth, phantoms.templates.fine.aspect, 1.6)


def test_make_pseudo_labels_finds_knees(phantoms: Any) -> None:
    given = phantoms.films, phantoms.templates, phantoms.half
    errors = distance(make_pseudo_labels(*given, load_model(builtin_model())), phantoms)
    assert float(errors.max()) < 0.1
    assert float(errors[0, 1]) < 0.02  # the annotated knee


def test_coarse_poses_lie_around_the_fine_ones_as_annotated(phantoms: Any) -> None:
    drawn = phantoms.templates
    moved = torch.tensor([0.3, 0.1, -0.2, 0.05])
    found = coarse_poses(torch.stack([drawn.fine_pose, moved])[None], drawn)[0]
    assert torch.allclose(found[0], drawn.coarse_pose, atol=1e-6)
    grown = drawn.coarse_pose[0] / drawn.fine_pose[0]
    assert float(found[1, 0]) == pytest.approx(0.3 * float(grown), rel=1e-5)
    assert float(found[1, 3]) == pytest.approx(0.05, rel=1e-5)


def crops(phantoms: Any) -> tuple[Tensor, float]:
    """Crops around the coarse patches, and their aspect."""
    enlarged = coarse_poses(phantoms.truth, phantoms.templates) * torch.tensor([1.2, 1, 1, 1])
    return enlarged, phantoms.templates.coarse.aspect


def test_pose_loss_is_zero_for_the_right_poses(
    phantoms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[Tensor] = []
    jitter, (enlarged, aspect) = recipes.jitter_pose, crops(phantoms)
    monkeypatch.setattr(
        recipes, "jitter_pose", lambda *given: wanted.append(jitter(*given)) or wanted[-1]
    )
    data = PhaseData(phantoms.films.halves, 5, phantoms.templates.fine)
    ratio = data.template.aspect / aspect
    loss = pose_loss(phantoms.films, phantoms.truth, enlarged, aspect, NARROW_JITTER)
    values = loss(
        lambda seen: vector_from_pose(wanted[-1], ratio),
        data,
        ROWS,
        state(),
    )
    assert values.shape == (4,)
    assert float(values.max()) < 1e-4


def test_pose_loss_is_measured_in_template_widths(phantoms: Any) -> None:
    enlarged, aspect = crops(phantoms)
    data = PhaseData(phantoms.films.halves, 5, phantoms.templates.fine)
    nominal = relative_pose(enlarged, phantoms.truth, aspect, 1.6)[ROWS]

    def a_tenth_aside(seen: Tensor) -> Tensor:
        step = torch.zeros_like(nominal)
        step[:, 0, 1] = 0.1 * 2 * nominal[:, 0, 0]  # the left sides alone
        return vector_from_pose(nominal + step, data.template.aspect / aspect)

    still = PoseJitter(0.0, 0.0, 0.0)
    loss = pose_loss(phantoms.films, phantoms.truth, enlarged, aspect, still)
    values = loss(a_tenth_aside, data, ROWS, state())
    assert torch.allclose(values, torch.tensor(0.1), atol=1e-3)


def crop_images(*shape: int) -> Tensor:
    rows = torch.linspace(0, 1, SIZE[0])[:, None]
    grain = torch.rand(*shape, *SIZE, generator=generator(9))
    return (rows + 0.2 * grain) / 1.2


def test_vary_exposures_keeps_the_shape_and_treats_crops_one_by_one() -> None:
    seen = crop_images(3, 2)
    both = vary_exposures(seen, generator(0))
    assert both.shape == seen.shape
    assert torch.equal(both.flatten(0, 1), vary_exposures(seen.flatten(0, 1), generator(0)))
    same = vary_exposures(seen[:1, :1].expand(3, 2, *SIZE), generator(0)).flatten(0, 1)
    assert all(not torch.equal(same[0], other) for other in same[1:])
    assert torch.allclose(vary_exposures(300 * seen - 7, generator(0)), both, atol=1e-4)


FAST = {"rounds": 1, "epochs": 1, "backbone_rate": 0.05, "head_rate": 0.05}


def train(task: Task, networks: Any) -> dict[str, list[float]]:
    """Train and return the losses of each phase."""
    losses: dict[str, list[float]] = {"coarse": [], "fine": []}
    for phase, state in train_task(task, networks):
        if state.epoch:
            losses[phase].append(state.loss)
    return losses


def test_train_task_keeps_the_statistics_of_batch_norm(
    phantoms: Any, small_network: Callable
) -> None:
    task = Task(phantoms.films, phantoms.templates, Hyperparameters(**FAST), phantoms.truth)
    networks, before = (small_network(0), small_network(1)), small_network(0).state_dict()
    losses = train(task, networks)
    assert all(len(values) == 1 and values[0] > 0 for values in losses.values())
    after = networks[0].state_dict()
    assert torch.equal(after["backbone.1.running_mean"], before["backbone.1.running_mean"])
    assert not torch.equal(after["backbone.1.weight"], before["backbone.1.weight"])


def test_train_task_with_pseudo_labels_brings_both_networks_nearer_to_them(
    phantoms: Any, small_network: Callable
) -> None:
    numbers = replace(hyperparameters(TrainConfig(epochs=24)), backbone_rate=0.003, head_rate=0.01)
    task = Task(phantoms.films, phantoms.templates, numbers, phantoms.truth)
    for phase, values in train(task, (small_network(0), small_network(1))).items():
        assert len(values) == 24
        assert sum(values[-6:]) < 0.9 * sum(values[:6]), phase
