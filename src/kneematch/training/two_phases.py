"""Algorithm 2: first T in the halves, then T~ in the enlarged patches (paper, Sect. 5)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.frames import NARROW, WIDE, enlarged, seen_from, within
from kneematch.geometry.split import HALF_ASPECT
from kneematch.matching.template import Template
from kneematch.networks.pose_network import PoseNetwork, whole
from kneematch.networks.two_stage import ENLARGE
from kneematch.training.config import Recipe
from kneematch.training.distributed import Group
from kneematch.training.losses import Objective, distance_from, energy_of
from kneematch.training.phase import Learner, at_once, train_phase
from kneematch.training.phase_data import Films, Lesson

PHASES: Final = ("coarse", "fine")


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Both templates, and where they lie in the half that they were drawn on."""

    coarse: Template  # T
    fine: Template  # T~
    coarse_pose: Tensor  # (4,)
    fine_pose: Tensor  # (4,)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """All that training depends on and that does not change."""

    films: Films
    drawn: Drawn
    recipe: Recipe
    targets: Tensor | None  # (N, 2, 4), poses of the fine template, where the recipe learns them
    seed: int = 0


def first_phase(task: Task) -> tuple[Lesson, Objective]:
    """Look for T in the halves."""
    halves = task.films.halves(torch.zeros(1, dtype=torch.long))
    frames = whole(halves).expand(len(task.films), -1, -1)
    lesson = Lesson(task.films, task.drawn.coarse, HALF_ASPECT, frames, printed=task.recipe.printed)
    if task.targets is None:
        return lesson, energy_of(task.recipe.shift)
    return lesson, distance_from(around(task.targets, task.drawn), WIDE)


def second_phase(task: Task, coarse: PoseNetwork, group: Group) -> tuple[Lesson, Objective]:
    """Look for T~ in the patches that the coarse network finds, enlarged."""
    first, _ = first_phase(task)
    if task.targets is None:
        patches, objective = found(coarse, first, group), energy_of(task.recipe.shift)
    else:
        patches = around(task.targets, task.drawn)
        objective = distance_from(task.targets, NARROW)
    fine, aspect = task.drawn.fine, task.drawn.coarse.aspect
    frames = enlarged(patches, ENLARGE)
    return replace(first, template=fine, aspect=aspect, frames=frames), objective


def around(targets: Tensor, drawn: Drawn) -> Tensor:
    """Where T lies, (N, 2, 4), around the poses of T~, as it was drawn."""
    coarse = seen_from(drawn.fine_pose, drawn.coarse_pose, drawn.fine.aspect, HALF_ASPECT)
    return within(targets, coarse.to(targets).expand_as(targets), drawn.fine.aspect, HALF_ASPECT)


@torch.no_grad()
def found(network: PoseNetwork, lesson: Lesson, group: Group) -> Tensor:
    """Where a network sees the template on every film: theta (N, 2, 4)."""
    network.eval()

    def answer(rows: Tensor) -> Tensor:
        halves = lesson.films.halves(rows)
        return lesson.answer(network, halves, lesson.of(lesson.frames, rows))

    like = lesson.frames.new_zeros(2, 4)
    return group.each(len(lesson.films), at_once(like.device), answer, like)


def train(
    task: Task,
    networks: tuple[PoseNetwork, PoseNetwork],
    group: Group,
    report: Callable[[str, Learner], None] = lambda phase, learner: None,
    restore: Callable[[str, Learner], None] = lambda phase, learner: None,
) -> None:
    """Run Algorithm 2 on both networks; restore puts a learner back where it was stopped."""
    coarse, fine = networks

    def teach(phase: str, learner: Learner, lesson: Lesson, objective: Objective) -> None:
        restore(phase, learner)
        tell = partial(report, phase)
        train_phase(learner, lesson, objective, task.recipe, group, tell)

    count, recipe, seed = len(task.films), task.recipe, task.seed
    teach(PHASES[0], Learner(coarse, count, recipe, seed), *first_phase(task))
    teach(PHASES[1], Learner(fine, count, recipe, seed + 1), *second_phase(task, coarse, group))
