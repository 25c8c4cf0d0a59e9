"""A tiny cohort, a network that learns in no time, and an objective that is watched."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kneematch.geometry.sampling import resize
from kneematch.geometry.split import split
from kneematch.geometry.view import View
from kneematch.matching.template import cut_from_half
from kneematch.synthetic.annotation import annotate
from kneematch.synthetic.phantom import phantom
from kneematch.training.losses import Objective
from kneematch.training.phase_data import InMemory
from kneematch.training.two_phases import Drawn

SEEDS, FAMILY = (9, 14, 23, 42, 47), 3
SIZE = (160, 100)  # of a half


class SmallNetwork(nn.Module):
    """With the parts of a PoseNetwork: images (..., 224, 224) to vectors (..., 4)."""

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
class Cohort:
    """Small films, and what was drawn on the right knee of the first."""

    films: InMemory  # (5, 2, 160, 100)
    drawn: Drawn
    truth: Tensor  # (5, 2, 4), the poses of the fine box on every knee
    half: Tensor  # (160, 100), on which it was drawn


@dataclass
class Watched:
    """An objective that remembers what it was asked and what it answered."""

    objective: Objective
    rows: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def __call__(self, network, lesson, rows, mine, generator) -> Tensor:  # type: ignore[no-untyped-def]
        answer = self.objective(network, lesson, rows, mine, generator)
        self.rows.append(rows.clone())
        self.losses.append(answer.detach().clone())
        return answer


@pytest.fixture(scope="session")
def cohort() -> Cohort:
    halves, poses = [], []
    for seed in SEEDS:
        film = phantom(seed, size=(320, 400), family=FAMILY)
        whole = split(film.radiograph)
        small = resize(whole.pixels, SIZE)
        for side, knee in enumerate(film.knees):
            boxes = annotate(Path("film"), knee.side, knee.plateau_left, knee.plateau_right)
            view = View(small[side], whole.to_film[side])
            poses.append(cut_from_half(view, boxes)[1])
            if seed == SEEDS[0] and side == 1:
                coarse, coarse_pose = cut_from_half(view, boxes, "coarse")
                fine, fine_pose = cut_from_half(view, boxes, "fine")
        halves.append(small)
    drawn = Drawn(coarse, fine, coarse_pose.float(), fine_pose.float())
    truth = torch.stack(poses).reshape(len(SEEDS), 2, 4).float()
    return Cohort(InMemory(torch.stack(halves)), drawn, truth, halves[0][1])


@pytest.fixture(scope="session")
def small() -> Callable[[int], SmallNetwork]:
    def make(seed: int) -> SmallNetwork:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return SmallNetwork().eval()

    return make


@pytest.fixture(scope="session")
def watched() -> Callable[[Objective], Watched]:
    return Watched
