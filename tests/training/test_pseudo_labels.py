"""Tests of the pseudo-labels, found by a search or by networks, and of the mean template."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.geometry.frames import compose_pose
from kneematch.geometry.pose import corner_distance, pose_matrix, vector_from_pose
from kneematch.geometry.sampling import sample
from kneematch.matching.local_contrast import normalize_local_contrast
from kneematch.matching.template import Template
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.solvers.problem import make_problem
from kneematch.training import distributed
from kneematch.training.dataset import FilmsInMemory
from kneematch.training.distributed import Group
from kneematch.training.pseudo_labels import (
    find_poses,
    make_pseudo_labels,
    mean_template,
    undo_drift,
)

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


@pytest.mark.parametrize("repeats", [0, 1, 2])
def test_make_pseudo_labels_keeps_the_annotated_frame_however_often_the_template_is_averaged(
    phantoms: Any, repeats: int
) -> None:
    given = phantoms.templates
    model = load_model(shipped_model())
    films, half = phantoms.films, phantoms.half
    templates, poses = make_pseudo_labels(films, given, half, model, Group(), repeats=repeats)
    assert float(distance(poses, phantoms).max()) < 0.1
    assert float(distance(poses, phantoms)[0, 1]) < 0.02  # the annotated knee
    assert (templates.fine is given.fine) == (repeats == 0)
    assert templates.fine.landmarks == given.fine.landmarks
    assert templates.coarse is given.coarse
    assert torch.equal(templates.fine_pose, given.fine_pose)


def standardised(image: Tensor) -> Tensor:
    return (image - image.mean()) / image.std()


def copies(phantoms: Any, count: int) -> tuple[FilmsInMemory, Tensor]:
    """The annotated half, and where the fine box lies on it, over and over."""
    halves = phantoms.half.expand(count, 2, *phantoms.half.shape).clone()
    return FilmsInMemory(halves), phantoms.templates.fine_pose.expand(count, 2, 4).clone()


def test_mean_template_of_copies_is_the_template_itself(phantoms: Any) -> None:
    films, poses = copies(phantoms, 19)  # more than are averaged at once
    mean = mean_template(films, phantoms.templates.fine, poses)
    assert torch.allclose(mean.image, standardised(phantoms.templates.fine.image), atol=1e-3)
    wanted = standardised(phantoms.templates.fine.local_contrast)
    assert torch.allclose(mean.local_contrast, wanted, atol=1e-3)
    assert (mean.red, mean.green) == (phantoms.templates.fine.red, phantoms.templates.fine.green)
    assert mean.landmarks == phantoms.templates.fine.landmarks


def test_mean_template_inverts_negatives(phantoms: Any) -> None:
    films, poses = copies(phantoms, 4)
    films.pixels[1] = 0.9 - 0.5 * films.pixels[1]
    films.pixels[2, 0] = 1 - films.pixels[2, 0]
    mean = mean_template(films, phantoms.templates.fine, poses)
    assert torch.allclose(mean.image, standardised(phantoms.templates.fine.image), atol=1e-3)
    wanted = standardised(phantoms.templates.fine.local_contrast)
    assert float((mean.local_contrast * wanted).mean()) > 0.95


def test_mean_template_leaves_out_the_worse_half_of_the_patches(phantoms: Any) -> None:
    films, poses = copies(phantoms, 6)
    noise = torch.rand(3, 2, *phantoms.half.shape, generator=torch.Generator().manual_seed(0))
    films.pixels[:3] = noise
    mean = mean_template(films, phantoms.templates.fine, poses)
    assert torch.allclose(mean.image, standardised(phantoms.templates.fine.image), atol=1e-3)


def test_mean_template_is_more_like_other_knees_than_a_single_one(phantoms: Any) -> None:
    template = phantoms.templates.fine
    mean = mean_template(phantoms.films, template, phantoms.truth)
    matrices = pose_matrix(phantoms.truth, template.aspect, 1.6)
    patches = sample(phantoms.films.pixels, matrices, template.size)[1:].flatten(0, 1)

    def alike(image: Tensor) -> float:
        each = [float((standardised(patch) * standardised(image)).mean()) for patch in patches]
        return sum(abs(value) for value in each) / len(each)

    assert alike(mean.image) > alike(template.image) + 0.01


def drifted(phantoms: Any, drift: Tensor) -> Template:
    """The template as it would be if its frame had moved on the annotated knee."""
    fine, drawn = phantoms.templates.fine, phantoms.templates.fine_pose
    matrix = pose_matrix(compose_pose(drawn, drift, fine.aspect, 1.6), fine.aspect, 1.6)
    images = [
        sample(image, matrix, fine.size)
        for image in (phantoms.half, normalize_local_contrast(phantoms.half))
    ]
    return replace(fine, image=images[0], local_contrast=images[1])


def test_undo_drift_corrects_a_known_drift_on_every_film(phantoms: Any) -> None:
    drift = torch.tensor([1.04, 0.05, -0.04, 0.02])  # seen from the frame as it was drawn
    fine, truth = phantoms.templates.fine, phantoms.truth
    astray = compose_pose(truth, drift.expand_as(truth), fine.aspect, 1.6)
    back = undo_drift(drifted(phantoms, drift), phantoms.half, phantoms.templates.fine_pose, astray)
    width = 2 * truth[..., :1]
    assert ((back - truth)[..., :3] / width).abs().max() < 0.005
    assert (back - truth)[..., 3].abs().max() < 0.005
    assert ((astray - truth)[..., :3] / width).abs().max() > 0.015


def test_undo_drift_keeps_poses_of_a_template_that_did_not_drift(phantoms: Any) -> None:
    back = undo_drift(
        phantoms.templates.fine, phantoms.half, phantoms.templates.fine_pose, phantoms.truth
    )
    assert torch.allclose(back, phantoms.truth, atol=1e-3)
