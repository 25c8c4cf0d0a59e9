"""Pseudo-labels: poses of the fine template on the training films, found without labels."""

from dataclasses import replace

import torch
from torch import Tensor

from kneematch.geometry.pose import pose_from_vector, vector_from_pose
from kneematch.matching.template import Template
from kneematch.networks.model_file import Model
from kneematch.networks.template_transfer import transfer_template
from kneematch.networks.two_stage import PosePredictor
from kneematch.solvers.anchored_refinement import refine_anchored
from kneematch.solvers.exhaustive_search import exhaustive_search
from kneematch.solvers.problem import make_problem as make_problem
from kneematch.training.dataset import Films
from kneematch.training.distributed import Group
from kneematch.training.mean_template import mean_template, undo_drift
from kneematch.training.two_phases import TemplatePair


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
        The templates, the fine one possibly replaced by a mean, and poses (N, 2, 4) of the
        annotated fine box.
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

    Args:
        films: the films.
        template: the template.
        networks: predict poses, which are then refined; None searches exhaustively.
        group: the processes that share the films.
    """

    def find(rows: Tensor) -> Tensor:
        halves = films.halves(rows)
        problem = make_problem(halves, template)
        if networks is None:
            solution = exhaustive_search(problem)
        else:
            with torch.no_grad():
                predicted = networks.poses(halves)
            solution = refine_anchored(problem, vector_from_pose(predicted, problem.height_ratio))
        return pose_from_vector(solution.v, problem.height_ratio)

    like = films.halves(torch.zeros(1, dtype=torch.long)).new_zeros(2, 4)
    return group.map_films(len(films), find, like)
