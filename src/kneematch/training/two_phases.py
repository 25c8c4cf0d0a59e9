"""Algorithm 2 with our recipe or the paper's, and what both add to it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn

from kneematch.models.cpu_inference import Ranges, measured_ranges
from kneematch.models.pose_jitter import NARROW_JITTER, WIDE_JITTER
from kneematch.models.two_stage import TwoStageNetworks
from kneematch.paper.algorithm1 import (
    Hyperparameters,
    Loss,
    Move,
    PhaseState,
    energy_loss,
    random_translation,
)
from kneematch.paper.algorithm2 import (
    PHASES,
    Networks,
    Phase,
    coarse_phase,
    enlarged_patches,
    paper_phases,
    train_two_phases,
)
from kneematch.paper.energy import Problem
from kneematch.paper.network import Network, PoseNetwork, network_input, whole_crops
from kneematch.paper.split import HALF_ASPECT
from kneematch.search.anchored_refinement import refine_anchored
from kneematch.search.pyramid import pyramid
from kneematch.search.robust_energy import robust_problem
from kneematch.training.config import Recipe
from kneematch.training.dataset import Films
from kneematch.training.pseudo_labels import TemplatePair, coarse_poses, films_at_once, pose_loss

RANGED_FILMS: Final = 24  # on which the ranges of activations are measured


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
    return train_two_phases(
        networks,
        task_phases(task, networks),
        numbers,
        seed=task.seed,
        random=task.random,
        begin_epoch=_begin_epoch(recipe),
        resume=resume,
    )


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def task_phases(task: Task, networks: Networks) -> tuple[Phase, Phase]:
    """Return both phases of a task: the paper's, or those of the recipe with pseudo-labels."""
    templates, labels = task.templates, task.pseudo_labels
    images, count = task.films.halves, len(task.films)
    if labels is None:
        loss = _paper_loss(task.recipe)
        return paper_phases(images, count, (templates.coarse, templates.fine), networks, loss)
    coarse = coarse_phase(images, count, templates.coarse)
    coarse = replace(coarse, make_problem=robust_problem, refine=refine_anchored)
    around = coarse_poses(labels, templates)
    fine = enlarged_patches(coarse, around, templates.fine)
    return (
        lambda: (coarse, pose_loss(around, WIDE_JITTER)),
        lambda: (fine, pose_loss(labels, NARROW_JITTER)),
    )


def _paper_loss(recipe: Recipe) -> Loss:
    """Return the paper's loss, with a random zoom and smaller images if the recipe has them."""

    def shrunk(problem: Problem, number: int) -> Problem:
        factor = recipe.shrink_in(number)
        return pyramid(problem, (factor,))[factor] if factor > 1 else problem

    return energy_loss(_translation_and_zoom(recipe.shift, recipe.zoom), shrunk)


def _translation_and_zoom(shift: float, zoom: float) -> Move:
    translate = random_translation(shift)

    def move(count: tuple[int, int], size: tuple[int, int], generator: torch.Generator) -> Tensor:
        moved = translate(count, size, generator)
        if zoom:
            drawn = 2 * torch.rand(count, generator=generator, device=generator.device) - 1
            moved[..., 0] = (drawn * math.log1p(zoom)).exp()
        return moved

    return move


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
        network_input(images, whole_crops(images), HALF_ASPECT),
        network_input(images, both.crop_poses(images), both.coarse_aspect),
    )
    return {
        phase: measured_ranges(
            {name: tensor.cpu() for name, tensor in network.state_dict().items()},
            seen.flatten(0, 1).cpu(),
        )
        for phase, network, seen in zip(PHASES, networks, inputs, strict=True)
    }
