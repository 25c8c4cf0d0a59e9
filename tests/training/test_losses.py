"""Tests of the training losses, and of the random exposures of the second."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kneematch.paper.network import crop_views, full_frames
from kneematch.paper.pose import NARROW_JITTER, PoseJitter, relative_pose, vector_from_pose
from kneematch.paper.problem import make_problem, pyramid
from kneematch.training import losses as module
from kneematch.training.losses import (
    HIDDEN,
    NEGATIVES,
    apply_exposures,
    draw_exposures,
    energy_loss,
    pose_loss,
)
from kneematch.training.phase import Loss, PhaseData
from kneematch.training.two_phases import coarse_poses

ROWS = torch.tensor([3, 0, 4, 2])
SIZE = (48, 64)  # of views


@pytest.fixture
def half_data(phantoms: Any) -> PhaseData:
    frames = full_frames(phantoms.films.pixels)
    return PhaseData(phantoms.films, phantoms.templates.coarse, 1.6, frames, paper_energy=True)


@pytest.fixture
def patch_data(phantoms: Any) -> PhaseData:
    """Views that are rotated and off the middle."""
    frames = coarse_poses(phantoms.truth, phantoms.templates) + torch.tensor(
        [0.1, 0.03, -0.02, 0.3]
    )
    drawn = phantoms.templates
    return PhaseData(phantoms.films, drawn.fine, drawn.coarse.aspect, frames, paper_energy=True)


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def losses(phantoms: Any) -> dict[str, Loss]:
    return {"energy": energy_loss(0.1), "distance": pose_loss(phantoms.truth, NARROW_JITTER)}


@pytest.mark.parametrize("name", ["energy", "distance"])
def test_loss_of_a_film_does_not_depend_on_who_computes_the_rest_of_the_batch(
    phantoms: Any, small_network: Callable, patch_data: PhaseData, name: str
) -> None:
    network, loss = small_network(0), losses(phantoms)[name]
    with torch.no_grad():
        together = loss(network, patch_data, ROWS, torch.arange(4), generator())
        after = generator()
        for k in range(4):
            local = torch.tensor([k])
            alone = loss(network, patch_data, ROWS, local, after := generator())
            assert torch.allclose(alone, together[k : k + 1], rtol=1e-4)
        shared = loss(network, patch_data, ROWS, torch.tensor([1, 3]), generator())
    assert torch.allclose(shared, together[1::2], rtol=1e-4)
    assert together.shape == (4,)
    assert len(set(together.tolist())) == 4
    # The random numbers of the next batch do not depend on it either.
    whole_batch = generator()
    with torch.no_grad():
        loss(network, patch_data, ROWS, torch.arange(4), whole_batch)
    assert torch.equal(after.get_state(), whole_batch.get_state())


def test_energy_loss_is_the_energy_of_the_predicted_pose(
    phantoms: Any, small_network: Callable, half_data: PhaseData
) -> None:
    network, halves = small_network(0), phantoms.films.pixels[ROWS]
    with torch.no_grad():
        found = energy_loss(0.0)(network, half_data, ROWS, torch.arange(4), generator())
        v = network(crop_views(halves, full_frames(halves), 1.6))
        wanted = make_problem(halves, half_data.template, paper=True).energy(v)
    assert torch.allclose(found, wanted, rtol=1e-5)


@pytest.fixture
def drawn_frames(
    small_network: Callable, patch_data: PhaseData, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Loss], list[Tensor]]:
    """The poses of the views that a loss draws in 50 steps."""

    def draw(loss: Loss) -> list[Tensor]:
        seen: list[Tensor] = []
        monkeypatch.setattr(
            PhaseData,
            "predict",
            lambda self, network, halves, frames: seen.append(frames) or frames,
        )
        source = generator()
        for _ in range(50):
            loss(small_network(0), patch_data, ROWS, torch.arange(4), source)
        return seen

    return draw


def test_energy_loss_translates_views_by_up_to_the_given_fraction(
    patch_data: PhaseData, drawn_frames: Callable[[Loss], list[Tensor]]
) -> None:
    frames = patch_data.frames[ROWS]
    moves = torch.stack(
        [
            relative_pose(frames, now, patch_data.aspect, 1.6)
            for now in drawn_frames(energy_loss(0.1))
        ]
    )
    assert torch.allclose(moves[..., 0], torch.ones(()), atol=1e-5)
    assert torch.allclose(moves[..., 3], torch.zeros(()), atol=1e-5)
    largest = (moves[..., 1:3] / 2).abs().flatten(0, 2).amax(0)  # of a view, which is 2 wide
    assert bool((largest <= 0.1 + 1e-6).all())
    assert bool((largest > 0.095).all())


def test_energy_loss_zooms_views_by_up_to_the_given_fraction(
    patch_data: PhaseData, drawn_frames: Callable[[Loss], list[Tensor]]
) -> None:
    before = patch_data.frames[ROWS][..., 0]
    zoom = torch.stack([now[..., 0] / before for now in drawn_frames(energy_loss(0.0, 0.25))])
    assert 1.24 < float(zoom.max()) <= 1.2501
    assert 0.7999 <= float(zoom.min()) < 0.81


def test_energy_loss_of_smaller_images_is_that_of_the_reduced_problem(
    phantoms: Any, small_network: Callable, half_data: PhaseData
) -> None:
    network, halves = small_network(0), phantoms.films.pixels[ROWS]
    small = replace(half_data, shrink=4)
    with torch.no_grad():
        found = energy_loss(0.0)(network, small, ROWS, torch.arange(4), generator())
        v = network(crop_views(halves, full_frames(halves), 1.6))
        whole = make_problem(halves, half_data.template, paper=True)
        wanted = pyramid(whole, (4,))[4].energy(v)
    assert torch.allclose(found, wanted, rtol=1e-5)
    assert not torch.allclose(found, whole.energy(v), rtol=1e-2)


def test_pose_loss_is_zero_for_the_right_poses(
    phantoms: Any, patch_data: PhaseData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def knows(views: Tensor) -> Tensor:
        return vector_from_pose(wanted[-1], ratio)

    wanted: list[Tensor] = []
    jitter, ratio = module.jitter_pose, patch_data.height_ratio
    monkeypatch.setattr(
        module, "jitter_pose", lambda *given: wanted.append(jitter(*given)) or wanted[-1]
    )
    loss = pose_loss(phantoms.truth, NARROW_JITTER)
    values = loss(knows, patch_data, ROWS, torch.arange(4), generator())
    assert float(values.max()) < 1e-4


def test_pose_loss_is_measured_in_template_widths(phantoms: Any, patch_data: PhaseData) -> None:
    still, drawn = PoseJitter(0.0, 0.0, 0.0), phantoms.templates
    data = PhaseData(
        phantoms.films,
        drawn.fine,
        drawn.coarse.aspect,
        coarse_poses(phantoms.truth, drawn) * torch.tensor([1.2, 1, 1, 1]),
        paper_energy=False,
    )
    nominal = relative_pose(data.frames, phantoms.truth, data.aspect, 1.6)[ROWS]

    def a_tenth_aside(views: Tensor) -> Tensor:
        step = torch.zeros_like(nominal)
        step[:, 0, 1] = 0.1 * 2 * nominal[:, 0, 0]  # the left sides alone
        return vector_from_pose(nominal + step, data.height_ratio)

    loss = pose_loss(phantoms.truth, still)(a_tenth_aside, data, ROWS, torch.arange(4), generator())
    assert torch.allclose(loss, torch.tensor(0.1), atol=1e-3)


def views(*shape: int) -> Tensor:
    rows = torch.linspace(0, 1, SIZE[0])[:, None]
    grain = torch.rand(*shape, *SIZE, generator=generator(9))
    return (rows + 0.2 * grain) / 1.2


def test_exposures_of_some_views_are_those_of_all() -> None:
    drawn, some = draw_exposures(6, SIZE, generator(0)), torch.tensor([4, 1, 4])
    for each in fields(drawn):
        assert torch.equal(getattr(drawn[some], each.name), getattr(drawn, each.name)[some])
    seen = views(6)
    assert torch.allclose(
        apply_exposures(seen[some], drawn[some]), apply_exposures(seen, drawn)[some], atol=1e-6
    )


def test_apply_exposures_keeps_the_shape_and_treats_views_one_by_one() -> None:
    drawn, seen = draw_exposures(6, SIZE, generator(0)), views(3, 2)
    both = apply_exposures(seen, drawn)
    assert both.shape == seen.shape
    assert torch.equal(both.flatten(0, 1), apply_exposures(seen.flatten(0, 1), drawn))
    same = apply_exposures(seen[:1, :1].expand(3, 2, *SIZE), drawn).flatten(0, 1)
    assert all(not torch.equal(same[0], other) for other in same[1:])


def test_draw_exposures_inverts_some_views_and_covers_parts_of_some() -> None:
    drawn = draw_exposures(4000, (8, 8), generator(0))
    assert float(drawn.negative.float().mean()) == pytest.approx(NEGATIVES, abs=0.02)
    hidden = drawn.hidden.flatten(1).any(1).float().mean()
    assert HIDDEN / 2 < float(hidden) <= HIDDEN + 0.03  # a small one may fall between pixels
    assert not bool(drawn.hidden.flatten(1).all(1).any())


def test_apply_exposures_swaps_bright_and_dark_of_negatives() -> None:
    drawn, seen = draw_exposures(200, SIZE, generator(0)), views(200)
    after = apply_exposures(seen, drawn)

    def alike(one: Tensor, other: Tensor) -> Tensor:
        pair = [each - each.mean((-2, -1), keepdim=True) for each in (one, other)]
        return (pair[0] * pair[1]).sum((-2, -1))

    turned = alike(after, seen) < 0
    agree = turned == drawn.negative.flatten()
    assert float(agree.float().mean()) > 0.97  # a large cover may outweigh the rest


@pytest.mark.parametrize("grey", [0.0, 1.0, 0.37])
def test_apply_exposures_of_a_constant_view_is_finite(grey: float) -> None:
    drawn = draw_exposures(50, SIZE, generator(0))
    flat = torch.full((50, *SIZE), grey)
    assert bool(apply_exposures(flat, drawn).isfinite().all())


def test_apply_exposures_does_not_depend_on_the_units_of_the_view() -> None:
    drawn, seen = draw_exposures(6, SIZE, generator(0)), views(6)
    assert torch.allclose(
        apply_exposures(300 * seen - 7, drawn), apply_exposures(seen, drawn), atol=1e-4
    )
