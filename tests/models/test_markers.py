"""The letters R and L on films."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from kneematch.models.markers import marker_networks, read_markers
from kneephantoms import phantom


def lettered(letters: dict[str, tuple[int, int]], size: int = 30) -> Tensor:
    """A phantom of 768 x 640 pixels with white letters around given points."""
    film = Image.fromarray((255 * phantom(3, size=(768, 640)).pixels).astype(np.uint8))
    draw, font = ImageDraw.Draw(film), ImageFont.load_default(size)
    film.paste(0, (0, 0, 640, 120))
    for letter, place in letters.items():
        draw.text(place, letter, font=font, fill=255, anchor="mm")
    return torch.from_numpy(np.asarray(film, np.float32) / 255)


def networks_that_answer(spotter: list[float], reader: list[float]) -> torch.nn.ModuleDict:
    """Networks with the same logits everywhere."""
    networks = marker_networks().eval()
    with torch.no_grad():
        for name, logits in (("spotter", spotter), ("reader", reader)):
            networks[name][-1].weight.zero_()
            networks[name][-1].bias.copy_(torch.tensor(logits))
    return networks


def test_read_markers_sees_none_where_a_network_is_not_sure() -> None:
    film = torch.rand(300, 200)
    sure, unsure, other = [0.0, 9.0, 0.0], [0.0, 0.5, 0.2], [9.0, 0.0, 0.0]
    assert read_markers([film], networks_that_answer(sure, unsure)) == [()]
    assert read_markers([film], networks_that_answer(other, sure)) == [()]


@pytest.mark.parametrize("size", [(300, 200), (1, 1), (2, 900), (900, 2)])
def test_read_markers_looks_at_films_of_any_size_up_to_their_edges(size: tuple[int, int]) -> None:
    networks = networks_that_answer([0.0, 9.0, 0.0], [0.0, 0.0, 9.0])
    (found,) = read_markers([torch.rand(size)], networks)
    assert {marker.letter for marker in found} == {"L"}


def test_read_markers_reads_letters_and_where_they_are() -> None:
    (found,) = read_markers([lettered({"R": (60, 60), "L": (580, 60)})])
    places = {marker.letter: marker.x for marker in found}
    assert places == {"R": pytest.approx(60 / 640, abs=0.02), "L": pytest.approx(0.906, abs=0.02)}


def test_read_markers_takes_nothing_else_for_a_letter() -> None:
    for letters in ("AKE", "387", ""):
        places = {sign: (100 + 150 * k, 60) for k, sign in enumerate(letters)}
        (found,) = read_markers([lettered(places)])
        assert [marker for marker in found if marker.x < 0.8] == []
    mirrored = lettered({"R": (60, 60), "L": (580, 60)}).flip(1)
    assert read_markers([mirrored]) == [()]


@pytest.mark.parametrize("x", [16, 203, 624])
def test_read_markers_reads_a_letter_anywhere(x: int) -> None:
    ((found,),) = read_markers([lettered({"R": (x, 16)})])
    assert found.letter == "R"
    assert found.x == pytest.approx(x / 640, abs=0.01)


def test_read_markers_reads_films_of_any_sizes_together() -> None:
    films = [lettered({"R": (60, 60)}), torch.zeros(40, 900), lettered({"L": (60, 60)})[:500]]
    together = read_markers(films)
    assert [{marker.letter for marker in found} for found in together] == [{"R"}, set(), {"L"}]
    assert read_markers([]) == []
    for film, found in zip(films, together, strict=True):
        (alone,) = read_markers([film])
        assert [marker.letter for marker in found] == [marker.letter for marker in alone]
        for one, other in zip(found, alone, strict=True):
            assert one.x == pytest.approx(other.x, abs=1e-4)
