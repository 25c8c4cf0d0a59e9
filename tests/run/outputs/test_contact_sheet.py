"""Grey windows, split lines and contact sheets."""

import numpy as np
import pytest
from PIL import Image

from kneematch.films.pictures import LEFT_COLOUR, RIGHT_COLOUR, to_grey8
from kneematch.films.radiograph import Radiograph
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import split_lines
from kneematch.run.outputs.contact_sheet import (
    AXIS_COLOUR,
    CELL_PX,
    LONGEST_PX,
    contact_sheet,
    draw_split,
)


def legs(height: int, width: int, middle: float) -> Radiograph:
    """Two grey columns to both sides of a middle, below a white band."""
    x = np.abs(np.arange(width) + 0.5 - middle)
    row = ((x > 0.1 * width) & (x < 0.25 * width)).astype(np.float32)
    pixels = np.repeat(0.5 * row[None], height, axis=0)
    pixels[: height // 10] = 1
    return Radiograph(pixels)


def columns_of(picture: Image.Image, colour: tuple[int, int, int]) -> list[int]:
    """Columns that hold a colour at half height, give or take a dash."""
    middle = np.asarray(picture)[picture.height // 3 : picture.height // 2]
    return np.flatnonzero((middle == colour).all(-1).any(0)).tolist()


def test_to_grey8_window_ignores_a_few_odd_pixels() -> None:
    pixels = np.linspace(0, 1, 10_000, dtype=np.float32).reshape(100, 100)
    odd = pixels.copy()
    odd[0, :20] = 1000.0
    assert np.abs(to_grey8(odd).astype(int) - to_grey8(pixels))[1:].max() <= 2


def test_to_grey8_keeps_the_order_and_uses_the_whole_range() -> None:
    grey = to_grey8(np.linspace(-3, 5, 1000, dtype=np.float32)[None])
    assert grey.dtype == np.uint8
    assert (grey.min(), grey.max()) == (0, 255)
    assert (np.diff(grey[0].astype(int)) >= 0).all()


@pytest.mark.parametrize("dots", [0, 1])
def test_to_grey8_of_a_nearly_constant_film_is_finite(dots: int) -> None:
    pixels = np.full((50, 50), 0.3, np.float32)
    pixels[0, :dots] = 0.9
    grey = to_grey8(pixels)
    assert grey[1:].max() == 0
    assert grey.max() == 255 * dots


def test_draw_split_lines_are_where_the_film_is_split() -> None:
    film = legs(300, 400, 210)
    axis, ((_, left_end), (right_start, _)) = split_lines(film_tensor(film))
    picture = draw_split(film)
    assert picture.size == (400, 300)
    assert columns_of(picture, LEFT_COLOUR) == pytest.approx([0, left_end - 1], abs=1)
    assert columns_of(picture, RIGHT_COLOUR) == pytest.approx([right_start, 399], abs=1)
    assert columns_of(picture, AXIS_COLOUR) == pytest.approx([axis], abs=1)
    assert axis == pytest.approx(210, abs=2)


def test_draw_split_of_a_large_film_is_smaller_with_its_lines_in_place() -> None:
    film = legs(1500, 2 * LONGEST_PX, LONGEST_PX)
    picture = draw_split(film)
    assert picture.size == (LONGEST_PX, 750)
    assert np.mean(columns_of(picture, AXIS_COLOUR)) == pytest.approx(LONGEST_PX / 2, abs=2)


def test_draw_split_title_is_below_the_film_and_not_on_it() -> None:
    film = legs(100, 200, 100)
    plain, titled = draw_split(film), draw_split(film, title="a film")
    assert titled.width == plain.width
    assert titled.height > plain.height
    assert np.array_equal(np.asarray(titled)[: plain.height], np.asarray(plain))
    assert np.asarray(titled)[plain.height :].max() > 100


def test_contact_sheet_holds_every_picture() -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    sheet = contact_sheet([Image.new("RGB", (60, 40), colour) for colour in colours], 2)
    found = {colour: np.argwhere((np.asarray(sheet) == colour).all(-1)) for colour in colours}
    centres = [found[colour].mean(0) for colour in colours]
    assert all(len(places) == CELL_PX * CELL_PX * 40 // 60 for places in found.values())
    assert centres[0][0] == centres[1][0] < centres[2][0]
    assert centres[0][1] == centres[2][1] < centres[1][1]


def test_contact_sheet_of_one_picture_is_that_picture() -> None:
    image = Image.new("RGB", (30, 20), (1, 2, 3))
    assert np.array_equal(np.asarray(contact_sheet([image], 4)), np.asarray(image))
