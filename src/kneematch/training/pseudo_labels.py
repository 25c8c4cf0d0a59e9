"""Pseudo-labels: poses of the fine template on the training films, found without labels."""

import torch
from torch import Tensor

from kneematch.models.model_file import Model
from kneematch.models.template_transfer import transfer_template
from kneematch.models.two_stage import TwoStageNetworks
from kneematch.paper.pose import pose_from_vector, vector_from_pose
from kneematch.paper.problem import make_problem
from kneematch.paper.template import Template
from kneematch.search.anchored_refinement import refine_anchored
from kneematch.search.exhaustive_search import exhaustive_search
from kneematch.training.dataset import Films
from kneematch.training.distributed import Group
from kneematch.training.two_phases import TemplatePair


def make_pseudo_labels(
    films: Films, templates: TemplatePair, half: Tensor, model: Model | None, group: Group
) -> Tensor:
    """Return the poses (N, 2, 4) of the fine template on all films.

    Args:
        films: the training films.
        templates: the annotated templates.
        half: (H, W), the half image that was annotated.
        model: a trained model that guides the search; None searches exhaustively.
        group: the processes that train together.
    """
    networks = None
    if model is not None:
        networks = transfer_template(model.networks(str(half.device)), half, templates.fine_pose)
    return find_poses(films, templates.fine, networks, group)


def find_poses(
    films: Films, template: Template, networks: TwoStageNetworks | None, group: Group
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
