"""Tests of checkpoints: a training interrupted anywhere ends with the same weights."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.paper.algorithm1 import Hyperparameters, PhaseState
from kneematch.training.recipes import Task, train_task
from kneematch.training.trainer import load_checkpoint, save_checkpoint

FAST = {"epochs": 2, "batch_size": 2, "backbone_rate": 0.01, "head_rate": 0.01}
ROUNDS = 2
FILMS = 3
SETTINGS = {"batch_size": 2, "seed": 0, "films": "hash"}


@dataclass(frozen=True)
class Training:
    """A training of small networks on three phantoms that writes checkpoints."""

    phantoms: Any
    small_network: Callable
    path: Path

    def run(
        self, *, resume: bool = False, stop: int = 10_000
    ) -> tuple[dict[str, Tensor], list[float]]:
        """Train, until epoch `stop`; return all weights and the epochs' losses."""
        few = replace(self.phantoms.films, rows=torch.arange(FILMS))
        numbers = Hyperparameters(rounds=ROUNDS, **FAST)
        task = Task(few, self.phantoms.templates, numbers, self.phantoms.truth[:FILMS])
        networks = self.small_network(0), self.small_network(1)
        saved = load_checkpoint(self.path, {})["states"] if resume else {}
        states: dict[str, PhaseState] = {}

        def continued(phase: str, state: PhaseState) -> bool:
            states[phase] = state
            if phase in saved:
                state.load_state_dict(saved[phase])
            return phase in saved

        losses = []
        for _, state in train_task(task, networks, continued):
            content = {name: each.state_dict() for name, each in states.items()}
            save_checkpoint(self.path, SETTINGS, {"states": content})
            if state.epoch:
                losses.append(state.loss)
            if len(losses) == stop:
                break
        weights = {
            f"{number}.{name}": value.clone()
            for number, network in enumerate(networks)
            for name, value in network.state_dict().items()
        }
        return weights, losses


@pytest.fixture
def training(phantoms: Any, small_network: Callable, tmp_path: Path) -> Training:
    return Training(phantoms, small_network, tmp_path / "checkpoint")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_checkpoint_of_any_epoch_leads_to_the_same_weights(training: Training) -> None:
    wanted, losses = training.run()
    assert len(losses) == 2 * 2 * ROUNDS
    for stop in range(1, len(losses) + 1):
        _, before = training.run(stop=stop)
        weights, after = training.run(resume=True)
        assert same(weights, wanted), f"stopped after {stop} epochs"
        assert before + after == losses


def test_load_checkpoint_refuses_another_training_and_other_files(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    save_checkpoint(path, SETTINGS, {"states": {"coarse": torch.ones(9)}})
    assert load_checkpoint(path, SETTINGS)["states"]["coarse"].sum() == 9
    for name, other in (("films", "another hash"), ("batch_size", 3)):
        with pytest.raises(SettingsError, match=rf"was made with another {name}\. Repeat"):
            load_checkpoint(path, {**SETTINGS, name: other})
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(SettingsError, match=r"^[^\n]*checkpoint is damaged[^\n]*$"):
        load_checkpoint(path, SETTINGS)
    torch.save({"format": "kneematch-checkpoint/2", "settings": {}}, path)
    with pytest.raises(SettingsError, match="not a checkpoint of this version"):
        load_checkpoint(path, SETTINGS)
