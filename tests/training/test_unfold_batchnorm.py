"""Tests of folded BatchNorm layers: outputs stay, and training mode agrees with evaluation mode."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kneematch.geometry.frames import compose_pose
from kneematch.networks.pose_network import PoseNetwork, crop_views, full_frames, standardize
from kneematch.training.distributed import Group
from kneematch.training.initial_weights import unfold_batchnorm
from kneematch.training.phase import PhaseData

LAYER4 = frozenset({"layer4.0.bn1.weight", "layer4.0.bn2.weight", "layer4.0.downsample.1.weight"})
LAYER4 |= frozenset({"layer4.1.bn1.weight", "layer4.1.bn2.weight"})


@pytest.fixture
def data(phantoms: Any) -> PhaseData:
    frames = full_frames(phantoms.films.pixels)
    return PhaseData(phantoms.films, phantoms.templates.coarse, 1.6, frames, paper_energy=True)


@pytest.fixture
def folded() -> PoseNetwork:
    """A network whose BatchNorm layers have a bias alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = PoseNetwork().eval()
        for layer in network.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.uniform_(layer.bias, -0.5, 0.5)
    return network


def features(network: PoseNetwork, data: PhaseData) -> Tensor:
    """Return the maps of layer 3 of all films in one batch."""
    views = crop_views(data.films.halves(torch.arange(5)), data.frames, 1.6)
    views = standardize(views).reshape(-1, 1, 224, 224).expand(-1, 3, -1, -1)
    backbone = network.backbone
    maps = nn.functional.max_pool2d(backbone.bn1(backbone.conv1(views)).relu(), 3, 2, 1)
    return backbone.layer3(backbone.layer2(backbone.layer1(maps)))


@torch.no_grad()
def test_unfold_batchnorm_keeps_the_outputs_in_evaluation_mode(
    folded: PoseNetwork, data: PhaseData
) -> None:
    before = data.predict(folded, data.films.halves(torch.arange(5)), data.frames)
    unfold_batchnorm(folded, data, frozenset(), Group())
    after = data.predict(folded, data.films.halves(torch.arange(5)), data.frames)
    assert torch.allclose(before, after, atol=1e-4)
    assert not torch.allclose(folded.backbone.bn1.running_var, torch.ones(64), rtol=0.1)


@torch.no_grad()
def test_unfold_batchnorm_makes_training_mode_agree_with_evaluation_mode(
    folded: PoseNetwork, data: PhaseData
) -> None:
    def correlation() -> float:
        here = features(folded.eval(), data)
        there = features(folded.train(), data)
        return float(torch.corrcoef(torch.stack([here.flatten(), there.flatten()]))[0, 1])

    before = correlation()
    for layer in folded.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()  # training mode has updated them
    unfold_batchnorm(folded, data, frozenset(), Group())
    assert before < 0.9
    assert correlation() > 0.99


@torch.no_grad()
def test_unfold_batchnorm_leaves_random_and_trained_layers_alone(
    folded: PoseNetwork, data: PhaseData
) -> None:
    trained = folded.backbone.layer1[0].bn1
    trained.running_mean.fill_(0.25)
    unfold_batchnorm(folded, data, LAYER4, Group())
    assert torch.equal(trained.running_mean, torch.full((64,), 0.25))
    assert torch.equal(trained.weight, torch.ones(64))
    assert torch.equal(folded.backbone.layer4[1].bn2.running_var, torch.ones(512))
    assert not torch.equal(folded.backbone.layer3[1].bn2.running_var, torch.ones(256))


@torch.no_grad()
def test_unfold_batchnorm_takes_the_statistics_of_the_views(
    folded: PoseNetwork, data: PhaseData
) -> None:
    zoomed = torch.tensor([0.5, 0.1, 0.1, 0.0]).expand_as(data.frames)
    frames = compose_pose(data.frames, zoomed, 1.6, 1.6)
    unfold_batchnorm(
        folded,
        PhaseData(data.films, data.template, 1.6, frames, paper_energy=True),
        frozenset(),
        Group(),
    )
    views = standardize(crop_views(data.films.halves(torch.arange(5)), frames, 1.6))
    maps = folded.backbone.conv1(views.reshape(-1, 1, 224, 224).expand(-1, 3, -1, -1))
    assert torch.allclose(folded.backbone.bn1.running_mean, maps.mean((0, 2, 3)), atol=1e-4)
    variance = maps.var((0, 2, 3), correction=0)
    assert torch.allclose(folded.backbone.bn1.running_var, variance, rtol=1e-3)
