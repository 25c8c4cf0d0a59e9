"""A template that refines itself: the mean of the knees that it found, in the frame as drawn.

One knee is one person's anatomy. The mean of many has less of it and less noise.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.frames import seen_from, within
from kneematch.geometry.pose import pose_from_vector, pose_matrix, vector_from_pose
from kneematch.geometry.sampling import sample
from kneematch.geometry.split import HALF_ASPECT
from kneematch.matching.local_contrast import detail
from kneematch.matching.template import Template
from kneematch.solvers.anchored_refinement import nearby
from kneematch.solvers.problem import problem
from kneematch.training.phase_data import Films

BETTER: Final = 0.5  # share of the patches, those most alike the template, that are averaged
AT_ONCE: Final = 16  # films
FLAT: Final = 1e-6  # added to the deviation of a patch


@torch.no_grad()
def mean_template(films: Films, template: Template, poses: Tensor) -> Template:
    """The mean of the better-matching patches at poses (N, 2, 4), its windows as they were."""
    alike = torch.cat([_alike(films, template, poses, rows) for rows in _batches(films)])  # (N, 2)
    least = alike.abs().flatten().quantile(1 - BETTER)
    weights = alike.sign() * (alike.abs() >= least)  # a negative is turned
    image, fine = torch.zeros_like(template.image), torch.zeros_like(template.image)
    for rows in _batches(films):
        for total, patches in zip(
            (image, fine), _patches(films, template, poses, rows), strict=True
        ):
            share = weights[rows.to(weights.device)]
            total += (share[..., None, None] * patches).sum((0, 1))
    count = weights.abs().sum()
    return replace(template, image=image / count, fine_structure=fine / count)


@torch.no_grad()
def as_drawn(template: Template, half: Tensor, drawn: Tensor, poses: Tensor) -> Tensor:
    """Poses (N, 2, 4) of a mean template, moved so that on its own half it lies as it was drawn.

    The frame of a mean drifts from round to round; the annotated knee says how far.

    Args:
        template: the mean.
        half: (H, W), on which the boxes were drawn.
        drawn: (4,), the pose that they have there.
        poses: where the mean was found.
    """
    asked = problem(half[None, None], template)
    start = vector_from_pose(drawn.to(half)[None, None], asked.height_ratio)
    now = pose_from_vector(nearby(asked, start, trust=0.0).v, asked.height_ratio)[0, 0]
    drift = seen_from(now, drawn.to(now), template.aspect, HALF_ASPECT)
    return within(poses, drift.expand_as(poses), template.aspect, HALF_ASPECT)


def _batches(films: Films) -> tuple[Tensor, ...]:
    return torch.split(torch.arange(len(films)), AT_ONCE)


def _patches(
    films: Films, template: Template, poses: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Standardised patches (K, 2, h, w) of some films, and of their detail."""
    halves = films.halves(rows)
    theta = poses[rows.to(poses.device)]
    matrices = pose_matrix(theta, template.aspect, HALF_ASPECT).to(halves)
    film, fine = (
        _standardised(sample(images, matrices, template.size))
        for images in (halves, detail(halves))
    )
    return film, fine


def _standardised(patches: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(patches, dim=(-2, -1), keepdim=True)
    return (patches - mean) / (deviation + FLAT)


def _alike(films: Films, template: Template, poses: Tensor, rows: Tensor) -> Tensor:
    """Correlation of patches with the template, (K, 2)."""
    film, _ = _patches(films, template, poses, rows)
    return (film * _standardised(template.image)).mean((-2, -1))
