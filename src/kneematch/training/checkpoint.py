"""A training that was stopped, in one file without pickle: it goes on as if nothing had been."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.io.atomic import write_aside
from kneematch.networks.pose_network import PoseNetwork
from kneematch.training.config import Recipe
from kneematch.training.phase import Learner
from kneematch.training.two_phases import PHASES, Drawn, Task

FORMAT: Final = "kneematch-checkpoint/1"


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What was written after an epoch."""

    phase: str
    settings: Mapping[str, Any]  # those that the weights depend on
    tensors: Mapping[str, Tensor]
    position: Mapping[str, Any]

    def restore(self, phase: str, learner: Learner, rounds: int) -> None:
        """Put a learner back to where it was, or to the end of a phase that was over."""
        if PHASES.index(phase) > PHASES.index(self.phase):
            return
        learner.network.load_state_dict(self.network(phase))
        if phase != self.phase:
            learner.round = rounds
            return
        learner.round, learner.epoch = self.position["round"], self.position["epoch"]
        learner.c_u.copy_(self.tensors["c_u"])
        learner.generator.set_state(self.tensors["generator"])
        # Not by load_state_dict, which would copy the rates that the learner sets.
        for number, parameter in enumerate(_parameters(learner)):
            start = f"optimiser.{number}."
            learner.optimiser.state[parameter] = {
                name.removeprefix(start): tensor.clone()
                for name, tensor in self.tensors.items()
                if name.startswith(start)
            }

    def epochs(self, recipe: Recipe) -> int:
        """How many epochs were done, of both phases."""
        rounds = PHASES.index(self.phase) * recipe.rounds + int(self.position["round"])
        return rounds * recipe.epochs + int(self.position["epoch"])

    def drawn(self, drawn: Drawn) -> Drawn:
        """Templates as they were cut, the fine one as it was refined."""
        image, fine = self.tensors["template.image"], self.tensors["template.detail"]
        return replace(drawn, fine=replace(drawn.fine, image=image, fine_structure=fine))

    def network(self, phase: str) -> dict[str, Tensor]:
        """The weights of a network."""
        start = f"{phase}."
        return {
            name.removeprefix(start): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(start)
        }


def save_checkpoint(
    path: str | os.PathLike[str],
    phase: str,
    learner: Learner,
    networks: tuple[PoseNetwork, PoseNetwork],
    task: Task,
    settings: Mapping[str, Any],
) -> None:
    """Write where a training stands, aside and then in one move."""
    tensors = {
        "c_u": learner.c_u,
        "generator": learner.generator.get_state(),
        "template.image": task.drawn.fine.image,
        "template.detail": task.drawn.fine.fine_structure,
    }
    if task.targets is not None:
        tensors["targets"] = task.targets
    for name, network in zip(PHASES, networks, strict=True):
        tensors |= {f"{name}.{key}": tensor for key, tensor in network.state_dict().items()}
    for number, parameter in enumerate(_parameters(learner)):
        for key, value in learner.optimiser.state[parameter].items():
            tensors[f"optimiser.{number}.{key}"] = value
    about = {
        "phase": phase,
        "settings": dict(settings),
        "position": {"round": learner.round, "epoch": learner.epoch},
    }
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with write_aside(path) as aside:
        aside.write_bytes(save(kept, {"format": FORMAT, "about": json.dumps(about)}))


def load_checkpoint(
    path: str | os.PathLike[str], settings: Mapping[str, Any], device: str
) -> Checkpoint:
    """Read a checkpoint of a training with the same settings.

    Raises:
        SettingsError: it is not there, not a checkpoint, or of another training.
    """
    try:
        with safe_open(path, framework="pt", device=device) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except FileNotFoundError as error:
        raise SettingsError(
            f"{path}: no such file; expected the checkpoint of a training that was stopped; "
            "leave --resume out"
        ) from error
    except (OSError, SafetensorError) as error:
        raise SettingsError(
            f"{path}: cannot be read ({error}); expected a checkpoint; delete it and start over"
        ) from error
    if metadata.get("format") != FORMAT:
        raise SettingsError(f"{path}: not a checkpoint; expected {FORMAT!r}; start over")
    about = json.loads(metadata["about"])
    for name, now in settings.items():
        then = about["settings"].get(name)
        if then != now:
            raise SettingsError(
                f"{path}: was trained with {name} {then!r}, now {now!r}; expected the same; "
                "give what was given then, or leave --resume out"
            )
    tensors["generator"] = tensors["generator"].cpu()
    return Checkpoint(about["phase"], settings, tensors, about["position"])


def _parameters(learner: Learner) -> list[Tensor]:
    return [each for group in learner.optimiser.param_groups for each in group["params"]]
