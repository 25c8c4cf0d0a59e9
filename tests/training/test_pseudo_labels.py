"""Pseudo-labels, found by a search or by networks, and the loss that teaches them."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.two_stage import NARROW_JITTER, PoseJitter, corner_distance
from kneematch.paper.algorithm1 import PhaseData
from kneematch.paper.pose import relative_pose, vector_from_pose
from kneematch.search.robust_energy import robust_problem
from kneematch.training import pseudo_labels
from kneematch.training.pseudo_labels import (
    HIDDEN,
    NEGATIVES,
    apply_exposures,
    coarse_poses,
    find_poses,
    make_pseudo_labels,
    pose_loss,
    sample_exposures,
)

OFFSET = torch.tensor([0.01, 0.02, -0.01, 0.01])  # a small part of a knee's width
ROWS = torch.tensor([3, 0, 4, 2])
SIZE = (48, 64)


@dataclass(frozen=True)
class NearTruth:
    """Networks that predict the true poses with a small offset."""

    films: Tensor  # (N, 2, H, W)
    truth: Tensor  # (N, 2, 4)

    def poses(self, images: Tensor) -> Tensor:
        rows = [int((self.films == one).flatten(1).all(1).nonzero()) for one in images]
        return self.truth[rows] + OFFSET


@dataclass
class State:
    """What a loss needs of the state of a phase."""

    generator: torch.Generator


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distance(poses: Tensor, phantoms: Any) -> Tensor:
    """Return the mean distance (N, 2) of the corners from the truth, in template widths."""
    return corner_distance(poses, phantoms.truth, phantoms.templates.fine.aspect, 1.6)


def test_find_poses_refines_what_networks_predict(
    phantoms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pseudo_labels, "FILMS_AT_ONCE", 2)
    networks = NearTruth(phantoms.films.pixels, phantoms.truth)
    poses = find_poses(phantoms.films, phantoms.templates.fine, networks)
    problem = robust_problem(phantoms.films.pixels, phantoms.templates.fine)
    before, after = (problem.energy(theta) for theta in (phantoms.truth + OFFSET, poses))
    assert poses.shape == phantoms.truth.shape
    assert bool((after <= before + 1e-5).all())
    assert float(after.mean()) < float(before.mean()) - 0.01
    assert float(distance(poses, phantoms).max()) < 0.1


def test_find_poses_finds_knees_without_networks(phantoms: Any) -> None:
    near = distance(find_poses(phantoms.films, phantoms.templates.fine, None), phantoms) < 0.1
    assert bool(near[0, 1])  # the annotated knee
    assert int(near.sum()) >= 8  # of ten


def test_make_pseudo_labels_finds_the_annotated_frame_with_a_model(phantoms: Any) -> None:
    model = load_model(builtin_model())
    poses = make_pseudo_labels(phantoms.films, phantoms.templates, phantoms.half, model)
    assert float(distance(poses, phantoms).max()) < 0.1
    assert float(distance(poses, phantoms)[0, 1]) < 0.02  # the annotated knee


def test_coarse_poses_lie_around_the_fine_ones_as_annotated(phantoms: Any) -> None:
    drawn = phantoms.templates
    moved = torch.tensor([0.3, 0.1, -0.2, 0.05])
    found = coarse_poses(torch.stack([drawn.fine_pose, moved])[None], drawn)[0]
    assert torch.allclose(found[0], drawn.coarse_pose, atol=1e-6)
    grown = drawn.coarse_pose[0] / drawn.fine_pose[0]
    assert float(found[1, 0]) == pytest.approx(0.3 * float(grown), rel=1e-5)
    assert float(found[1, 3]) == pytest.approx(0.05, rel=1e-5)


def crops(phantoms: Any) -> tuple[Tensor, float]:
    """Crops around the coarse patches, and their aspect."""
    enlarged = coarse_poses(phantoms.truth, phantoms.templates) * torch.tensor([1.2, 1, 1, 1])
    return enlarged, phantoms.templates.coarse.aspect


def test_pose_loss_is_zero_for_the_right_poses(
    phantoms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[Tensor] = []
    jitter, (enlarged, aspect) = pseudo_labels.jitter_pose, crops(phantoms)
    monkeypatch.setattr(
        pseudo_labels, "jitter_pose", lambda *given: wanted.append(jitter(*given)) or wanted[-1]
    )
    data = PhaseData(phantoms.films.halves, 5, phantoms.templates.fine)
    ratio = data.template.aspect / aspect
    loss = pose_loss(phantoms.films, phantoms.truth, enlarged, aspect, NARROW_JITTER)
    values = loss(lambda seen: vector_from_pose(wanted[-1], ratio), data, ROWS, State(generator()))
    assert values.shape == (4,)
    assert float(values.max()) < 1e-4


def test_pose_loss_is_measured_in_template_widths(phantoms: Any) -> None:
    enlarged, aspect = crops(phantoms)
    data = PhaseData(phantoms.films.halves, 5, phantoms.templates.fine)
    nominal = relative_pose(enlarged, phantoms.truth, aspect, 1.6)[ROWS]

    def a_tenth_aside(seen: Tensor) -> Tensor:
        step = torch.zeros_like(nominal)
        step[:, 0, 1] = 0.1 * 2 * nominal[:, 0, 0]  # the left sides alone
        return vector_from_pose(nominal + step, data.template.aspect / aspect)

    still = PoseJitter(0.0, 0.0, 0.0)
    loss = pose_loss(phantoms.films, phantoms.truth, enlarged, aspect, still)
    values = loss(a_tenth_aside, data, ROWS, State(generator()))
    assert torch.allclose(values, torch.tensor(0.1), atol=1e-3)


def crop_images(*shape: int) -> Tensor:
    rows = torch.linspace(0, 1, SIZE[0])[:, None]
    grain = torch.rand(*shape, *SIZE, generator=generator(9))
    return (rows + 0.2 * grain) / 1.2


def test_apply_exposures_keeps_the_shape_and_treats_crops_one_by_one() -> None:
    drawn, seen = sample_exposures(6, SIZE, generator(0)), crop_images(3, 2)
    both = apply_exposures(seen, drawn)
    assert both.shape == seen.shape
    assert torch.equal(both.flatten(0, 1), apply_exposures(seen.flatten(0, 1), drawn))
    same = apply_exposures(seen[:1, :1].expand(3, 2, *SIZE), drawn).flatten(0, 1)
    assert all(not torch.equal(same[0], other) for other in same[1:])
    assert torch.allclose(apply_exposures(300 * seen - 7, drawn), both, atol=1e-4)


def test_sample_exposures_inverts_some_crops_and_covers_parts_of_some() -> None:
    drawn = sample_exposures(4000, (8, 8), generator(0))
    assert float(drawn.negative.float().mean()) == pytest.approx(NEGATIVES, abs=0.02)
    hidden = drawn.hidden.flatten(1).any(1).float().mean()
    assert HIDDEN / 2 < float(hidden) <= HIDDEN + 0.03  # a small one may fall between pixels
    assert not bool(drawn.hidden.flatten(1).all(1).any())
