"""Fixtures: small images that hold a template, and a tiny network."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from kneematch.paper.template import Template


class TinyNetwork(nn.Module):
    """Images (..., 224, 224) to vectors (..., 4), with the parts of a PoseNetwork."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 4, 32, 32, bias=False), nn.BatchNorm2d(4))
        self.reduce = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 2, 1))
        self.regress = nn.Linear(2 * 7 * 7, 4)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.reduce(self.backbone(images.reshape(-1, 1, 224, 224)))
        v = 2 * (torch.sigmoid(self.regress(maps.flatten(1))) - 0.5)
        return v.reshape(*images.shape[:-2], 4)


@dataclass(frozen=True)
class Films:
    """Five radiographs that all show a template at the same pose."""

    images: Tensor  # (5, 2, 192, 120)
    template: Template


@pytest.fixture(scope="session")
def films(clouds: Callable, cut: Callable) -> Films:
    images = clouds(5, 2, seed=3)
    template, _ = cut(images[0, 1])
    images[..., 70:120, 40:90] = template.image
    return Films(images, template)


@pytest.fixture(scope="session")
def tiny_network() -> Callable[[int], TinyNetwork]:
    def make(seed: int) -> TinyNetwork:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return TinyNetwork().eval()

    return make
