"""A template of one's own, carried along with the one that the networks know."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.films.annotation import annotate
from kneematch.knee.knee_images import film_tensor
from kneematch.knee.template import cut_from_view
from kneematch.models.cpu_inference import float_network
from kneematch.models.model_file import Model, builtin_model, load_model
from kneematch.models.two_stage import TwoStageNetworks, corner_distance, transfer_template
from kneematch.paper.split import split
from kneematch.sampling import View, resize
from kneephantoms import phantom
from phantom_films import radiograph

DRAWN_ON, FOUND_ON = 0, 1  # seeds
NOTHING = torch.tensor([1.0, 0, 0, 0])


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(builtin_model())


@pytest.fixture(scope="module")
def networks(model: Model) -> TwoStageNetworks:
    """In float32, which is quicker to make."""
    aspects = model.coarse_template.aspect, model.fine_template.aspect
    return TwoStageNetworks(float_network(model.coarse), float_network(model.fine), *aspects)


def knees(seed: int) -> tuple[Tensor, Tensor, float]:
    """Halves (2, 800, 500), the poses (2, 4) of boxes unlike the model's, and their aspect."""
    film = phantom(seed, size=(480, 600))
    halves = split(film_tensor(radiograph(film)))
    poses = []
    for side, knee in enumerate(film.knees):
        boxes = annotate(Path("film"), knee.side, knee.plateau_left, knee.plateau_right)
        view = View(halves.pixels[side], halves.to_film[side])
        template, theta = cut_from_view(view, boxes)
        # Smaller than the model's, and off its middle.
        poses.append(theta * torch.tensor([0.8, 1, 1, 1]) + torch.tensor([0, 0.04, -0.03, 0.02]))
    return halves.pixels, torch.stack(poses).float(), template.aspect


def test_transfer_template_of_the_networks_own_template_has_no_offset(
    networks: TwoStageNetworks,
) -> None:
    halves, _, _ = knees(DRAWN_ON)
    own = networks.poses(halves[None])[0]
    unmoved = replace(networks, offset=NOTHING)
    assert torch.allclose(unmoved.poses(halves[None])[0], own, atol=1e-6)
    offset = transfer_template(networks, halves[1], own[1]).offset
    assert offset is not None
    # But for what other views of the same knee say.
    assert torch.allclose(offset, NOTHING, atol=0.03)


def test_transfer_template_finds_a_drawn_template_on_another_film(
    networks: TwoStageNetworks,
) -> None:
    halves, poses, aspect = knees(DRAWN_ON)
    others, wanted, _ = knees(FOUND_ON)
    found = transfer_template(networks, halves[1], poses[1]).poses(others[None])[0]
    apart = corner_distance(found, wanted, aspect, 1.6)
    assert bool((apart < 0.08).all()), apart
    # The networks' own template lies elsewhere.
    assert float(corner_distance(networks.poses(others[None])[0], wanted, aspect, 1.6).min()) > 0.1


@pytest.mark.parametrize("name", ["noise", "clouds", "black"])
def test_transfer_template_refuses_what_is_not_a_knee(
    networks: TwoStageNetworks, name: str
) -> None:
    drawn = torch.Generator().manual_seed(0)
    half = {
        "noise": torch.rand(800, 500, generator=drawn),
        "clouds": resize(torch.rand(20, 12, generator=drawn), (800, 500)),
        "black": torch.zeros(800, 500),
    }[name]
    with pytest.raises(TemplateError, match="sees no frontal knee"):
        transfer_template(networks, half, torch.tensor([0.4, 0.0, 0.0, 0.0]))
