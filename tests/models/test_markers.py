"""The letters R and L on films."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from kneematch.models.markers import read_markers
from kneephantoms import phantom


def lettered(
    texts: dict[str, tuple[int, int]], size: int = 30, angle: float = 0, mirrored: bool = False
) -> Tensor:
    """A phantom of 768 x 640 pixels with white texts, their first letters around given points."""
    film = Image.fromarray((255 * phantom(3, size=(768, 640)).pixels).astype(np.uint8))
    film.paste(0, (0, 0, 640, 120))
    font = ImageFont.load_default(size)
    for text, (x, y) in texts.items():
        ink = Image.new("L", (600, 600))
        left, top, right, bottom = font.getbbox(text[0])
        start = 300 - (left + right) / 2, 300 - (top + bottom) / 2
        ImageDraw.Draw(ink).text(start, text, 255, font)
        ink = ImageOps.mirror(ink) if mirrored else ink
        ink = ink.rotate(angle, Image.Resampling.BICUBIC)
        film.paste(255, (x - 300, y - 300), ink)
    return torch.from_numpy(np.asarray(film, np.float32) / 255)


def letters_on(film: Tensor) -> str:
    (found,) = read_markers([film])
    return "".join(sorted({marker.letter for marker in found}))


@pytest.mark.parametrize("letter", ["R", "L"])
def test_read_markers_reads_tilted_letters_and_no_mirrored_ones(letter: str) -> None:
    poses = [(size, angle) for size in (18, 26, 36, 50, 66) for angle in (-40, -20, 20, 40)]
    read = [letters_on(lettered({letter: (320, 60)}, *pose)) for pose in poses]
    assert set(read) <= {letter, ""}
    assert read.count(letter) >= 0.8 * len(poses)
    mirrored = [letters_on(lettered({letter: (320, 60)}, *pose, mirrored=True)) for pose in poses]
    assert set(mirrored) == {""}


def test_read_markers_tells_a_turned_r_and_reads_no_turned_l() -> None:
    poses = [(size, angle) for size in (18, 26, 36, 50, 66) for angle in (90, 180, 270)]
    found = [read_markers([lettered({"R": (320, 60)}, *pose)])[0] for pose in poses]
    markers = [marker for each in found for marker in each]
    assert {(marker.letter, marker.turned) for marker in markers} == {("R", True)}
    assert len(markers) >= 0.6 * len(poses)
    assert {letters_on(lettered({"L": (320, 60)}, *pose)) for pose in poses} == {""}


def test_read_markers_reads_letters_that_begin_a_marker_and_none_of_a_word() -> None:
    for text in ("R PA", "L-UPR", "R-WB", "L 12", "RT", "LT"):
        assert letters_on(lettered({text: (200, 60)})) == text[0], text
    for text in ("LAT", "RED DOT", "RESUS", "LPO", "KNEE", "UPR", "AXIAL"):
        assert letters_on(lettered({text: (200, 60)})) == "", text


@pytest.mark.parametrize("signs", ["PBK", "FIT", "EJ7", "1AD", "UVH", ""])
@pytest.mark.parametrize("angle", [-30, 0, 30])
def test_read_markers_takes_nothing_else_for_a_letter(signs: str, angle: int) -> None:
    places = {sign: (100 + 150 * k, 60) for k, sign in enumerate(signs)}
    assert letters_on(lettered(places, 30, angle)) == ""


@pytest.mark.parametrize("letter", ["R", "L"])
@pytest.mark.parametrize("x", [16, 203, 624])
def test_read_markers_reads_a_letter_anywhere(letter: str, x: int) -> None:
    ((found,),) = read_markers([lettered({letter: (x, 16)})])
    assert found.letter == letter
    assert found.x == pytest.approx(x / 640, abs=0.01)


def test_read_markers_reads_films_of_any_sizes_together() -> None:
    films = [lettered({"R": (60, 60)}), lettered({"L": (60, 60)})[:500]]
    films += [torch.rand(size) for size in ((40, 900), (1, 1), (900, 2))]
    together = read_markers(films)
    letters = [{marker.letter for marker in found} for found in together]
    assert letters == [{"R"}, {"L"}, set(), set(), set()]
    assert read_markers([]) == []
    for film, found in zip(films, together, strict=True):
        (alone,) = read_markers([film])
        assert [marker.letter for marker in found] == [marker.letter for marker in alone]
        for one, other in zip(found, alone, strict=True):
            assert one.x == pytest.approx(other.x, abs=1e-4)
