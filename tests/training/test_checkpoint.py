"""Tests of checkpoints: a training interrupted anywhere ends with the same weights."""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.paper.algorithm1 import PhaseData, PhaseState
from kneematch.paper.sharpening import sharpen
from kneematch.training import recipes
from kneematch.training.config import DEFAULT, PAPER, Recipe
from kneematch.training.dataset import FilmsInMemory
from kneematch.training.recipes import Task, train_task
from kneematch.training.trainer import load_checkpoint, restore, save_checkpoint

FAST = {"epochs": 2, "batch_size": 2, "backbone_rate": 0.01, "head_rate": 0.01}
RECIPES = {
    "paper": replace(PAPER, rounds=2, **FAST),
    "default": replace(DEFAULT, rounds=1, **FAST),
}
EPOCHS = {"paper": 8, "default": 4}
FILMS = 3
SETTINGS = {"recipe": asdict(RECIPES["default"]), "start": "none", "seed": 0, "films": "hash"}


@dataclass(frozen=True)
class Interrupted:
    """Films whose reading is interrupted, as by Ctrl-C, after a number of batches."""

    films: FilmsInMemory
    reads: Iterator[int]
    last: int

    def __len__(self) -> int:
        return len(self.films)

    def halves(self, rows: Tensor) -> Tensor:
        if next(self.reads) >= self.last:
            raise KeyboardInterrupt
        return self.films.halves(rows)


@dataclass(frozen=True)
class Training:
    """A training of small networks on three phantoms that writes checkpoints."""

    phantoms: Any
    small_network: Callable
    path: Path

    def run(
        self, recipe: Recipe, *, resume: bool = False, last: int = 10_000, stop: int = 10_000
    ) -> tuple[dict[str, Tensor], list[float]]:
        """Train, until batch `last` or epoch `stop`; return all weights and the epochs' losses."""
        films = Interrupted(
            FilmsInMemory(self.phantoms.films.pixels[:FILMS]), iter(range(10_000)), last
        )
        labels = None if recipe.paper_energy else self.phantoms.truth[:FILMS]
        task = Task(films, self.phantoms.templates, recipe, labels)
        networks = self.small_network(0), self.small_network(1)
        saved = load_checkpoint(self.path, {})["states"] if resume else {}
        states: dict[str, PhaseState] = {}

        def continued(phase: str, state: PhaseState) -> bool:
            states[phase] = state
            if phase in saved:
                restore(state, saved[phase], self.path)
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
def training(
    phantoms: Any, small_network: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Training:
    monkeypatch.setattr(recipes, "PhaseData", _with_short_sharpening)
    return Training(phantoms, small_network, tmp_path / "checkpoint")


def _with_short_sharpening(*args: Any) -> PhaseData:
    """Return the data of a phase with 4 steps of the paper's sharpening instead of 300."""
    data = PhaseData(*args)
    return replace(data, refine=partial(sharpen, steps=4)) if data.refine is sharpen else data


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", ["paper", "default"])
def test_checkpoint_of_any_epoch_leads_to_the_same_weights(training: Training, name: str) -> None:
    recipe = RECIPES[name]
    wanted, losses = training.run(recipe)
    assert len(losses) == EPOCHS[name]
    for stop in range(1, EPOCHS[name] + 1):
        _, before = training.run(recipe, stop=stop)
        weights, after = training.run(recipe, resume=True)
        assert same(weights, wanted), f"stopped after {stop} epochs"
        assert before + after == losses


def test_checkpoint_survives_repeated_interruptions_within_epochs(
    training: Training, tmp_path: Path
) -> None:
    recipe = RECIPES["paper"]
    wanted, _ = training.run(recipe)
    training.path.unlink()
    stops = 0
    for last in range(3, 40, 2):
        try:
            weights, _ = training.run(recipe, resume=training.path.exists(), last=last)
            break
        except KeyboardInterrupt:
            stops += 1
            load_checkpoint(training.path, {})  # is complete
    assert stops > 1
    assert same(weights, wanted)
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]


@pytest.fixture
def stopped(training: Training) -> Path:
    """The checkpoint of a training that was stopped after its first epoch."""
    training.run(RECIPES["default"], stop=1)
    return training.path


def test_load_checkpoint_refuses_another_training_and_a_truncated_file(stopped: Path) -> None:
    assert "states" in load_checkpoint(stopped, SETTINGS)
    recipe = {**asdict(RECIPES["default"]), "batch_size": 3}
    for name, other in (("films", {"films": "another hash"}), ("batch_size", {"recipe": recipe})):
        with pytest.raises(SettingsError, match=rf"was made with another {name}\. Repeat"):
            load_checkpoint(stopped, {**SETTINGS, **other})
    os.truncate(stopped, stopped.stat().st_size // 2)
    with pytest.raises(SettingsError, match=r"^[^\n]*checkpoint is damaged[^\n]*$"):
        load_checkpoint(stopped, SETTINGS)


def test_load_checkpoint_refuses_other_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(SettingsError, match="There is no checkpoint"):
            load_checkpoint(path, SETTINGS)
    other = tmp_path / "other"
    for content in ({"format": "kneematch-checkpoint/2"}, {"format": "kneematch-checkpoint/3"}):
        torch.save(content, other)
        with pytest.raises(SettingsError, match="not a checkpoint of this version"):
            load_checkpoint(other, SETTINGS)


def test_restore_refuses_a_state_of_other_films_or_networks(
    stopped: Path, small_network: Callable
) -> None:
    saved = load_checkpoint(stopped, {})["states"]["coarse"]
    network = {**saved["network"], "regress.weight": torch.zeros(2)}
    for wrong in ({}, {**saved, "c_u": torch.ones(2)}, {**saved, "network": network}):
        state = PhaseState(small_network(0), FILMS, 0)
        with pytest.raises(SettingsError, match=r"^[^\n]*does not fit \([^\n]*--force\.$"):
            restore(state, wrong, stopped)
