"""The network is the paper's: its parts, their sizes, and what goes in and comes out."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from kneematch.paper.network import INPUT, PoseNetwork, network_input


@pytest.fixture(scope="module")
def network() -> PoseNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return PoseNetwork().eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 2, *INPUT, generator=torch.Generator().manual_seed(0))


def numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_pose_network_has_the_papers_layers(network: PoseNetwork) -> None:
    assert numbers(network.backbone) == 11_176_512  # torchvision's 11,689,512 less its classifier
    assert numbers(network.reduce) == (512 * 128 + 128) + (128 * 32 + 32)
    assert numbers(network.regress) == (1568 * 512 + 512) + (512 * 32 + 32) + (32 * 4 + 4)
    maps = network.backbone(torch.rand(2, 3, *INPUT))
    assert maps.shape == (2, 512, 7, 7)
    assert network.reduce(maps).shape == (2, 32, 7, 7)
    assert network.reduce(maps).min() >= 0


@torch.no_grad()
def test_pose_network_vectors_lie_in_the_papers_range(network: PoseNetwork, images: Tensor) -> None:
    assert network(images).abs().max() < 3
    extreme = deepcopy(network)
    extreme.regress[-1].weight.zero_()
    extreme.regress[-1].bias.copy_(torch.tensor([0.0, 2.0, -1e3, 1e3]))
    v = extreme(images[0, 0])
    logistic = 1 / (1 + torch.exp(torch.tensor(-2.0)))
    assert v.tolist() == pytest.approx([0, 6 * (float(logistic) - 0.5), -3, 3], abs=1e-5)


@torch.no_grad()
def test_pose_network_ignores_gain_and_offset(network: PoseNetwork, images: Tensor) -> None:
    v = network(images)
    assert v.shape == (2, 2, 4)
    assert torch.allclose(network(images[1, 0]), v[1, 0], atol=1e-5)  # both sides share phi
    assert torch.allclose(network(0.25 * images + 3), v, atol=0.02)
    assert bool(network(torch.zeros(1, *INPUT)).isfinite().all())


def test_network_input_is_the_image_resized_or_a_crop_of_it() -> None:
    y = torch.linspace(-1, 1, 801)[:-1] + 1 / 800
    x = torch.linspace(-1, 1, 501)[:-1] + 1 / 500
    halves = torch.stack([y[:, None].expand(800, 500), x.expand(800, 500)])[None]
    seen = network_input(halves)
    assert seen.shape == (1, 2, *INPUT)
    ramp = (torch.arange(224) + 0.5) / 112 - 1
    inside = slice(2, -2)  # at the edge, sampling meets the black around the image
    poses = torch.tensor([0.5, 0.1, -0.2, 0.0]).expand(1, 2, 4)
    small = network_input(halves, poses, 1.6)
    assert torch.allclose(small[0, 0, :, 100], 0.5 * ramp - 0.2, atol=1e-3)
    assert torch.allclose(small[0, 1, 100], 0.5 * ramp + 0.1, atol=1e-3)
    assert torch.allclose(seen[0, 0, inside, 100], ramp[inside], atol=1e-3)
    assert torch.allclose(seen[0, 1, 100, inside], ramp[inside], atol=1e-3)
