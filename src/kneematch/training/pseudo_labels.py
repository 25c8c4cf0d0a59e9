"""Our recipe: find poses of low energy on the training films, then teach them to the networks.

Random crops and exposures make a few films stand for many.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.models.model_file import Model
from kneematch.models.two_stage import (
    PoseJitter,
    TwoStageNetworks,
    corner_distance,
    crop_pose_from,
    jitter_pose,
    transfer_template,
)
from kneematch.paper.algorithm1 import Loss, PhaseData, PhaseState
from kneematch.paper.energy import Problem
from kneematch.paper.network import INPUT, Network, network_input
from kneematch.paper.pose import admissible_pose, compose_pose, pose_from_vector, relative_pose
from kneematch.paper.split import HALF_ASPECT
from kneematch.paper.template import Template
from kneematch.search.anchored_refinement import refine_anchored
from kneematch.search.exhaustive_search import exhaustive_search
from kneematch.search.robust_energy import robust_problem
from kneematch.training.dataset import Films

FILMS_AT_ONCE: Final = 16  # on a CPU
BYTES_PER_FILM: Final = 60_000_000  # on a GPU, during a refinement
LOG_GAMMA: Final = 0.7  # largest logarithm of the exponent gamma
SHARPNESS: Final = (-0.6, 1.5)  # range of the factor of the added detail; negative values blur
FIELD: Final = 0.4  # largest smooth change of log-contrast; that of brightness is a third of it
GRAIN: Final = 0.06  # largest standard deviation of the noise
NEGATIVES: Final = 0.15  # fraction of crops that are inverted
HIDDEN: Final = 0.3  # fraction of crops of which a rectangle is covered
EPSILON: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class TemplatePair:
    """Both templates, and their poses in the half image that they were cut from."""

    coarse: Template  # T
    fine: Template  # T~
    coarse_pose: Tensor  # (4,)
    fine_pose: Tensor  # (4,)


def make_pseudo_labels(
    films: Films, templates: TemplatePair, half: Tensor, model: Model | None
) -> Tensor:
    """Return the poses (N, 2, 4) of the fine template on all films.

    Args:
        films: the training films.
        templates: the annotated templates.
        half: (H, W), the half image that was annotated.
        model: a trained model that guides the search; None searches exhaustively.
    """
    networks = None
    if model is not None:
        networks = transfer_template(model.networks(str(half.device)), half, templates.fine_pose)
    return find_poses(films, templates.fine, networks)


def find_poses(films: Films, template: Template, networks: TwoStageNetworks | None) -> Tensor:
    """Return the poses (N, 2, 4) of a template on all films.

    Networks predict poses, which are then refined; without them the search is exhaustive.
    """

    def find(problem: Problem) -> Tensor:
        if networks is None:
            return exhaustive_search(problem)
        with torch.no_grad():
            start = admissible_pose(networks.poses(problem.images), problem.height_ratio)
        return refine_anchored(problem, start).theta

    device = films.halves(torch.zeros(1, dtype=torch.long)).device
    batches = torch.split(torch.arange(len(films)), films_at_once(device))
    return torch.cat([find(robust_problem(films.halves(rows), template)) for rows in batches])


def films_at_once(device: torch.device) -> int:
    """Return how many films the memory of a device holds during a refinement."""
    if device.type != "cuda":
        return FILMS_AT_ONCE
    free, _ = torch.cuda.mem_get_info(device)
    return min(max(free // BYTES_PER_FILM, 8), 512)


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
        exposures = sample_exposures(2 * len(rows), INPUT, state.generator)
        seen = apply_exposures(network_input(films.halves(rows), moved, aspect), exposures)
        found = pose_from_vector(network(seen), ratio)
        return corner_distance(found, wanted, data.template.aspect, aspect).sum(-1)

    return loss


@dataclass(frozen=True, slots=True, eq=False)
class Exposures:
    """Random parameters of K crops; each tensor is (K, 1, 1, 1) unless stated otherwise."""

    gamma: Tensor
    sharpness: Tensor
    field: Tensor  # (K, 1, 4, 4)
    contrast: Tensor
    brightness: Tensor
    grain: Tensor  # (K, 1, H, W)
    hidden: Tensor  # (K, 1, H, W) bool
    cover: Tensor
    negative: Tensor  # bool


def sample_exposures(count: int, size: tuple[int, int], generator: torch.Generator) -> Exposures:
    """Sample the parameters of `count` crops of a size (height, width)."""
    device = generator.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        drawn = torch.rand(count, *(shape or (1, 1, 1)), generator=generator, device=device)
        return low + (high - low) * drawn

    grain = torch.randn(count, 1, *size, generator=generator, device=device)
    return Exposures(
        gamma=uniform(-LOG_GAMMA, LOG_GAMMA).exp(),
        sharpness=uniform(*SHARPNESS),
        field=uniform(-1, 1, 1, 4, 4),
        contrast=uniform(0, FIELD),
        brightness=uniform(0, FIELD / 3),
        grain=uniform(0, GRAIN) * grain,
        hidden=_rectangles(size, uniform),
        cover=uniform(-0.2, 1.2),
        negative=uniform(0, 1) < NEGATIVES,
    )


def _rectangles(size: tuple[int, int], uniform: Callable[..., Tensor]) -> Tensor:
    """Return masks (K, 1, H, W) of what a marker, an implant or a shutter might cover."""
    drawn = uniform(0, 1)
    y, x = (torch.arange(side, device=drawn.device) / side for side in size)
    largest = uniform(0.02, 0.3)
    near_y = (y[:, None] - uniform(0, 1)).abs() < largest * uniform(0.3, 1)
    near_x = (x - uniform(0, 1)).abs() < largest * uniform(0.3, 1)
    return near_y & near_x & (drawn < HIDDEN)


def apply_exposures(views: Tensor, exposures: Exposures) -> Tensor:
    """Return views (..., H, W), K in all, as other X-ray machines might have shown them."""
    flat = views.reshape(-1, 1, *views.shape[-2:])
    low, high = flat.amin((-2, -1), keepdim=True), flat.amax((-2, -1), keepdim=True)
    flat = ((flat - low) / (high - low).clamp(min=EPSILON)).clamp(min=EPSILON) ** exposures.gamma
    smooth = F.interpolate(F.avg_pool2d(flat, 8), flat.shape[-2:], mode="bilinear")
    flat = flat + exposures.sharpness * (flat - smooth)
    # Collimation, the heel effect and thick soft tissue change the brightness slowly.
    field = F.interpolate(exposures.field, flat.shape[-2:], mode="bicubic")
    flat = flat * (exposures.contrast * field).exp() + exposures.brightness * field
    flat = flat + exposures.grain
    flat = torch.where(exposures.hidden, exposures.cover, flat)
    return torch.where(exposures.negative, -flat, flat).reshape(views.shape)
