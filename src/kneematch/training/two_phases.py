"""Algorithm 2: train the coarse network on halves, then the fine one on patches (Sect. 5)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kneematch.models.cpu_inference import Ranges, measured_ranges
from kneematch.models.model_file import PHASES
from kneematch.models.two_stage import ENLARGE, TwoStageNetworks
from kneematch.paper.network import PoseNetwork, crop_views, full_frames
from kneematch.paper.pose import (
    NARROW_JITTER,
    WIDE_JITTER,
    compose_pose,
    enlarge_pose,
    relative_pose,
)
from kneematch.paper.split import HALF_ASPECT
from kneematch.paper.template import Template
from kneematch.training.checkpoint import Checkpoint
from kneematch.training.config import Recipe
from kneematch.training.dataset import Films
from kneematch.training.distributed import Group
from kneematch.training.initial_weights import Networks
from kneematch.training.losses import energy_loss, pose_loss
from kneematch.training.phase import Loss, PhaseData, PhaseState, predict_poses, train_phase

RANGED_FILMS: Final = 24  # on which the ranges of activations are measured


@dataclass(frozen=True, slots=True, eq=False)
class TemplatePair:
    """Both templates, and their poses in the half image that they were cut from."""

    coarse: Template  # T
    fine: Template  # T~
    coarse_pose: Tensor  # (4,)
    fine_pose: Tensor  # (4,)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Everything that a training depends on and that does not change during it."""

    films: Films
    templates: TemplatePair
    recipe: Recipe
    pseudo_labels: Tensor | None  # (N, 2, 4), poses of the fine template, if the recipe uses them
    seed: int = 0
    random: bool = False  # the backbones begin at random


def coarse_phase(task: Task) -> tuple[PhaseData, Loss]:
    """Return the data and the loss of the first phase: find T in the halves."""
    halves = task.films.halves(torch.zeros(1, dtype=torch.long))
    frames = full_frames(halves).expand(len(task.films), -1, -1)
    recipe, template = task.recipe, task.templates.coarse
    data = PhaseData(task.films, template, HALF_ASPECT, frames, paper_energy=recipe.paper_energy)
    if task.pseudo_labels is None:
        return data, energy_loss(recipe.shift, recipe.zoom)
    return data, pose_loss(coarse_poses(task.pseudo_labels, task.templates), WIDE_JITTER)


def fine_phase(task: Task, coarse: PoseNetwork, group: Group) -> tuple[PhaseData, Loss]:
    """Return the data and the loss of the second phase: find T~ in the enlarged coarse patches."""
    data, _ = coarse_phase(task)
    if task.pseudo_labels is None:
        patches = predict_poses(coarse, data, group)
        loss = energy_loss(task.recipe.shift, task.recipe.zoom)
    else:
        patches = coarse_poses(task.pseudo_labels, task.templates)
        loss = pose_loss(task.pseudo_labels, NARROW_JITTER)
    fine, aspect = task.templates.fine, task.templates.coarse.aspect
    frames = enlarge_pose(patches, ENLARGE)
    return replace(data, template=fine, aspect=aspect, frames=frames), loss


def coarse_poses(fine_poses: Tensor, templates: TemplatePair) -> Tensor:
    """Return the poses (N, 2, 4) of T around poses of T~, relative to it as annotated."""
    aspect = templates.fine.aspect
    offset = relative_pose(templates.fine_pose, templates.coarse_pose, aspect, HALF_ASPECT)
    return compose_pose(
        fine_poses, offset.to(fine_poses).expand_as(fine_poses), aspect, HALF_ASPECT
    )


def train_two_phases(
    task: Task, networks: Networks, group: Group, checkpoint: Checkpoint | None = None
) -> Iterator[tuple[str, PhaseState]]:
    """Run Algorithm 2 on both networks, in place, from a checkpoint or from the start.

    Yields:
        The name of the phase and its state, when a phase begins (with no finished epoch) and after
        every epoch. What a checkpoint already holds is not yielded again.
    """
    for number, phase in enumerate(PHASES):
        data, loss = coarse_phase(task) if number == 0 else fine_phase(task, networks[0], group)
        state = PhaseState(networks[number], len(task.films), task.seed + number, task.random)
        if checkpoint is None or not checkpoint.restore(phase, state, task.recipe.rounds):
            yield phase, state
        for _ in train_phase(state, data, loss, task.recipe, group):
            yield phase, state


@torch.no_grad()
def activation_ranges(task: Task, networks: Networks) -> dict[str, Ranges]:
    """Return the ranges of both networks' activations on some films, for inference in 8 bits."""
    coarse, fine = (network.eval() for network in networks)
    both = TwoStageNetworks(coarse, fine, task.templates.coarse.aspect, task.templates.fine.aspect)
    halves = task.films.halves(torch.arange(min(RANGED_FILMS, len(task.films))))
    views = (
        crop_views(halves, full_frames(halves), HALF_ASPECT),
        crop_views(halves, both.frames(halves), both.coarse_aspect),
    )
    return {
        phase: measured_ranges(
            {name: tensor.cpu() for name, tensor in network.state_dict().items()},
            seen.flatten(0, 1).cpu(),
        )
        for phase, network, seen in zip(PHASES, networks, views, strict=True)
    }
