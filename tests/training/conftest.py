"""Five small phantoms."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kneematch.films.annotation import annotate
from kneematch.knee.knee_images import film_tensor
from kneematch.knee.template import cut_from_view
from kneematch.paper.split import split
from kneematch.sampling import View, resize
from kneematch.training.dataset import Films, to_levels
from kneematch.training.recipes import TemplatePair
from kneephantoms import phantom
from phantom_films import radiograph

SEEDS, FAMILY = (9, 14, 23, 42, 47), 3
SIZE = (160, 100)  # (height, width) of a half


@dataclass(frozen=True)
class Phantoms:
    """Small films, and the templates annotated on the right knee of the first."""

    films: Films  # (5, 2, 160, 100)
    templates: TemplatePair
    truth: Tensor  # (5, 2, 4), the poses of the fine box on every knee
    half: Tensor  # (160, 100), the half that was annotated


@pytest.fixture(scope="session")
def phantoms() -> Phantoms:
    halves, poses = [], []
    for seed in SEEDS:
        film = phantom(seed, size=(320, 400), family=FAMILY)
        whole = split(film_tensor(radiograph(film)))
        small = resize(whole.pixels, SIZE)
        for side, knee in enumerate(film.knees):
            boxes = annotate(Path("film"), knee.side, knee.plateau_left, knee.plateau_right)
            view = View(small[side], whole.to_film[side])
            poses.append(cut_from_view(view, boxes)[1])
            if seed == SEEDS[0] and side == 1:
                coarse, coarse_pose = cut_from_view(view, boxes, "coarse")
                fine, fine_pose = cut_from_view(view, boxes, "fine")
        halves.append(small)
    templates = TemplatePair(coarse, fine, coarse_pose.float(), fine_pose.float())
    truth = torch.stack(poses).reshape(len(SEEDS), 2, 4).float()
    films = Films(to_levels(torch.stack(halves)), torch.arange(len(SEEDS)))
    return Phantoms(films, templates, truth, halves[0][1])
