"""CPU inference: it agrees with the plain network, and falls back to float32 where it must."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kneematch.models import cpu_inference
from kneematch.models.cpu_inference import (
    ByteNetwork,
    bytes_are_exact,
    cpu_network,
    float_network,
)
from kneematch.models.model_file import Model, builtin_model, load_model
from kneematch.models.weights import network_from_weights
from kneematch.paper.network import INPUT, PoseNetwork
from kneematch.paper.pose import pose_matrix
from kneematch.sampling import resize, transform

needs_bytes = pytest.mark.skipif(not bytes_are_exact(), reason="no exact 8-bit convolutions")


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(builtin_model())


@pytest.fixture(scope="module")
def quick(model: Model) -> ByteNetwork | PoseNetwork:
    return cpu_network(model.fine, model.ranges["fine"])


@pytest.fixture(scope="module")
def images(knees: Callable) -> Tensor:
    """Two phantoms' halves as the coarse network sees them, and noise: (3, 2, 224, 224)."""
    halves = [resize(knees(seed).halves, INPUT) for seed in (5, 6)]
    noise = torch.rand(2, *INPUT, generator=torch.Generator().manual_seed(0))
    return torch.stack([*halves, noise])


def test_float_network_equals_the_plain_network(model: Model, images: Tensor) -> None:
    plain, folded = network_from_weights(model.fine), float_network(model.fine)
    for given in (images, torch.zeros(1, *INPUT)):
        assert (folded(given) - plain(given)).abs().max() < 1e-4


@needs_bytes
def test_byte_network_moves_no_margin_by_half_a_percent(model: Model, knees: Callable) -> None:
    halves = torch.stack([knees(seed).halves for seed in (5, 6, 7)])
    template, size = model.fine_template, torch.tensor([250.0, 400.0])
    marks = torch.tensor([template.landmarks[f"plateau_{end}"] for end in ("medial", "lateral")])
    here, there = (
        size * transform(pose_matrix(networks.poses(halves), template.aspect, 1.6), marks)
        for networks in (model.networks(float32=True), model.networks())
    )
    width = (here[..., 0, :] - here[..., 1, :]).norm(dim=-1, keepdim=True)
    assert ((here - there).norm(dim=-1) / width).max() < 0.005


def test_cpu_network_takes_any_leading_shape_and_does_not_depend_on_the_batch(
    quick: ByteNetwork | PoseNetwork, images: Tensor
) -> None:
    before, together = images.clone(), quick(images[:, None])
    assert together.shape == (3, 1, 2, 4)
    alone = torch.stack([quick(image) for image in images.flatten(0, 1)]).reshape(3, 1, 2, 4)
    assert (together - alone).abs().max() <= (0 if isinstance(quick, ByteNetwork) else 1e-4)
    assert torch.equal(images, before)


def test_cpu_network_is_float32_where_8_bits_fail(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halved(maps: Tensor, shortcut: Tensor) -> Tensor:
        """Return what a CPU without VNNI makes of the largest products."""
        return shortcut.float() + 64 / 2 * 32767

    monkeypatch.setattr(cpu_inference, "byte_convolution", lambda *_, **__: halved)
    assert not bytes_are_exact()
    assert isinstance(cpu_network(model.fine, model.ranges["fine"]), PoseNetwork)
