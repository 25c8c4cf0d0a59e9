"""The letters R and L on films."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from kneematch.detection import markers
from kneematch.detection.markers import (
    FILM_PX,
    PATCH,
    STRIDE,
    find_letters,
    marker_network,
    read_markers,
    shrink,
)
from kneematch.synthetic.phantom import phantom

needs_network = pytest.mark.skipif(
    markers._installed_network() is None, reason="no network is installed"
)


def lettered(letters: dict[str, tuple[int, int]], size: int = 30) -> np.ndarray:
    """A phantom of 768 x 640 pixels with white letters around given points."""
    film = Image.fromarray((255 * phantom(3, size=(768, 640)).radiograph.pixels).astype(np.uint8))
    draw, font = ImageDraw.Draw(film), ImageFont.load_default(size)
    film.paste(0, (0, 0, 640, 120))
    for letter, place in letters.items():
        draw.text(place, letter, font=font, fill=255, anchor="mm")
    return np.asarray(film, np.float32) / 255


def test_marker_network_answers_once_per_patch_and_stride() -> None:
    network = marker_network().eval()
    assert network(torch.zeros(2, 1, PATCH, PATCH)).shape == (2, 3, 1, 1)
    assert network(torch.zeros(1, 1, PATCH + 2 * STRIDE, PATCH + STRIDE)).shape == (1, 3, 3, 2)


@pytest.mark.parametrize("size", [(2000, 1000), (300, 400), (2, 900)])
def test_shrink_makes_the_longest_side_as_the_network_sees_it(size: tuple[int, int]) -> None:
    assert max(shrink(torch.zeros(size)).shape) == FILM_PX


def test_find_letters_sees_none_where_the_network_is_not_sure() -> None:
    network = marker_network().eval()
    with torch.no_grad():
        network[-1].weight.zero_()
        network[-1].bias.copy_(torch.tensor([0.0, 0.5, 0.2]))
    assert find_letters(network, torch.rand(300, 200)) == ()


@needs_network
def test_read_markers_reads_letters_and_where_they_are() -> None:
    found = read_markers(lettered({"R": (60, 60), "L": (580, 60)}))
    places = {marker.letter: marker.x for marker in found}
    assert places == {"R": pytest.approx(60 / 640, abs=0.02), "L": pytest.approx(0.906, abs=0.02)}


@needs_network
@pytest.mark.parametrize("letters", ["AKE", "387", ""])
def test_read_markers_takes_nothing_else_for_a_letter(letters: str) -> None:
    film = lettered({sign: (100 + 150 * k, 60) for k, sign in enumerate(letters)})
    assert [marker for marker in read_markers(film) if marker.x < 0.8] == []


@needs_network
def test_read_markers_does_not_read_mirrored_letters() -> None:
    film = lettered({"R": (60, 60), "L": (580, 60)})[:, ::-1].copy()
    assert read_markers(film) == ()
