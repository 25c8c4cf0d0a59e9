"""Tests of folded BatchNorm layers: outputs stay, and training mode agrees with evaluation mode."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kneematch.training.distributed import Group
from kneematch.training.phase import PhaseData, PhaseState
from torch import Tensor, nn

from kneematch.paper.network import PoseNetwork, full_frames
from kneematch.training.dataset import FilmsInMemory
from partial_weights import learn_at_the_heads_rate, unfold_batchnorm

LAYER4 = frozenset(
    f"layer4.{name}"
    for name in (
        "0.bn1.weight",
        "0.bn2.weight",
        "0.downsample.1.weight",
        "1.bn1.weight",
        "1.bn2.weight",
    )
)


@pytest.fixture
def data() -> PhaseData:
    halves = torch.rand(3, 2, 40, 25, generator=torch.Generator().manual_seed(0))
    template: Any = SimpleNamespace(aspect=1.0)
    return PhaseData(FilmsInMemory(halves), template, 1.6, full_frames(halves), paper_energy=True)


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


@torch.no_grad()
def predict(network: PoseNetwork, data: PhaseData) -> Tensor:
    return data.predict(network, data.films.halves(torch.arange(3)), data.frames)


def test_unfold_batchnorm_keeps_the_outputs_of_evaluation_and_sets_statistics_of_training(
    folded: PoseNetwork, data: PhaseData
) -> None:
    before = predict(folded, data)
    unfold_batchnorm(folded, data, frozenset(), Group())
    assert torch.allclose(before, predict(folded, data), atol=1e-4)
    mean, variance = (
        folded.backbone.bn1.running_mean.clone(),
        folded.backbone.bn1.running_var.clone(),
    )
    folded.backbone.bn1.momentum = 1.0  # training mode takes the statistics of one batch
    predict(folded.train(), data)
    assert torch.allclose(mean, folded.backbone.bn1.running_mean, atol=1e-4)
    assert torch.allclose(variance, folded.backbone.bn1.running_var, rtol=1e-3)
    assert not torch.allclose(variance, torch.ones(64), rtol=0.1)


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


def test_learn_at_the_heads_rate_moves_the_named_parameters(folded: PoseNetwork) -> None:
    state = PhaseState(folded, 3, seed=0)
    learn_at_the_heads_rate(state, LAYER4)
    backbone, head = (group["params"] for group in state.optimiser.param_groups)
    moved = {
        name for name, each in folded.backbone.named_parameters() if any(each is p for p in head)
    }
    assert moved == LAYER4
    assert len(backbone) + len(head) == len(list(folded.parameters()))
