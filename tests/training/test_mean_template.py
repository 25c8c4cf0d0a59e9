"""Tests of the mean template: which patches enter it, and how its drift is undone."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kneematch.geometry.frames import compose_pose
from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.sampling import sample
from kneematch.matching.local_contrast import normalize_local_contrast
from kneematch.matching.template import Template
from kneematch.training.dataset import FilmsInMemory
from kneematch.training.mean_template import mean_template, undo_drift


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
