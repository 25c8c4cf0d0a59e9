"""Algorithm 2 with our recipe or the paper's, and what both add to it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from kneematch.models.cpu_inference import Ranges, measured_ranges
from kneematch.models.two_stage import NARROW_JITTER, WIDE_JITTER, TwoStageNetworks
from kneematch.paper.algorithm1 import (
    Hyperparameters,
    Loss,
    PhaseData,
    PhaseState,
    energy_loss,
)
from kneematch.paper.algorithm2 import (
    ENLARGE,
    PHASES,
    Networks,
    fine_phase,
    phase_in_crops,
    train_two_phases,
)
from kneematch.paper.network import Network, PoseNetwork, network_input
from kneematch.paper.pose import enlarge_pose
from kneematch.paper.split import HALF_ASPECT
from kneematch.search.anchored_refinement import refine_anchored
from kneematch.search.robust_energy import robust_problem
from kneematch.training.config import Recipe
from kneematch.training.dataset import Films
from kneematch.training.pseudo_labels import TemplatePair, coarse_poses, films_at_once, pose_loss

RANGED_FILMS: Final = 24  # on which the ranges of activations are measured

Phases = tuple[Callable[[], PhaseData], Callable[[], PhaseData]]
Losses = tuple[Loss, Loss]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Everything that a training depends on and that does not change during it."""

    films: Films
    templates: TemplatePair
    recipe: Recipe
    pseudo_labels: Tensor | None  # (N, 2, 4), poses of the fine template, if the recipe uses them
    seed: int = 0
    random: bool = False  # the backbones begin at random


def train_task(
    task: Task,
    networks: Networks,
    resume: Callable[[str, PhaseState], bool] = lambda phase, state: False,
) -> Iterator[tuple[str, PhaseState]]:
    """Train both networks in place; arguments and results are those of `train_two_phases`."""
    recipe, device = task.recipe, next(networks[0].parameters()).device
    numbers = Hyperparameters(
        recipe.rounds,
        recipe.epochs,
        recipe.batch_size,
        recipe.backbone_rate,
        recipe.head_rate,
        _cosine if recipe.cosine else lambda done: 1.0,
        films_at_once(device),
    )
    if task.pseudo_labels is None:
        phases, losses = _paper_phases(task, networks)
    else:
        phases, losses = _labelled_phases(task, task.pseudo_labels)
    return train_two_phases(
        networks,
        phases,
        losses,
        numbers,
        seed=task.seed,
        random=task.random,
        begin_epoch=_begin_epoch(recipe),
        resume=resume,
    )


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def _paper_phases(task: Task, networks: Networks) -> tuple[Phases, Losses]:
    """Return the paper's phases."""
    templates, device = task.templates, next(networks[0].parameters()).device
    data = PhaseData(task.films.halves, len(task.films), templates.coarse)

    def fine() -> PhaseData:
        return fine_phase(data, networks[0], templates.fine, films_at_once(device))

    return (lambda: data, fine), 2 * (energy_loss(task.recipe.shift),)


def _labelled_phases(task: Task, labels: Tensor) -> tuple[Phases, Losses]:
    """Return the phases of the recipe with pseudo-labels (N, 2, 4)."""
    films, templates = task.films, task.templates
    data = PhaseData(films.halves, len(films), templates.coarse, robust_problem, refine_anchored)
    coarse = coarse_poses(labels, templates)
    whole = labels.new_tensor([1, 0, 0, 0]).expand_as(labels)
    patches = enlarge_pose(coarse, ENLARGE)
    losses = (
        pose_loss(films, coarse, whole, HALF_ASPECT, WIDE_JITTER),
        pose_loss(films, labels, patches, templates.coarse.aspect, NARROW_JITTER),
    )
    return (lambda: data, lambda: phase_in_crops(data, patches, templates.fine)), losses


def _begin_epoch(recipe: Recipe) -> Callable[[PoseNetwork], Network]:
    """Return what puts a network into the recipe's training mode and precision."""

    def begin(network: PoseNetwork) -> Network:
        network.train()
        if recipe.frozen_statistics:
            freeze_batchnorm(network)

        def forward(images: Tensor) -> Tensor:
            on = images.is_cuda and recipe.bfloat16  # bfloat16 gradients need no scaling
            with torch.autocast(images.device.type, torch.bfloat16, enabled=on):
                v: Tensor = network(images)
            return v

        return forward

    return begin


def freeze_batchnorm(network: nn.Module) -> None:
    """Let the BatchNorm layers of a network in training mode use their running statistics."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


@torch.no_grad()
def activation_ranges(task: Task, networks: Networks) -> dict[str, Ranges]:
    """Return the ranges of both networks' activations on some films, for inference in 8 bits."""
    coarse, fine = (network.eval() for network in networks)
    both = TwoStageNetworks(coarse, fine, task.templates.coarse.aspect, task.templates.fine.aspect)
    images = task.films.halves(torch.arange(min(RANGED_FILMS, len(task.films))))
    inputs = (
        network_input(images),
        network_input(images, both.crop_poses(images), both.coarse_aspect),
    )
    return {
        phase: measured_ranges(
            {name: tensor.cpu() for name, tensor in network.state_dict().items()},
            seen.flatten(0, 1).cpu(),
        )
        for phase, network, seen in zip(PHASES, networks, inputs, strict=True)
    }
