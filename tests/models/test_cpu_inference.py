"""CPU inference: it agrees with the plain network, and falls back to float32 where it must."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kneematch.models import cpu_inference
from kneematch.models.cpu_inference import (
    ByteConvolution,
    ByteNetwork,
    byte_network,
    bytes_are_exact,
    cpu_network,
    float_network,
    measured_ranges,
)
from kneematch.models.model_file import Model, builtin_model, load_model
from kneematch.models.two_stage import TwoStageNetworks
from kneematch.paper.network import (
    INPUT,
    PoseNetwork,
    crop_views,
    full_frames,
    network_from_weights,
)
from kneematch.paper.pose import pose_matrix
from kneematch.sampling import transform

needs_bytes = pytest.mark.skipif(not bytes_are_exact(), reason="no exact 8-bit convolutions")


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(builtin_model())


@pytest.fixture(scope="module")
def network(model: Model) -> PoseNetwork:
    return network_from_weights(model.fine)


@pytest.fixture(scope="module")
def quick(model: Model) -> ByteNetwork | PoseNetwork:
    return cpu_network(model.fine, model.ranges["fine"])


@pytest.fixture(scope="module")
def views(knees: Callable) -> Tensor:
    """Two phantoms' halves as the coarse network sees them: (2, 2, 224, 224)."""
    halves = torch.stack([knees(seed).halves for seed in (5, 6)])
    return crop_views(halves, full_frames(halves), 1.6)


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, *INPUT, generator=torch.Generator().manual_seed(0))


def test_float_network_equals_the_plain_network(model: Model, views: Tensor) -> None:
    for weights in (model.coarse, model.fine):
        plain, folded = network_from_weights(weights), float_network(weights)
        for images in (noise(2), views, torch.zeros(1, *INPUT)):
            assert (folded(images) - plain(images)).abs().max() < 1e-4


def test_float_network_copies_its_weights(model: Model) -> None:
    weights = {name: tensor.clone() for name, tensor in model.fine.items()}
    folded = float_network(weights)
    before = folded(noise(1))
    for tensor in weights.values():
        tensor.zero_()
    assert torch.equal(folded(noise(1)), before)


@needs_bytes
def test_cpu_network_in_bytes_agrees_with_the_plain_network(
    network: PoseNetwork, quick: ByteNetwork | PoseNetwork, views: Tensor
) -> None:
    assert isinstance(quick, ByteNetwork)
    assert (quick(views) - network(views)).abs().median() < 0.01
    assert (quick(noise(3)) - network(noise(3))).abs().max() < 0.1


@needs_bytes
def test_byte_network_moves_no_margin_by_half_a_percent(model: Model, knees: Callable) -> None:
    halves = torch.stack([knees(seed).halves for seed in (5, 6, 7)])
    template = model.fine_template
    aspects = model.coarse_template.aspect, template.aspect
    plain = network_from_weights(model.coarse), network_from_weights(model.fine)
    both = {"coarse": model.coarse, "fine": model.fine}
    quick = (byte_network(weights, model.ranges[name]) for name, weights in both.items())
    size = torch.tensor([250.0, 400.0])
    marks = torch.tensor([template.landmarks[f"plateau_{end}"] for end in ("medial", "lateral")])
    here, there = (
        size * transform(pose_matrix(networks.poses(halves), template.aspect, 1.6), marks)
        for networks in (TwoStageNetworks(*plain, *aspects), TwoStageNetworks(*quick, *aspects))
    )
    width = (here[..., 0, :] - here[..., 1, :]).norm(dim=-1, keepdim=True)
    assert ((here - there).norm(dim=-1) / width).max() < 0.005


def test_cpu_network_takes_any_leading_shape(quick: ByteNetwork | PoseNetwork) -> None:
    images = noise(2, 1, 2)
    made = quick(images)
    assert made.shape == (2, 1, 2, 4)
    assert torch.allclose(made[1, 0], quick(images[1, 0]), atol=1e-5)
    assert quick(images[0, 0, 0]).shape == (4,)


def test_cpu_network_leaves_its_input_unchanged(
    quick: ByteNetwork | PoseNetwork, views: Tensor
) -> None:
    before = views.clone()
    quick(views)
    assert torch.equal(views, before)


def test_float_network_does_not_depend_on_the_batch(model: Model, views: Tensor) -> None:
    images = torch.cat([views.flatten(0, 1), noise(3)])
    exact = float_network(model.fine)
    alone = torch.stack([exact(image) for image in images])
    assert (exact(images) - alone).abs().max() < 1e-4


@needs_bytes
def test_byte_network_does_not_depend_on_the_batch(
    quick: ByteNetwork | PoseNetwork, views: Tensor
) -> None:
    images = torch.cat([views.flatten(0, 1), noise(5)])
    alone = torch.cat([quick(image[None]) for image in images])
    assert torch.equal(quick(images), alone)


def test_measured_ranges_cover_nearly_all_activations_of_knees(model: Model, views: Tensor) -> None:
    images = views.flatten(0, 1)
    ranges, network = measured_ranges(model.fine, images), network_from_weights(model.fine)
    assert ranges.keys() == model.ranges["fine"].keys()
    clipped: dict[str, float] = {}
    for name in ("layer1", "layer2", "layer3", "layer4"):
        limit = ranges[f"{name}.1.bn2"][1]
        getattr(network.backbone, name).register_forward_hook(
            lambda _, __, maps, name=name, limit=limit: clipped.update(
                {name: float((maps > 1.001 * limit).float().mean())}
            )
        )
    network(images)
    assert len(clipped) == 4
    assert 0 < max(clipped.values()) < 2e-4


def test_cpu_network_is_float32_where_ranges_were_not_measured(model: Model) -> None:
    assert isinstance(cpu_network(model.fine), PoseNetwork)


def test_cpu_network_is_float32_where_integers_overflow(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halved(self: ByteConvolution, maps: Tensor, shortcut: Tensor) -> Tensor:
        return shortcut.float() + 64 / 2 * 32767

    monkeypatch.setattr(ByteConvolution, "add_relu", halved)
    assert not bytes_are_exact()
    assert not isinstance(cpu_network(model.fine, model.ranges["fine"]), ByteNetwork)


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_cpu_network_is_float32_where_pytorch_has_no_such_operator(
    model: Model, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise error("no such operator")

    monkeypatch.setattr(cpu_inference, "_pack", missing)
    assert not isinstance(cpu_network(model.fine, model.ranges["fine"]), ByteNetwork)
