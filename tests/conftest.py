"""Fixtures shared by several rooms: clouds with a template, phantoms, a small network."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn

from kneematch.films.annotation import Annotation, annotate
from kneematch.knee.knee_images import film_tensor
from kneematch.knee.template import cut_from_view
from kneematch.paper.split import split
from kneematch.paper.template import Template
from kneematch.sampling import View, rectangle_to_film, resize
from kneephantoms import phantom
from phantom_films import radiograph

FAMILY = 3
SIZE = (192, 120)  # of clouds


@dataclass(frozen=True)
class Knees:
    """A phantom's halves, its template and where the boxes of that template's kind belong."""

    halves: Tensor  # (2, H, W)
    template: Template  # of the right knee
    truth: Tensor  # (2, 4), the poses of the boxes drawn on each knee
    negative: bool


class SmallNetwork(nn.Module):
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace what UTF-8 cannot encode, such as odd file names in logs, which xdist cannot send."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "replace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def clouds() -> Callable[..., Tensor]:
    def make(*shape: int, seed: int = 0, blur: float = 6) -> Tensor:
        """Smooth random pictures in [0, 1], (*shape, 192, 120)."""
        noise = np.random.default_rng(seed).normal(size=(*shape, *SIZE))
        smooth = gaussian_filter(noise, (0,) * len(shape) + (blur, blur))
        return torch.from_numpy((smooth - smooth.min()) / (smooth.max() - smooth.min())).float()

    return make


@pytest.fixture(scope="session")
def cut() -> Callable[[Tensor], tuple[Template, Tensor]]:
    def cut_out(half: Tensor) -> tuple[Template, Tensor]:
        """The 50 x 50 pixels of a picture of clouds from (40, 70) on, and their pose."""
        view = View(half, rectangle_to_film(0, 0, SIZE[1], SIZE[0]))
        boxes = (40, 70, 90, 120), (30, 60, 100, 130), (42, 85, 60, 105), (70, 83, 88, 103)
        return cut_from_view(view, Annotation(Path("clouds"), "right", *boxes))

    return cut_out


@pytest.fixture(scope="session")
def knees() -> Callable[..., Knees]:
    made: dict[tuple[int, int], Knees] = {}

    def make(seed: int, height: int = 400) -> Knees:
        """A phantom of one family, its halves resized to a height."""
        if (seed, height) not in made:
            film = phantom(seed, size=(512, 640), family=FAMILY)
            whole = split(film_tensor(radiograph(film)))
            halves = View(resize(whole.pixels, (height, height * 5 // 8)), whole.to_film)
            cuts = []
            for side, knee in enumerate(film.knees):
                boxes = annotate(Path("film"), knee.side, knee.plateau_left, knee.plateau_right)
                view = View(halves.pixels[side], halves.to_film[side])
                cuts.append(cut_from_view(view, boxes))
            truth = torch.stack([theta for _, theta in cuts])
            made[seed, height] = Knees(halves.pixels, cuts[1][0], truth, film.negative)
        return made[seed, height]

    return make


@pytest.fixture(scope="session")
def small_network() -> Callable[[int], SmallNetwork]:
    def make(seed: int) -> SmallNetwork:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return SmallNetwork().eval()

    return make
