"""Tests of checkpoints: a training interrupted anywhere ends with the same weights."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.paper.sharpening import adam
from kneematch.training import phase as phase_module
from kneematch.training.checkpoint import load_checkpoint, save_checkpoint
from kneematch.training.config import DEFAULT, PAPER, Recipe
from kneematch.training.dataset import FilmsInMemory
from kneematch.training.distributed import Group
from kneematch.training.phase import PhaseState
from kneematch.training.two_phases import Task, train_two_phases

FAST = {"epochs": 2, "batch_size": 2, "backbone_rate": 0.01, "head_rate": 0.01}
RECIPES = {
    "paper": replace(PAPER, rounds=2, **FAST),
    "default": replace(DEFAULT, rounds=1, **FAST),
}
EPOCHS = {"paper": 8, "default": 4}
FILMS = 3
SETTINGS = {
    "recipe": asdict(RECIPES["default"]),
    "start": "none",
    "seed": 0,
    "films": "hash of films",
    "template": "hash of template",
}


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
        """Train; return the weights of both networks and the losses of the epochs.

        Args:
            recipe: hyperparameters.
            resume: whether to start from the checkpoint.
            last: batches after which reading films is interrupted.
            stop: epochs after which the training stops.
        """
        films = Interrupted(
            FilmsInMemory(self.phantoms.films.pixels[:FILMS]), iter(range(10_000)), last
        )
        labels = None if recipe.minimise_energy else self.phantoms.truth[:FILMS]
        task = Task(films, self.phantoms.templates, recipe, labels)
        networks = self.small_network(0), self.small_network(1)
        checkpoint = load_checkpoint(self.path, {}, "cpu") if resume else None
        losses = []
        for phase, state in train_two_phases(task, networks, Group(), checkpoint):
            settings = {**SETTINGS, "recipe": asdict(recipe)}
            save_checkpoint(self.path, phase, state, networks, {}, settings)
            if state.epoch:
                losses.append(state.loss)
            if len(losses) >= stop:
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
    monkeypatch.setattr(phase_module, "adam", partial(adam, steps=4))
    return Training(phantoms, small_network, tmp_path / "checkpoint")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", ["paper", "default"])
def test_checkpoint_of_any_epoch_leads_to_the_same_weights(training: Training, name: str) -> None:
    recipe = RECIPES[name]
    wanted, losses = training.run(recipe)
    assert len(losses) == EPOCHS[name]
    for stop in range(1, EPOCHS[name] + 1):
        _, before = training.run(recipe, stop=stop)
        finished = load_checkpoint(training.path, {}, "cpu").finished_epochs(recipe)
        weights, after = training.run(recipe, resume=True)
        assert same(weights, wanted), f"stopped after {stop} epochs"
        assert finished == stop
        assert before + after == losses


@pytest.mark.parametrize("name", ["paper", "default"])
def test_checkpoint_survives_repeated_interruptions_within_epochs(
    training: Training, tmp_path: Path, name: str
) -> None:
    recipe = RECIPES[name]
    wanted, _ = training.run(recipe)
    training.path.unlink()
    stops = 0
    for last in range(3, 40, 2):
        try:
            weights, _ = training.run(recipe, resume=training.path.exists(), last=last)
            break
        except KeyboardInterrupt:
            stops += 1
            load_checkpoint(training.path, {}, "cpu")  # is complete
    assert stops > 1
    assert same(weights, wanted)
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]


@pytest.fixture
def stopped(training: Training) -> Path:
    """The checkpoint of a training that was stopped after its first epoch."""
    training.run(RECIPES["default"], stop=1)
    return training.path


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("seed", 7),
        ("start", "imagenet"),
        ("films", "hash of other films"),
        ("template", "hash of another template"),
        ("recipe", {**asdict(RECIPES["default"]), "batch_size": 3}),
    ],
)
def test_load_checkpoint_refuses_another_training(stopped: Path, name: str, other: object) -> None:
    load_checkpoint(stopped, SETTINGS, "cpu")
    what = name if name != "recipe" else r"batch_size \d+ \(now 3\); "  # and nothing else of it
    with pytest.raises(SettingsError, match=rf"checkpoint: was trained with {what}.*expected"):
        load_checkpoint(stopped, {**SETTINGS, name: other}, "cpu")


def rewrite(path: Path, about: Any = None, tensors: dict[str, Tensor | None] | None = None) -> None:
    """Replace metadata (text as it is, a mapping by key) and tensors (None removes one)."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    if isinstance(about, str):
        metadata["about"] = about
    elif about is not None:
        metadata["about"] = json.dumps({**json.loads(metadata["about"]), **about})
    kept = {**load_file(path), **(tensors or {})}
    save_file({name: value for name, value in kept.items() if value is not None}, path, metadata)


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.5, 0.999])
def test_load_checkpoint_refuses_a_truncated_file(stopped: Path, fraction: float) -> None:
    content = stopped.read_bytes()
    stopped.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(SettingsError, match=r"checkpoint: cannot be read .*delete it and start"):
        load_checkpoint(stopped, SETTINGS, "cpu")


