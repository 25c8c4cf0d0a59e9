"""Pseudo-labels: poses of the fine template on the training films, found without labels.

The template may be replaced by the mean of the knees it matches, which has less individual anatomy.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.frames import compose_pose, relative_pose
from kneematch.geometry.pose import pose_from_vector, pose_matrix, vector_from_pose
from kneematch.geometry.sampling import sample
from kneematch.geometry.split import HALF_ASPECT
from kneematch.matching.local_contrast import normalize_local_contrast
from kneematch.matching.template import Template
from kneematch.networks.model_file import Model
from kneematch.networks.template_transfer import transfer_template
from kneematch.networks.two_stage import PosePredictor
from kneematch.solvers.anchored_refinement import LEVELS, refine_anchored
from kneematch.solvers.exhaustive_search import exhaustive_search
from kneematch.solvers.gauss_newton import Level
from kneematch.solvers.problem import make_problem
from kneematch.training.dataset import Films
from kneematch.training.distributed import Group
from kneematch.training.two_phases import TemplatePair

AVERAGED: Final = 0.5  # fraction of the patches, the best matches, that enter the mean
FILMS_AT_ONCE: Final = 16
FULL_SIZE: Final = Level(1, 3, 0.01)  # the last level of the search for a drift, which is small
EPSILON: Final = 1e-6  # added to the standard deviation of a patch


def make_pseudo_labels(
    films: Films,
    templates: TemplatePair,
    half: Tensor,
    model: Model | None,
    group: Group,
    *,
    repeats: int = 0,
) -> tuple[TemplatePair, Tensor]:
    """Find the fine template on all films.

    Args:
        films: the training films.
        templates: the annotated templates.
        half: (H, W), the half image that was annotated.
        model: a trained model that guides the search; None searches exhaustively.
        group: the processes that train together.
        repeats: how often the fine template is replaced by the mean of its matches.

    Returns:
        The templates, with that mean, and poses (N, 2, 4) of the annotated fine box.
    """
    networks = None
    if model is not None:
        networks = transfer_template(model.networks(str(half.device)), half, templates.fine_pose)
    poses = find_poses(films, templates.fine, networks, group)
    for _ in range(repeats):
        mean = mean_template(films, templates.fine, poses)
        found = find_poses(films, mean, networks, group)
        poses = undo_drift(mean, half, templates.fine_pose, found)
        templates = replace(templates, fine=mean_template(films, mean, poses))
    return templates, poses


def find_poses(
    films: Films, template: Template, networks: PosePredictor | None, group: Group
) -> Tensor:
    """Return the poses (N, 2, 4) of a template on all films.

    Networks predict poses, which are then refined; without them the search is exhaustive.
    """

    def find(rows: Tensor) -> Tensor:
        halves = films.halves(rows)
        problem = make_problem(halves, template)
        if networks is None:
            v = exhaustive_search(problem)
        else:
            with torch.no_grad():
                predicted = networks.poses(halves)
            v = refine_anchored(problem, vector_from_pose(predicted, problem.height_ratio)).v
        return pose_from_vector(v, problem.height_ratio)

    like = films.halves(torch.zeros(1, dtype=torch.long)).new_zeros(2, 4)
    return group.map_films(len(films), find, like)


@torch.no_grad()
def mean_template(films: Films, template: Template, poses: Tensor) -> Template:
    """Return the mean of the best-matching patches at poses (N, 2, 4), with the same windows."""
    batches = torch.split(torch.arange(len(films)), FILMS_AT_ONCE)
    standard = _standardise(template.image)
    correlation = torch.cat(
        [(_patches(films, template, poses, rows)[0] * standard).mean((-2, -1)) for rows in batches]
    )  # (N, 2)
    least = correlation.abs().flatten().quantile(1 - AVERAGED)
    weights = correlation.sign() * (correlation.abs() >= least)  # inverts negatives
    sums = torch.zeros_like(template.image), torch.zeros_like(template.image)
    for rows in batches:
        weight = weights[rows.to(weights.device)][..., None, None]
        for total, patches in zip(sums, _patches(films, template, poses, rows), strict=True):
            total += (weight * patches).sum((0, 1))
    image, contrast = (total / weights.abs().sum() for total in sums)
    return replace(template, image=image, local_contrast=contrast)


@torch.no_grad()
def undo_drift(template: Template, half: Tensor, annotated: Tensor, poses: Tensor) -> Tensor:
    """Correct the poses of a mean template, whose frame drifts away from the annotated boxes.

    The drift is measured on the annotated knee, by finding the mean template there.

    Args:
        template: the mean template.
        half: (H, W), the half image that was annotated.
        annotated: (4,), the pose of the annotated box in it.
        poses: (N, 2, 4), where the mean template was found.
    """
    problem = make_problem(half[None, None], template)
    start = vector_from_pose(annotated.to(half)[None, None], problem.height_ratio)
    v = refine_anchored(problem, start, trust=0.0, levels=(*LEVELS, FULL_SIZE)).v[0, 0]
    found = pose_from_vector(v, problem.height_ratio)
    drift = relative_pose(found, annotated.to(found), template.aspect, HALF_ASPECT)
    return compose_pose(poses, drift.expand_as(poses), template.aspect, HALF_ASPECT)


def _patches(
    films: Films, template: Template, poses: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Return standardised patches (K, 2, h, w) of some films (K,), and of their local contrast."""
    halves = films.halves(rows)
    theta = poses[rows.to(poses.device)]
    matrices = pose_matrix(theta, template.aspect, HALF_ASPECT).to(halves)
    pictures = halves, normalize_local_contrast(halves)
    image, contrast = (_standardise(sample(each, matrices, template.size)) for each in pictures)
    return image, contrast


def _standardise(patches: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(patches, dim=(-2, -1), keepdim=True)
    return (patches - mean) / (deviation + EPSILON)
