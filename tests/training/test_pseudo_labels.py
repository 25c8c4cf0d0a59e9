"""Tests of the pseudo-labels, found by a search or by networks."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.models.model_file import builtin_model, load_model
from kneematch.paper.pose import corner_distance, vector_from_pose
from kneematch.paper.problem import make_problem
from kneematch.training import distributed
from kneematch.training.distributed import Group
from kneematch.training.pseudo_labels import find_poses, make_pseudo_labels

OFFSET = torch.tensor([0.01, 0.02, -0.01, 0.01])  # a small part of a knee's width


@dataclass(frozen=True)
class NearTruth:
    """Networks that predict the true poses with a small offset."""

    films: Tensor  # (N, 2, H, W)
    truth: Tensor  # (N, 2, 4)

    def poses(self, halves: Tensor) -> Tensor:
        rows = [int((self.films == one).flatten(1).all(1).nonzero()) for one in halves]
        return self.truth[rows] + OFFSET


def distance(poses: Tensor, phantoms: Any) -> Tensor:
    """Return the mean distance (N, 2) of the corners from the truth, in template widths."""
    return corner_distance(poses, phantoms.truth, phantoms.templates.fine.aspect, 1.6)


def test_find_poses_refines_what_networks_predict(phantoms: Any) -> None:
    networks = NearTruth(phantoms.films.pixels, phantoms.truth)
    poses = find_poses(phantoms.films, phantoms.templates.fine, networks, Group())
    problem = make_problem(phantoms.films.pixels, phantoms.templates.fine)
    before, after = (
        problem.energy(vector_from_pose(theta, problem.height_ratio))
        for theta in (phantoms.truth + OFFSET, poses)
    )
    assert poses.shape == phantoms.truth.shape
    assert bool((after <= before + 1e-5).all())
    assert float(after.mean()) < float(before.mean()) - 0.01
    assert float(distance(poses, phantoms).max()) < 0.1


def test_find_poses_finds_knees_without_networks(phantoms: Any) -> None:
    poses = find_poses(phantoms.films, phantoms.templates.fine, None, Group())
    near = distance(poses, phantoms) < 0.1
    assert bool(near[0, 1])  # the annotated knee
    assert int(near.sum()) >= 8  # of ten


def test_find_poses_shares_films_between_processes(
    phantoms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "FILMS_AT_ONCE", 2)
    networks = NearTruth(phantoms.films.pixels, phantoms.truth)
    template = phantoms.templates.fine
    alone = find_poses(phantoms.films, template, networks, Group())
    monkeypatch.setattr(distributed.dist, "all_reduce", lambda values: None)
    parts = [find_poses(phantoms.films, template, networks, Group(rank, 2)) for rank in (0, 1)]
    assert [int(part.any(-1).any(-1).sum()) for part in parts] == [3, 2]
    assert torch.equal(parts[0] + parts[1], alone)


def test_make_pseudo_labels_finds_the_annotated_frame_with_a_model(phantoms: Any) -> None:
    model = load_model(builtin_model())
    poses = make_pseudo_labels(phantoms.films, phantoms.templates, phantoms.half, model, Group())
    assert float(distance(poses, phantoms).max()) < 0.1
    assert float(distance(poses, phantoms)[0, 1]) < 0.02  # the annotated knee
