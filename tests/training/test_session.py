"""From films and an annotated knee to a task: targets, a mean template, and a glance."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.geometry.frames import within
from kneematch.geometry.pose import corner_distance, vector_from_pose
from kneematch.solvers.problem import Solution
from kneematch.training import mean_template, session
from kneematch.training.config import DEFAULT, PAPER
from kneematch.training.distributed import Group
from kneematch.training.phase import Learner
from kneematch.training.session import Session, Settings, find_targets
from kneematch.training.two_phases import Task

DRIFT = torch.tensor([1.03, 0.04, -0.03, 0.01])  # of a mean template's frame


@pytest.fixture
def drifting(cohort: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A search that finds the template as drawn, and any other one a little aside."""
    asked: list[Any] = []

    def find(films: Any, template: Any, *, group: Group) -> Tensor:
        asked.append(template)
        if template is cohort.drawn.fine:
            return cohort.truth.clone()
        return within(cohort.truth, DRIFT.expand_as(cohort.truth), template.aspect, 1.6)

    def nearby(problem: Any, start: Tensor, *, trust: float) -> Solution:
        theta = within(cohort.drawn.fine_pose, DRIFT, problem.template.aspect, 1.6)
        return Solution(vector_from_pose(theta, problem.height_ratio)[None, None], torch.zeros(1))

    monkeypatch.setattr(session, "searched", find)
    monkeypatch.setattr(mean_template, "nearby", nearby)
    return asked


@pytest.mark.parametrize("times", [0, 1, 2])
def test_targets_keep_the_frame_as_drawn_however_often_the_template_is_refined(
    cohort: Any, drifting: list[Any], times: int
) -> None:
    settings = Settings(replace(DEFAULT, mean_template=times), start="none")
    drawn, targets = find_targets(cohort.films, cohort.drawn, cohort.half, settings, Group())
    aspect = cohort.drawn.fine.aspect
    assert float(corner_distance(targets, cohort.truth, aspect, 1.6).max()) < 1e-3
    assert len(drifting) == 1 + times
    assert (drawn.fine is cohort.drawn.fine) == (times == 0)
    assert drawn.fine.landmarks == cohort.drawn.fine.landmarks
    assert drawn.coarse is cohort.drawn.coarse
    assert torch.equal(drawn.fine_pose, cohort.drawn.fine_pose)


@pytest.mark.parametrize("phase", ["coarse", "fine"])
@pytest.mark.parametrize("recipe", [DEFAULT, PAPER], ids=["default", "paper"])
def test_a_glance_shows_the_first_films_and_where_the_network_sees_them(
    cohort: Any, small: Callable, phase: str, recipe: Any
) -> None:
    targets = None if recipe.energy else cohort.truth
    task = Task(cohort.films, cohort.drawn, recipe, targets)
    networks = small(0), small(1)
    ready = Session(task, networks, Settings(recipe), {}, None)
    learner = Learner(networks[phase == "fine"], len(cohort.films), recipe, 0)
    halves, theta, aspect = ready.glance(phase, learner, 3)
    assert torch.equal(halves, cohort.films.pixels[:3])
    assert theta.shape == (3, 2, 4)
    assert aspect == getattr(cohort.drawn, phase).aspect
    more, all_of_them, _ = ready.glance(phase, learner, 99)
    assert len(more) == len(cohort.films)
    assert torch.allclose(all_of_them[:3], theta, atol=1e-5)


def test_what_the_weights_depend_on_is_told_to_a_checkpoint() -> None:
    told = Settings(PAPER, start="none", seed=3, device="cpu").told("films", "template")
    assert told["recipe"]["backbone_rate"] == 1e-5
    assert (told["start"], told["seed"]) == ("none", 3)
    assert (told["films"], told["template"]) == ("films", "template")
