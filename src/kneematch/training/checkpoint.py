"""Checkpoints: an interrupted training continues from one and ends with the same weights."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.films.files import write_file
from kneematch.models.model_file import PHASES
from kneematch.models.weights import read_safetensors
from kneematch.paper.network import PoseNetwork
from kneematch.training.config import Recipe
from kneematch.training.phase import PhaseState

FORMAT: Final = "kneematch-checkpoint/2"
ADAM_STATE: Final = {"step", "exp_avg", "exp_avg_sq"}
MALFORMED: Final = (KeyError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError)


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The content of a checkpoint file, written when a phase begins and after every epoch."""

    path: Path
    phase: str
    round: int
    epoch: int
    tensors: Mapping[str, Tensor]

    def restore(self, phase: str, state: PhaseState, rounds: int) -> bool:
        """Set a state to what it was, or to the end of a phase that was finished.

        Returns:
            False if the training had not reached this phase; the state is then unchanged.

        Raises:
            SettingsError: the tensors do not fit the network or the films.
        """
        if PHASES.index(phase) > PHASES.index(self.phase):
            return False
        try:
            if not 0 <= self.round <= rounds or self.epoch < 0:
                raise ValueError(f"round {self.round}, epoch {self.epoch}")
            state.network.load_state_dict(self._with_prefix(f"{phase}."))
            if phase == self.phase:
                state.round, state.epoch = self.round, self.epoch
                state.c_u.copy_(self.tensor("c_u", tuple(state.c_u.shape)))
                state.generator.set_state(self.tensors["generator"].cpu())
                self._restore_optimiser(state)
            else:
                state.round = rounds
        except MALFORMED as error:
            raise _malformed(self.path, error) from error
        return True

    def finished_epochs(self, recipe: Recipe) -> int:
        """Return the number of finished epochs of both phases."""
        return (PHASES.index(self.phase) * recipe.rounds + self.round) * recipe.epochs + self.epoch

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor by name, or raise SettingsError if it is missing or has another shape."""
        found = self.tensors.get(name)
        if found is None or found.shape != shape:
            size = None if found is None else tuple(found.shape)
            raise _malformed(self.path, f"{name} of shape {size}, not {shape}")
        return found

    def _restore_optimiser(self, state: PhaseState) -> None:
        """Set Adam's moments; load_state_dict would replace the learning-rate tensors."""
        for number, parameter in enumerate(_parameters(state)):
            kept = self._with_prefix(f"optimiser.{number}.")
            if kept and kept.keys() != ADAM_STATE:
                raise ValueError(f"optimiser state {number} has {', '.join(sorted(kept))}")
            for name, value in kept.items():
                if value.shape != (() if name == "step" else parameter.shape):
                    raise ValueError(f"{name} {number} of shape {tuple(value.shape)}")
            state.optimiser.state[parameter] = {k: value.clone() for k, value in kept.items()}

    def _with_prefix(self, prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): value
            for name, value in self.tensors.items()
            if name.startswith(prefix)
        }


def save_checkpoint(
    path: str | os.PathLike[str],
    phase: str,
    state: PhaseState,
    networks: tuple[PoseNetwork, PoseNetwork],
    fixed: Mapping[str, Tensor],
    settings: Mapping[str, Any],
) -> None:
    """Write a checkpoint atomically: the state of a phase, and tensors that stay as they are.

    `settings` is what the weights depend on; `load_checkpoint` compares it.
    """
    tensors = {**fixed, "c_u": state.c_u, "generator": state.generator.get_state()}
    for name, network in zip(PHASES, networks, strict=True):
        tensors |= {f"{name}.{key}": value for key, value in network.state_dict().items()}
    for number, parameter in enumerate(_parameters(state)):
        for key, value in state.optimiser.state[parameter].items():
            tensors[f"optimiser.{number}.{key}"] = value
    about = {
        "phase": phase,
        "settings": dict(settings),
        "position": {"round": state.round, "epoch": state.epoch},
    }
    stored = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_file(path, save(stored, {"format": FORMAT, "about": json.dumps(about)}))


def load_checkpoint(
    path: str | os.PathLike[str], settings: Mapping[str, Any], device: str
) -> Checkpoint:
    """Read the checkpoint of a training with the same settings.

    Raises:
        SettingsError: the file is missing, malformed, or belongs to another training.
    """
    tensors, metadata = read_safetensors(path, device=device)
    if metadata.get("format") != FORMAT:
        raise SettingsError(
            f"{path}: format {metadata.get('format')!r}; expected {FORMAT!r}; finish the training "
            "with the version of kneematch that began it, or start over with --force"
        )
    try:
        about = json.loads(metadata["about"])
        stored = dict(about["settings"])
        done, phase = about["position"], about["phase"]
        PHASES.index(phase)
        checkpoint = Checkpoint(Path(path), phase, int(done["round"]), int(done["epoch"]), tensors)
    except MALFORMED as error:
        raise _malformed(path, error) from error
    if different := list(_differences(stored, settings)):
        raise SettingsError(
            f"{path}: was trained with {', '.join(different)}; expected the same; repeat the "
            "options of the interrupted command, or start over with --force"
        )
    return checkpoint


def _differences(stored: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that are not as they were, those of the recipe by name."""
    for name, now in settings.items():
        before = stored.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now)
        elif before != now:
            yield f"{name} {before!r} (now {now!r})"


def _malformed(path: str | os.PathLike[str], reason: object) -> SettingsError:
    text = " ".join(str(reason).split())[:200]
    return SettingsError(
        f"{path}: malformed ({text}); expected a checkpoint of this training; delete it and start "
        "over"
    )


def _parameters(state: PhaseState) -> list[Tensor]:
    return [each for group in state.optimiser.param_groups for each in group["params"]]
