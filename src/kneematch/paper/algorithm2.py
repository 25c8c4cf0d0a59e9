"""Algorithm 2: find T in the images, then T~ in the enlarged patches (paper, Sect. 5)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kneematch.paper.algorithm1 import Hyperparameters, Loss, PhaseData, PhaseState, train_phase
from kneematch.paper.energy import Problem, Refiner, paper_problem
from kneematch.paper.network import Network, PoseNetwork, network_input
from kneematch.paper.pose import (
    compose_pose,
    enlarge_pose,
    pose_from_vector,
    pose_matrix,
    relative_pose,
)
from kneematch.paper.template import Template
from kneematch.sampling import sample

PHASES: Final = ("coarse", "fine")
ENLARGE: Final = 1.2  # factor of the coarse patch, in which the fine network looks

Networks = tuple[PoseNetwork, PoseNetwork]  # G(.; phi^coarse) and G(.; phi)


def fine_phase(data: PhaseData, coarse: PoseNetwork, template: Template) -> PhaseData:
    """Return the data of the second phase: find T~ (`template`) in the enlarged patches.

    They are cut at the poses of the network that was trained on the data of the first phase.
    """
    coarse.eval()
    with torch.no_grad():
        crop_poses = data.map_images(
            lambda images: coarse_crops(coarse, images, data.template.aspect)
        )
    return phase_in_crops(data, crop_poses, template)


def phase_in_crops(data: PhaseData, crop_poses: Tensor, template: Template) -> PhaseData:
    """Return the data of the second phase, given the poses (N, S, 4) of the enlarged patches."""
    size = enlarged_size(data.template)

    def images(rows: Tensor) -> Tensor:
        return crop(data.images(rows), crop_poses[rows.to(crop_poses.device)], size)

    return replace(data, images=images, template=template)


def crop(images: Tensor, crop_poses: Tensor, size: tuple[int, int]) -> Tensor:
    """Return crops (N, S, h, w) of images (N, S, H, W) at poses (N, S, 4)."""
    matrices = pose_matrix(crop_poses, size[0] / size[1], images.shape[-2] / images.shape[-1])
    return sample(images, matrices.to(images), size)


def enlarged_size(template: Template) -> tuple[int, int]:
    """Return (height, width) in pixels of T's enlarged patches, at T's resolution."""
    height, width = template.size
    return round(ENLARGE * height), round(ENLARGE * width)


def train_two_phases(
    networks: Networks,
    phases: tuple[Callable[[], PhaseData], Callable[[], PhaseData]],
    losses: tuple[Loss, Loss],
    numbers: Hyperparameters,
    *,
    seed: int = 0,
    begin_epoch: Callable[[PoseNetwork], Network] = PoseNetwork.train,
    resume: Callable[[str, PhaseState], bool] = lambda phase, state: False,
) -> Iterator[tuple[str, PhaseState]]:
    """Run Algorithm 2 on both networks, in place.

    Args:
        networks: the coarse and the fine one.
        phases: called when a phase begins; the paper's second one is `fine_phase`.
        losses: of both phases; the paper's is `energy_loss`.
        numbers: the hyperparameters of both phases.
        seed: random seed of the first phase; the second has the next one.
        begin_epoch: as `train_phase` takes it.
        resume: sets the state of a phase to where its training was interrupted or ended; returns
            False if the phase had not begun.

    Yields:
        The name of the phase and its state, when a phase begins (with no finished epoch) and after
        every epoch. The beginning of a phase that is resumed is not yielded.
    """
    for number, name in enumerate(PHASES):
        data = phases[number]()
        state = PhaseState(networks[number], data.count, seed + number)
        if not resume(name, state):
            yield name, state
        for _ in train_phase(state, data, losses[number], numbers, begin_epoch):
            yield name, state


def coarse_crops(network: Network, images: Tensor, aspect: float) -> Tensor:
    """Return the poses (N, S, 4) of the enlarged patches in images (N, S, H, W).

    `aspect` is T's height over width.
    """
    ratio = aspect / (images.shape[-2] / images.shape[-1])
    return enlarge_pose(pose_from_vector(network(network_input(images)), ratio), ENLARGE)


def refine_in_crops(
    problem: Problem, theta: Tensor, crop_poses: Tensor, size: tuple[int, int], refine: Refiner
) -> Tensor:
    """Refine poses theta (N, S, 4) in enlarged patches, as the paper's third method does.

    The patches have the poses `crop_poses` (N, S, 4) in the problem's images, and `size` (height,
    width) in pixels. The paper's `refine` is `sharpen`.
    """
    aspects = size[0] / size[1], problem.image_aspect
    crops = paper_problem(crop(problem.images, crop_poses, size), problem.template)
    found = refine(crops, relative_pose(crop_poses, theta, *aspects)).theta
    return compose_pose(crop_poses, found, *aspects)
