"""Algorithm 2: find T in the images, then T~ in the enlarged patches (paper, Sect. 5)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kneematch.paper.algorithm1 import (
    Hyperparameters,
    Images,
    Loss,
    PhaseData,
    PhaseState,
    predict_poses,
    train_phase,
    training_mode,
)
from kneematch.paper.energy import Problem, Refiner, paper_problem
from kneematch.paper.network import Network, PoseNetwork, network_input, whole_crops
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
Phase = Callable[[], tuple[PhaseData, Loss]]  # called when the phase begins


def paper_phases(
    images: Images,
    count: int,
    templates: tuple[Template, Template],
    networks: Networks,
    loss: Loss,
) -> tuple[Phase, Phase]:
    """Return the paper's two phases on `count` radiographs, for T and T~."""
    coarse, fine = templates
    first = coarse_phase(images, count, coarse)
    return lambda: (first, loss), lambda: (fine_phase(first, networks[0], fine), loss)


def coarse_phase(images: Images, count: int, template: Template) -> PhaseData:
    """Return the data of the first phase: find T in the images of `count` radiographs."""
    one = images(torch.zeros(1, dtype=torch.long))
    height, width = one.shape[-2:]
    crop_poses = whole_crops(one).expand(count, -1, -1)
    return PhaseData(images, crop_poses, (height, width), height / width, template)


def fine_phase(coarse: PhaseData, network: PoseNetwork, template: Template) -> PhaseData:
    """Return the data of the second phase: find T~ in the enlarged patches of the coarse network.

    `coarse` are the data of the first phase.
    """
    return enlarged_patches(coarse, predict_poses(network, coarse), template)


def enlarged_patches(coarse: PhaseData, theta: Tensor, template: Template) -> PhaseData:
    """Return the data of the second phase, given the poses theta (N, S, 4) of T."""
    return replace(
        coarse,
        crop_poses=enlarge_pose(theta, ENLARGE),
        crop_size=enlarged_size(coarse.template),
        aspect=coarse.template.aspect,
        template=template,
    )


def enlarged_size(template: Template) -> tuple[int, int]:
    """Return (height, width) in pixels of T's enlarged patches, at T's resolution."""
    height, width = template.size
    return round(ENLARGE * height), round(ENLARGE * width)


def train_two_phases(
    networks: Networks,
    phases: tuple[Phase, Phase],
    numbers: Hyperparameters,
    *,
    seed: int = 0,
    random: bool = False,
    begin_epoch: Callable[[PoseNetwork], Network] = training_mode,
    resume: Callable[[str, PhaseState], bool] = lambda phase, state: False,
) -> Iterator[tuple[str, PhaseState]]:
    """Run Algorithm 2 on both networks, in place.

    Args:
        networks: the coarse and the fine one.
        phases: the paper's are `paper_phases`.
        numbers: the hyperparameters of both phases.
        seed: random seed of the first phase; the second has the next one.
        random: the backbones have not been trained before.
        begin_epoch: as `train_phase` takes it.
        resume: sets the state of a phase to where its training was interrupted or ended; returns
            False if the phase had not begun.

    Yields:
        The name of the phase and its state, when a phase begins (with no finished epoch) and after
        every epoch. The beginning of a phase that is resumed is not yielded.
    """
    for number, (name, phase) in enumerate(zip(PHASES, phases, strict=True)):
        data, loss = phase()
        state = PhaseState(networks[number], len(data), seed + number, random)
        if not resume(name, state):
            yield name, state
        for _ in train_phase(state, data, loss, numbers, begin_epoch):
            yield name, state


def coarse_crops(network: Network, images: Tensor, aspect: float) -> Tensor:
    """Return the enlarged patches, poses (N, S, 4), of the coarse network in images (N, S, H, W).

    `aspect` is T's height over width.
    """
    image_aspect = images.shape[-2] / images.shape[-1]
    v = network(network_input(images, whole_crops(images), image_aspect))
    return enlarge_pose(pose_from_vector(v, aspect / image_aspect), ENLARGE)


def fine_poses(
    network: Network, images: Tensor, crop_poses: Tensor, aspects: tuple[float, float]
) -> Tensor:
    """Return the poses (N, S, 4) of T~ in images (N, S, H, W) that the fine network sees in crops.

    Args:
        network: G(.; phi).
        images: (N, S, H, W).
        crop_poses: (N, S, 4), the enlarged patches.
        aspects: height over width of T, which the crops have, too, and of T~.
    """
    crop_aspect, fine_aspect = aspects
    v = network(network_input(images, crop_poses, crop_aspect))
    theta = pose_from_vector(v, fine_aspect / crop_aspect)
    return compose_pose(crop_poses, theta, crop_aspect, images.shape[-2] / images.shape[-1])


def refine_in_crops(
    problem: Problem, theta: Tensor, crop_poses: Tensor, size: tuple[int, int], refine: Refiner
) -> Tensor:
    """Refine poses (N, S, 4) in the enlarged patches, as the paper's third method does.

    Args:
        problem: the whole images.
        theta: (N, S, 4), the starts in them.
        crop_poses: (N, S, 4), the enlarged patches.
        size: (height, width) of the patches in pixels.
        refine: the paper's is `sharpen`.

    Returns:
        Poses (N, S, 4) in the whole images.
    """
    aspect = size[0] / size[1]
    matrices = pose_matrix(crop_poses, aspect, problem.image_aspect)
    crops = sample(problem.images, matrices.to(problem.images), size)
    start = relative_pose(crop_poses, theta, aspect, problem.image_aspect)
    found = refine(paper_problem(crops, problem.template), start).theta
    return compose_pose(crop_poses, found, aspect, problem.image_aspect)
