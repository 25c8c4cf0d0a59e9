"""The mean of the knees that were found, in the frame as it was drawn."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kneematch.geometry.frames import within
from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.sampling import sample
from kneematch.matching.local_contrast import detail
from kneematch.matching.template import Template
from kneematch.training.mean_template import as_drawn, mean_template
from kneematch.training.phase_data import InMemory


def standardised(image: Tensor) -> Tensor:
    return (image - image.mean()) / image.std()


def copies(cohort: Any, count: int) -> tuple[InMemory, Tensor]:
    """The annotated half, and where the fine box lies on it, over and over."""
    halves = cohort.half.expand(count, 2, *cohort.half.shape).clone()
    return InMemory(halves), cohort.drawn.fine_pose.expand(count, 2, 4).clone()


def test_the_mean_of_copies_is_the_template_itself(cohort: Any) -> None:
    films, poses = copies(cohort, 19)  # more than are averaged at once
    mean = mean_template(films, cohort.drawn.fine, poses)
    assert torch.allclose(mean.image, standardised(cohort.drawn.fine.image), atol=1e-3)
    wanted = standardised(cohort.drawn.fine.fine_structure)
    assert torch.allclose(mean.fine_structure, wanted, atol=1e-3)
    assert (mean.red, mean.green) == (cohort.drawn.fine.red, cohort.drawn.fine.green)
    assert mean.landmarks == cohort.drawn.fine.landmarks


def test_negatives_are_turned_before_they_count(cohort: Any) -> None:
    films, poses = copies(cohort, 4)
    films.pixels[1] = 0.9 - 0.5 * films.pixels[1]
    films.pixels[2, 0] = 1 - films.pixels[2, 0]
    mean = mean_template(films, cohort.drawn.fine, poses)
    assert torch.allclose(mean.image, standardised(cohort.drawn.fine.image), atol=1e-3)
    wanted = standardised(cohort.drawn.fine.fine_structure)
    assert float((mean.fine_structure * wanted).mean()) > 0.95


def test_the_half_of_the_patches_that_match_worse_is_left_out(cohort: Any) -> None:
    films, poses = copies(cohort, 6)
    noise = torch.rand(3, 2, *cohort.half.shape, generator=torch.Generator().manual_seed(0))
    films.pixels[:3] = noise
    mean = mean_template(films, cohort.drawn.fine, poses)
    assert torch.allclose(mean.image, standardised(cohort.drawn.fine.image), atol=1e-3)


def test_a_mean_is_nearer_to_other_knees_than_one_of_them(cohort: Any) -> None:
    template = cohort.drawn.fine
    mean = mean_template(cohort.films, template, cohort.truth)
    matrices = pose_matrix(cohort.truth, template.aspect, 1.6)
    patches = sample(cohort.films.pixels, matrices, template.size)[1:].flatten(0, 1)

    def alike(image: Tensor) -> float:
        each = [float((standardised(patch) * standardised(image)).mean()) for patch in patches]
        return sum(abs(value) for value in each) / len(each)

    assert alike(mean.image) > alike(template.image) + 0.01


def drifted(cohort: Any, drift: Tensor) -> Template:
    """The template as it would be if its frame had moved on the annotated knee."""
    fine, drawn = cohort.drawn.fine, cohort.drawn.fine_pose
    matrix = pose_matrix(within(drawn, drift, fine.aspect, 1.6), fine.aspect, 1.6)
    images = [sample(image, matrix, fine.size) for image in (cohort.half, detail(cohort.half))]
    return replace(fine, image=images[0], fine_structure=images[1])


def test_a_known_drift_is_undone_on_every_film(cohort: Any) -> None:
    drift = torch.tensor([1.04, 0.05, -0.04, 0.02])  # seen from the frame as it was drawn
    fine, truth = cohort.drawn.fine, cohort.truth
    astray = within(truth, drift.expand_as(truth), fine.aspect, 1.6)
    back = as_drawn(drifted(cohort, drift), cohort.half, cohort.drawn.fine_pose, astray)
    width = 2 * truth[..., :1]
    assert ((back - truth)[..., :3] / width).abs().max() < 0.005
    assert (back - truth)[..., 3].abs().max() < 0.005
    assert ((astray - truth)[..., :3] / width).abs().max() > 0.015


def test_poses_of_a_template_that_did_not_drift_stay(cohort: Any) -> None:
    back = as_drawn(cohort.drawn.fine, cohort.half, cohort.drawn.fine_pose, cohort.truth)
    assert torch.allclose(back, cohort.truth, atol=1e-3)
