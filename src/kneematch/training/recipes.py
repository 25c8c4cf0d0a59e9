"""Algorithm 2 with our recipe.

It finds poses of low energy on the training films, then teaches them to the networks as
pseudo-labels. Random crops and exposures make a few films stand for many.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch.models.cpu_inference import Ranges, measured_ranges
from kneematch.models.model_file import Model
from kneematch.models.two_stage import (
    NARROW_JITTER,
    WIDE_JITTER,
    PoseJitter,
    TwoStageNetworks,
    corner_distance,
    crop_pose_from,
    jitter_pose,
    transfer_template,
)
from kneematch.paper.algorithm1 import AT_ONCE, Hyperparameters, Loss, PhaseData, PhaseState
from kneematch.paper.algorithm2 import (
    ENLARGE,
    PHASES,
    Networks,
    phase_in_crops,
    train_two_phases,
)
from kneematch.paper.network import Network, PoseNetwork, network_input
from kneematch.paper.pose import (
    admissible_pose,
    compose_pose,
    enlarge_pose,
    pose_from_vector,
    relative_pose,
)
from kneematch.paper.split import HALF_ASPECT
from kneematch.paper.template import Template
from kneematch.search.gauss_newton import refine_anchored
from kneematch.search.robust_energy import robust_problem
from kneematch.training import TrainConfig
from kneematch.training.dataset import Films

RANGED_FILMS: Final = 24  # on which the ranges of activations are measured
LOG_GAMMA: Final = 0.7  # largest logarithm of the exponent gamma
SHARPNESS: Final = (-0.6, 1.5)  # range of the factor of the added detail; negative values blur
FIELD: Final = 0.4  # largest smooth change of log-contrast; that of brightness is a third of it
GRAIN: Final = 0.06  # largest standard deviation of the noise
NEGATIVES: Final = 0.15  # fraction of crops that are inverted
HIDDEN: Final = 0.3  # fraction of crops of which a rectangle is covered
EPSILON: Final = 1e-6

Phases = tuple[Callable[[], PhaseData], Callable[[], PhaseData]]
Losses = tuple[Loss, Loss]


@dataclass(frozen=True, slots=True, eq=False)
class TemplatePair:
    """Both templates, and their poses in the half image that they were cut from."""

    coarse: Template  # T
    fine: Template  # T~
    coarse_pose: Tensor  # (4,)
    fine_pose: Tensor  # (4,)


def hyperparameters(config: TrainConfig) -> Hyperparameters:
    """Return the numbers of a training; the paper's has lower rates, which do not decay."""
    return Hyperparameters(
        rounds=config.rounds,
        epochs=config.epochs,
        batch_size=config.batch_size,
        backbone_rate=3e-4,
        head_rate=1e-3,
        decay=lambda done: (1 + math.cos(math.pi * done)) / 2,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Everything that a training depends on and that does not change during it."""

    films: Films
    templates: TemplatePair
    numbers: Hyperparameters
    pseudo_labels: Tensor  # (N, 2, 4), poses of the fine template
    seed: int = 0


def train_task(
    task: Task,
    networks: Networks,
    resume: Callable[[str, PhaseState], bool] = lambda phase, state: False,
) -> Iterator[tuple[str, PhaseState]]:
    """Train both networks in place; arguments and results are those of `train_two_phases`."""
    phases, losses = _labelled_phases(task)
    return train_two_phases(
        networks,
        phases,
        losses,
        task.numbers,
        seed=task.seed,
        begin_epoch=_begin_epoch,
        resume=resume,
    )


def _labelled_phases(task: Task) -> tuple[Phases, Losses]:
    """Return both phases, and the losses that teach the pseudo-labels."""
    films, templates, labels = task.films, task.templates, task.pseudo_labels
    data = PhaseData(films.halves, len(films), templates.coarse, robust_problem, refine_anchored)
    coarse = coarse_poses(labels, templates)
    whole = labels.new_tensor([1, 0, 0, 0]).expand_as(labels)
    patches = enlarge_pose(coarse, ENLARGE)
    losses = (
        pose_loss(films, coarse, whole, HALF_ASPECT, WIDE_JITTER),
        pose_loss(films, labels, patches, templates.coarse.aspect, NARROW_JITTER),
    )
    return (lambda: data, lambda: phase_in_crops(data, patches, templates.fine)), losses


def _begin_epoch(network: PoseNetwork) -> Network:
    """Put a network into training mode; a few films are no sample for BatchNorm's statistics."""
    freeze_batchnorm(network.train())

    def forward(images: Tensor) -> Tensor:
        # bfloat16 gradients need no scaling.
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            v: Tensor = network(images)
        return v

    return forward


def freeze_batchnorm(network: nn.Module) -> None:
    """Let the BatchNorm layers of a network in training mode use their running statistics."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


@torch.no_grad()
def activation_ranges(
    films: Films, templates: TemplatePair, networks: Networks
) -> dict[str, Ranges]:
    """Return the ranges of both networks' activations on some films, for inference in 8 bits."""
    coarse, fine = (network.eval() for network in networks)
    both = TwoStageNetworks(coarse, fine, templates.coarse.aspect, templates.fine.aspect)
    images = films.halves(torch.arange(min(RANGED_FILMS, len(films))))
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


def make_pseudo_labels(films: Films, templates: TemplatePair, half: Tensor, model: Model) -> Tensor:
    """Return the poses (N, 2, 4) of the fine template, annotated on a half (H, W), on all films.

    The model predicts poses, which are then refined.
    """
    networks = transfer_template(model.networks(str(half.device)), half, templates.fine_pose)
    labels = []
    for rows in torch.split(torch.arange(len(films)), AT_ONCE):
        problem = robust_problem(films.halves(rows), templates.fine)
        with torch.no_grad():
            start = admissible_pose(networks.poses(problem.images), problem.height_ratio)
        labels.append(refine_anchored(problem, start).theta)
    return torch.cat(labels)


def coarse_poses(fine_poses: Tensor, templates: TemplatePair) -> Tensor:
    """Return the poses (N, 2, 4) of T around poses of T~, relative to it as annotated."""
    aspect = templates.fine.aspect
    offset = relative_pose(templates.fine_pose, templates.coarse_pose, aspect, HALF_ASPECT)
    return compose_pose(
        fine_poses, offset.to(fine_poses).expand_as(fine_poses), aspect, HALF_ASPECT
    )


def pose_loss(
    films: Films, targets: Tensor, crop_poses: Tensor, aspect: float, spread: PoseJitter
) -> Loss:
    """Return the mean distance of the predicted corners from those of target poses, in widths.

    Args:
        films: the training films.
        targets: (N, 2, 4), poses of the template.
        crop_poses: (N, 2, 4), poses of the crops that the network sees.
        aspect: height over width of the crops.
        spread: by which they vary from step to step; exposures vary as well.
    """

    def loss(network: Network, data: PhaseData, rows: Tensor, state: PhaseState) -> Tensor:
        target, crops = (each[rows.to(each.device)] for each in (targets, crop_poses))
        ratio = data.template.aspect / aspect
        nominal = relative_pose(crops, target, aspect, HALF_ASPECT)
        wanted = jitter_pose(nominal, ratio, spread, state.generator)
        moved = crop_pose_from(target, wanted, aspect, HALF_ASPECT)
        seen = vary_exposures(network_input(films.halves(rows), moved, aspect), state.generator)
        found = pose_from_vector(network(seen), ratio)
        return corner_distance(found, wanted, data.template.aspect, aspect).sum(-1)

    return loss


def vary_exposures(views: Tensor, generator: torch.Generator) -> Tensor:
    """Return views (..., H, W) as other X-ray machines might have shown them, each in its own way.

    Gamma, sharpness, slow changes of brightness and noise vary; a rectangle of some views is
    covered, and some views are inverted.
    """
    flat = views.reshape(-1, 1, *views.shape[-2:])
    count, size = len(flat), (flat.shape[-2], flat.shape[-1])

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        drawn = torch.rand(
            count, *(shape or (1, 1, 1)), generator=generator, device=generator.device
        )
        return low + (high - low) * drawn

    grain = torch.randn(count, 1, *size, generator=generator, device=generator.device)
    low, high = flat.amin((-2, -1), keepdim=True), flat.amax((-2, -1), keepdim=True)
    flat = ((flat - low) / (high - low).clamp(min=EPSILON)).clamp(min=EPSILON)
    flat = flat ** uniform(-LOG_GAMMA, LOG_GAMMA).exp()
    smooth = F.interpolate(F.avg_pool2d(flat, 8), size, mode="bilinear")
    flat = flat + uniform(*SHARPNESS) * (flat - smooth)
    # Collimation, the heel effect and thick soft tissue change the brightness slowly.
    field = F.interpolate(uniform(-1, 1, 1, 4, 4), size, mode="bicubic")
    flat = flat * (uniform(0, FIELD) * field).exp() + uniform(0, FIELD / 3) * field
    flat = flat + uniform(0, GRAIN) * grain
    hidden, cover = _rectangles(size, uniform), uniform(-0.2, 1.2)
    flat = torch.where(hidden, cover, flat)
    return torch.where(uniform(0, 1) < NEGATIVES, -flat, flat).reshape(views.shape)


def _rectangles(size: tuple[int, int], uniform: Callable[..., Tensor]) -> Tensor:
    """Return masks (K, 1, H, W) of what a marker, an implant or a shutter might cover."""
    drawn = uniform(0, 1)
    y, x = (torch.arange(side, device=drawn.device) / side for side in size)
    largest = uniform(0.02, 0.3)
    near_y = (y[:, None] - uniform(0, 1)).abs() < largest * uniform(0.3, 1)
    near_x = (x - uniform(0, 1)).abs() < largest * uniform(0.3, 1)
    return near_y & near_x & (drawn < HIDDEN)
