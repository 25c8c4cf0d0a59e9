"""Where the template lies on the training films: searched, or told by networks."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.geometry.pose import corner_distance, vector_from_pose
from kneematch.solvers.problem import problem
from kneematch.training import distributed as processes
from kneematch.training import phase
from kneematch.training.distributed import Group
from kneematch.training.pseudo_labels import searched, told

OFF = torch.tensor([0.01, 0.02, -0.01, 0.01])  # a small part of a knee's width


@dataclass(frozen=True)
class Saying:
    """Networks that say where knees are, a little off."""

    films: Tensor  # (N, 2, H, W)
    poses_there: Tensor  # (N, 2, 4)

    def poses(self, halves: Tensor) -> Tensor:
        rows = [int((self.films == one).flatten(1).all(1).nonzero()) for one in halves]
        return self.poses_there[rows]


def apart(poses: Tensor, cohort: Any) -> Tensor:
    """How far corners are from the truth, in widths: (N, 2)."""
    return corner_distance(poses, cohort.truth, cohort.drawn.fine.aspect, 1.6)


def test_what_networks_say_is_sharpened_and_trusted(cohort: Any) -> None:
    networks = Saying(cohort.films.pixels, cohort.truth + OFF)
    poses = told(cohort.films, cohort.drawn.fine, networks=networks, group=Group())
    asked = problem(cohort.films.pixels, cohort.drawn.fine)
    before, after = (
        asked.energy(vector_from_pose(theta, asked.height_ratio))
        for theta in (cohort.truth + OFF, poses)
    )
    assert poses.shape == cohort.truth.shape
    assert bool((after <= before + 1e-5).all())
    assert float(after.mean()) < float(before.mean()) - 0.01
    assert float(apart(poses, cohort).max()) < 0.1


def test_a_search_finds_the_knees_without_being_told(cohort: Any) -> None:
    poses = searched(cohort.films, cohort.drawn.fine, group=Group())
    near = apart(poses, cohort) < 0.1
    assert bool(near[0, 1])  # the knee that was annotated
    assert int(near.sum()) >= 8  # of ten


def test_films_are_shared_between_processes(cohort: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase, "SHARPENED_AT_ONCE", 2)
    networks = Saying(cohort.films.pixels, cohort.truth + OFF)

    def ask(group: Group) -> Tensor:
        return told(cohort.films, cohort.drawn.fine, networks=networks, group=group)

    alone = ask(Group())
    monkeypatch.setattr(processes.dist, "all_reduce", lambda values: None)
    shares = [ask(Group(rank, 2)) for rank in (0, 1)]
    assert [int(share.any(-1).any(-1).sum()) for share in shares] == [3, 2]
    assert torch.equal(shares[0] + shares[1], alone)
