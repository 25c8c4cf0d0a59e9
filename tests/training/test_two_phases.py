"""Our recipe and the paper's around Algorithm 2: precision, BatchNorm, labels, ranges."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kneematch.paper.network import PoseNetwork
from kneematch.training.config import DEFAULT, PAPER, Recipe
from kneematch.training.two_phases import Task, activation_ranges, train_task

FAST = {"rounds": 1, "epochs": 1, "backbone_rate": 0.05, "head_rate": 0.05}


def train(task: Task, networks: Any) -> dict[str, list[float]]:
    """Train and return the losses of each phase."""
    losses: dict[str, list[float]] = {"coarse": [], "fine": []}
    for phase, state in train_task(task, networks):
        if state.epoch:
            losses[phase].append(state.loss)
    return losses


@pytest.mark.parametrize("recipe", [PAPER, DEFAULT], ids=lambda recipe: recipe.name)
def test_train_task_freezes_batch_norm_only_with_our_recipe(
    phantoms: Any, small_network: Callable, recipe: Recipe
) -> None:
    labels = phantoms.truth if recipe is DEFAULT else None
    task = Task(phantoms.films, phantoms.templates, replace(recipe, **FAST), labels)
    networks, before = (small_network(0), small_network(1)), small_network(0).state_dict()
    losses = train(task, networks)
    assert all(len(values) == 1 and values[0] > 0 for values in losses.values())
    after = networks[0].state_dict()
    kept = torch.equal(after["backbone.1.running_mean"], before["backbone.1.running_mean"])
    assert kept == recipe.frozen_statistics
    assert not torch.equal(after["backbone.1.weight"], before["backbone.1.weight"])


def test_train_task_with_pseudo_labels_brings_both_networks_nearer_to_them(
    phantoms: Any, small_network: Callable
) -> None:
    recipe = replace(DEFAULT, epochs=24, backbone_rate=0.003, head_rate=0.01)
    task = Task(phantoms.films, phantoms.templates, recipe, phantoms.truth)
    for phase, values in train(task, (small_network(0), small_network(1))).items():
        assert len(values) == 24
        assert sum(values[-6:]) < 0.9 * sum(values[:6]), phase


def test_train_task_with_pseudo_labels_may_have_several_rounds(
    phantoms: Any, small_network: Callable
) -> None:
    recipe = replace(DEFAULT, rounds=2, epochs=1)
    task = Task(phantoms.films, phantoms.templates, recipe, phantoms.truth)
    losses = train(task, (small_network(0), small_network(1)))
    assert [len(values) for values in losses.values()] == [2, 2]


def test_activation_ranges_are_those_of_both_networks(phantoms: Any) -> None:
    task = Task(phantoms.films, phantoms.templates, DEFAULT, phantoms.truth)
    ranges = activation_ranges(task, (PoseNetwork(8), PoseNetwork(8)))
    assert set(ranges) == {"coarse", "fine"}
    assert ranges["coarse"].keys() == ranges["fine"].keys()