def test_load_checkpoint_refuses_other_files(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no such file.*leave --resume out"):
        load_checkpoint(tmp_path / "none", SETTINGS, "cpu")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_checkpoint(tmp_path, SETTINGS, "cpu")
    other = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(1)}, other, {"format": "kneematch-model/1", "about": "{}"})
    with pytest.raises(
        SettingsError, match=r"format 'kneematch-model/1'; expected .*; finish .* or start over"
    ):
        load_checkpoint(other, SETTINGS, "cpu")


@pytest.mark.parametrize(
    "about",
    [
        "",
        "[]",
        "{}",
        {"phase": "third"},
        {"position": {"round": "first", "epoch": 1}},
        {"position": {"round": 1, "epoch": math.inf}},
        {"position": None},
        {"settings": 3},
    ],
)
def test_load_checkpoint_refuses_malformed_metadata_in_one_line(stopped: Path, about: Any) -> None:
    rewrite(stopped, about)
    with pytest.raises(SettingsError, match=r"^[^\n]*checkpoint: malformed \(.*start over$"):
        load_checkpoint(stopped, {}, "cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("c_u", None),
        ("c_u", torch.ones(2)),
        ("c_u", torch.ones(1)),
        ("generator", torch.zeros(3)),
        ("coarse.regress.weight", None),
        ("coarse.regress.weight", torch.zeros(2)),
        ("coarse.unknown", torch.zeros(2)),
        ("optimiser.0.exp_avg", torch.zeros(2)),
        ("optimiser.0.exp_avg", None),
    ],
)
def test_restore_refuses_tensors_that_do_not_fit_in_one_line(
    stopped: Path, training: Training, name: str, value: Tensor | None
) -> None:
    rewrite(stopped, tensors={name: value})
    with pytest.raises(SettingsError, match=r"^[^\n]*checkpoint: malformed \(.*start over$"):
        training.run(RECIPES["default"], resume=True)


@pytest.mark.parametrize("position", [{"round": 9, "epoch": 0}, {"round": -1, "epoch": 0}])
def test_restore_refuses_an_impossible_position(
    stopped: Path, training: Training, position: dict[str, int]
) -> None:
    rewrite(stopped, {"position": position})
    with pytest.raises(SettingsError, match=r"malformed \(round"):
        training.run(RECIPES["default"], resume=True)


def test_restore_leaves_a_phase_that_was_not_reached_alone(
    stopped: Path, small_network: Callable
) -> None:
    state = PhaseState(small_network(1), FILMS, 0)
    checkpoint = load_checkpoint(stopped, {}, "cpu")
    assert not checkpoint.restore("fine", state, 1)
    assert torch.equal(state.network.regress.weight, small_network(1).regress.weight)


def test_tensor_refuses_a_missing_name_and_another_shape(stopped: Path) -> None:
    checkpoint = load_checkpoint(stopped, {}, "cpu")
    assert checkpoint.tensor("c_u", (FILMS,)).shape == (FILMS,)
    with pytest.raises(SettingsError, match=r"malformed \(targets of shape None, not \(3, 2, 4\)"):
        checkpoint.tensor("targets", (FILMS, 2, 4))
    with pytest.raises(SettingsError, match=r"malformed \(c_u of shape \(3,\), not \(4,\)"):
        checkpoint.tensor("c_u", (4,))
