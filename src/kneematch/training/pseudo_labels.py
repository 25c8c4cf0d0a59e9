"""Where the template lies on the training films, as far as can be told without training."""

from collections.abc import Callable

import torch
from torch import Tensor

from kneematch.geometry.pose import pose_from_vector, vector_from_pose
from kneematch.geometry.split import HALF_ASPECT
from kneematch.matching.template import Template
from kneematch.networks.two_stage import Poses
from kneematch.solvers.anchored_refinement import nearby
from kneematch.solvers.exhaustive_search import search
from kneematch.solvers.problem import problem
from kneematch.training.distributed import Group
from kneematch.training.phase import at_once
from kneematch.training.phase_data import Films


def searched(films: Films, template: Template, *, group: Group) -> Tensor:
    """The poses (N, 2, 4) of lowest energy of all."""

    def answer(rows: Tensor) -> Tensor:
        asked = problem(films.halves(rows), template)
        return pose_from_vector(search(asked).v, asked.height_ratio)

    return _of_all(films, answer, group)


def told(films: Films, template: Template, *, networks: Poses, group: Group) -> Tensor:
    """The poses (N, 2, 4) of low energy near where networks see the template."""

    @torch.no_grad()
    def answer(rows: Tensor) -> Tensor:
        halves = films.halves(rows)
        asked = problem(halves, template)
        start = vector_from_pose(networks.poses(halves), template.aspect / HALF_ASPECT)
        return pose_from_vector(nearby(asked, start).v, asked.height_ratio)

    return _of_all(films, answer, group)


def _of_all(films: Films, answer: Callable[[Tensor], Tensor], group: Group) -> Tensor:
    like = films.halves(torch.zeros(1, dtype=torch.long)).new_zeros(2, 4)
    return group.each(len(films), at_once(like.device), answer, like)
