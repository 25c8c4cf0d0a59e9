"""The quick copies of the networks: what they answer, and when which one is chosen."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.view import transform
from kneematch.networks import eight_bits
from kneematch.networks.eight_bits import ByteConvolution, Bytes, exact, in_bytes
from kneematch.networks.fast import examples, fast
from kneematch.networks.folded import Folded, folded
from kneematch.networks.model_file import Model, load_model, shipped_model
from kneematch.networks.pose_network import INPUT, look, network_of, whole
from kneematch.networks.two_stage import Network, TwoPhases

needs_bytes = pytest.mark.skipif(not exact(), reason="8-bit integers overflow on this CPU")


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(shipped_model())


@pytest.fixture(scope="module")
def quick(model: Model) -> Network:
    return fast(model.fine)


@pytest.fixture(scope="module")
def views(knees: Callable) -> Tensor:
    """Two phantoms' halves as the coarse network sees them: (2, 2, 224, 224)."""
    halves = torch.stack([knees(seed).halves for seed in (5, 6)])
    return look(halves, whole(halves), 1.6)


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, *INPUT, generator=torch.Generator().manual_seed(0))


def test_folding_batchnorm_changes_nothing(model: Model, views: Tensor) -> None:
    for weights in (model.coarse, model.fine):
        same, network = folded(weights), network_of(weights)
        for images in (noise(2), views, torch.zeros(1, *INPUT)):
            assert (same(images) - network(images)).abs().max() < 1e-4


def test_a_folded_network_is_a_copy(model: Model) -> None:
    copy = folded(model.fine)
    before = copy(noise(1))
    bias = model.fine["regress.0.bias"]
    kept = bias.clone()
    bias += 1
    assert torch.equal(copy(noise(1)), before)
    bias.copy_(kept)


@needs_bytes
def test_bytes_move_no_vector_by_much(model: Model, quick: Network, views: Tensor) -> None:
    assert isinstance(quick, Bytes)
    eager = network_of(model.fine)
    assert (quick(views) - eager(views)).abs().median() < 0.01
    assert (quick(noise(3)) - eager(noise(3))).abs().max() < 0.1


@needs_bytes
def test_bytes_move_no_margin_by_half_a_percent(
    model: Model, quick: Network, knees: Callable
) -> None:
    halves = torch.stack([knees(seed).halves for seed in (5, 6, 7)])
    template, aspects = (
        model.fine_template,
        (model.coarse_template.aspect, model.fine_template.aspect),
    )
    eager = TwoPhases(network_of(model.coarse), network_of(model.fine), *aspects)
    both = TwoPhases(fast(model.coarse), quick, *aspects)
    size = torch.tensor([250.0, 400.0])
    marks = torch.tensor([template.landmarks[f"plateau_{side}"] for side in ("left", "right")])
    here, there = (
        size * transform(pose_matrix(networks.poses(halves), template.aspect, 1.6), marks)
        for networks in (eager, both)
    )
    width = (here[..., 0, :] - here[..., 1, :]).norm(dim=-1, keepdim=True)
    assert ((here - there).norm(dim=-1) / width).max() < 0.005


def test_any_leading_shape_will_do(quick: Network) -> None:
    images = noise(2, 1, 2)
    made = quick(images)
    assert made.shape == (2, 1, 2, 4)
    assert torch.allclose(made[1, 0], quick(images[1, 0]), atol=1e-5)
    assert quick(images[0, 0, 0]).shape == (4,)


def test_the_number_of_images_makes_no_difference(
    model: Model, quick: Network, views: Tensor
) -> None:
    images = torch.cat([views.flatten(0, 1), noise(3)])
    for network in (quick, folded(model.fine)):
        alone = torch.stack([network(image) for image in images])
        assert (network(images) - alone).abs().max() < 1e-4


def test_images_are_left_as_they_were(quick: Network, views: Tensor) -> None:
    before = views.clone()
    quick(views)
    assert torch.equal(views, before)


def test_a_machine_whose_integers_overflow_gets_float32(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halved(self: ByteConvolution, kept: Tensor, *_: object) -> Tensor:
        return kept + 64 / 2 * 32767

    monkeypatch.setattr(ByteConvolution, "onto", halved)
    assert not exact()
    assert isinstance(fast(model.fine), Folded)


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_a_pytorch_without_these_convolutions_gets_float32(
    model: Model, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def missing(*_: object) -> None:
        raise error("no such operator")

    monkeypatch.setattr(eight_bits, "_pack", missing)
    assert isinstance(fast(model.fine), Folded)


@needs_bytes
def test_a_network_that_bytes_would_spoil_stays_in_float32(
    model: Model, views: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eight_bits, "LEVELS", 3)
    monkeypatch.setattr(eight_bits, "exact", lambda: True)
    assert isinstance(fast(model.fine, views.flatten(0, 1)), Folded)


@needs_bytes
def test_steps_are_the_same_each_time(model: Model) -> None:
    plain, seen = folded(model.fine), examples()
    assert torch.equal(seen, examples())
    one, other = in_bytes(plain, seen), in_bytes(plain, seen)
    assert torch.equal(one(seen), other(seen))


@needs_bytes
def test_bytes_do_not_depend_on_the_images_beside(quick: Network, views: Tensor) -> None:
    images = torch.cat([views.flatten(0, 1), noise(5)])
    alone = torch.cat([quick(image[None]) for image in images])
    assert torch.equal(quick(images), alone)
