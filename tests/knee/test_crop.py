"""Crops: upright, to the sub-pixel, of the size asked for, black beyond the film."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from detections import make_detection
from kneematch.errors import NotARadiograph, SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.knee.crop import (
    ASSUMED_WIDTH_MM,
    MOST_PX,
    CropSize,
    assumed_spacing,
    cut,
    place,
)
from kneematch.knee.detection import Detection

Array = NDArray[Any]
TURN_DEG = 7.0
CENTRE = (213.3, 187.9)


def wave(x: Array, y: Array) -> Array:
    """A smooth film, known everywhere."""
    return 0.5 + 0.2 * np.sin(x / 17) + 0.2 * np.cos(y / 13 + x / 29)


def painted(height: int = 380, width: int = 420, mm_per_px: float | None = 0.2) -> Radiograph:
    y, x = np.mgrid[:height, :width] + 0.5
    return Radiograph(wave(x, y).astype(np.float32), mm_per_px=mm_per_px)


def turned(x: Array, y: Array, degrees: float) -> tuple[Array, Array]:
    turn = math.radians(degrees)
    return (
        x * math.cos(turn) - y * math.sin(turn),
        x * math.sin(turn) + y * math.cos(turn),
    )


def area(side: str = "right", **changes: Any) -> Detection:
    """A rectangle of 150 x 120 film pixels, turned clockwise; mirrored in the left half."""
    found = make_detection(side, CENTRE, (120.0, 150.0), TURN_DEG, mm_per_px=0.2)
    return replace(found, **changes)


def expected(size: int, step: float, *, flip: int = 1) -> Array:
    """What a square crop of the wave is, worked out without the code under test."""
    along = (np.arange(size) + 0.5 - size / 2) * step
    x, y = np.meshgrid(flip * along, along)
    dx, dy = turned(x, y, TURN_DEG)
    return wave(CENTRE[0] + dx, CENTRE[1] + dy)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("spacing_mm", "within"), [(0.2, 4e-4), (0.1, 4e-4), (0.7, 3e-3)])
def test_a_crop_is_the_film_turned_upright(side: str, spacing_mm: float, within: float) -> None:
    crop = area(side).crop(painted(), mm=28.0, spacing_mm=spacing_mm)
    size = round(28.0 / spacing_mm)
    assert crop.shape == (size, size)
    assert crop.dtype == np.float32
    assert np.abs(crop - expected(size, spacing_mm / 0.2)).max() < within


def test_a_tenth_of_a_pixel_is_noticed() -> None:
    moved = area(centre=(CENTRE[0] + 0.1, CENTRE[1]))
    crop = moved.crop(painted(), mm=28.0, spacing_mm=0.2)
    assert np.abs(crop - expected(140, 1.0)).max() > 8e-4


def test_mirrored_crops_look_as_in_the_pictures_right_half() -> None:
    film = painted()
    left, right = (area(side).crop(film, mm=28.0, mirror=True) for side in ("left", "right"))
    assert np.array_equal(right, area("right").crop(film, mm=28.0))
    assert np.allclose(left, area("left").crop(film, mm=28.0)[:, ::-1], atol=1e-5)
    assert np.abs(left - right).max() > 0.1


def test_shrinking_averages_what_is_too_fine_to_show() -> None:
    y, x = np.mgrid[:400, :400]
    chequered = Radiograph(((x + y) % 2).astype(np.float32), mm_per_px=0.1)
    found = area(mm_per_px=0.1)
    assert np.abs(found.crop(chequered, mm=20.0, spacing_mm=0.4) - 0.5).max() < 0.06


def test_a_bright_point_lands_where_the_map_says() -> None:
    pixels = np.zeros((380, 420), np.float32)
    pixels[200:202, 230:232] = 1  # its middle is at (231, 201)
    placed = place(area(), CropSize(mm=28.0, spacing_mm=0.2))
    bright = cut(Radiograph(pixels), placed)
    y, x = np.mgrid[: bright.shape[0], : bright.shape[1]] + 0.5
    point = np.array([(bright * x).sum(), (bright * y).sum(), bright.sum()]) / bright.sum()
    assert placed.pixel_map @ point == pytest.approx([231, 201], abs=0.05)


def test_beyond_the_film_is_black() -> None:
    white = Radiograph(np.ones((380, 420), np.float32), mm_per_px=0.2)
    crop = area().crop(white, mm=200.0, spacing_mm=1.0)
    assert (crop[0] == 0).all()
    assert (crop[:, -1] == 0).all()
    assert crop[100, 100] == pytest.approx(1)
    assert crop.sum() == pytest.approx(380 * 420 / 25, rel=0.01)


def test_without_spacing_the_area_sets_the_scale() -> None:
    bare = area(mm_per_px=None)
    assert bare.crop(painted(), mm=140.0, spacing_mm=0.5).shape == (280, 280)
    placed = place(bare, CropSize(mm=140.0, spacing_mm=0.5))
    assert placed.step_px == pytest.approx(np.linalg.norm(placed.pixel_map[:, 0]))
    assert 280 * placed.step_px == pytest.approx(140 * 150 / ASSUMED_WIDTH_MM)


def test_place_puts_the_middle_of_a_crop_exactly_on_that_of_the_area() -> None:
    assert place(area(), CropSize()).to_film[:2, 2].tolist() == list(CENTRE)


def test_place_has_one_scale_for_the_knees_of_a_film_without_spacing() -> None:
    knees = [area("left", mm_per_px=None, width_px=140.0), area(mm_per_px=None, width_px=160.0)]
    assumed = assumed_spacing(knees)
    assert assumed == pytest.approx(ASSUMED_WIDTH_MM / 150)
    left, right = (place(knee, CropSize(), assumed) for knee in knees)
    assert left.step_px == right.step_px == pytest.approx(0.3 / assumed)
    assert place(area(), CropSize(), assumed).step_px == pytest.approx(0.3 / 0.2)  # its own


def test_pixels_are_the_films_own_when_asked_for() -> None:
    bare, film = area(mm_per_px=None), painted()
    crop = bare.crop(film, px=90)
    assert crop.shape == (90, 90)
    assert np.abs(crop - expected(90, 1.0)).max() < 4e-4
    assert np.array_equal(area().crop(film, mm=None, px=90), crop)
    assert area().crop(film, mm=28.0, px=90).shape == (93, 93)  # the film has spacing


def test_with_no_size_a_crop_has_the_areas_shape() -> None:
    film = painted()
    assert area().crop(film, mm=None, spacing_mm=None).shape == (120, 150)
    assert area().crop(film, mm=None, spacing_mm=0.4).shape == (60, 75)
    found = area("left")
    corner = place(found, CropSize(mm=None, spacing_mm=None)).pixel_map @ [0, 0, 1]
    assert corner == pytest.approx(found.corners[1])  # the picture's left one, as it is mirrored


@pytest.mark.parametrize(
    "wrong", [{"mm": 0.0}, {"mm": math.nan}, {"spacing_mm": -1.0}, {"px": 0}, {"px": MOST_PX + 1}]
)
def test_a_size_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="expected"):
        CropSize(**wrong)


def test_a_spacing_that_makes_no_sense_is_harmless() -> None:
    crop = area(mm_per_px=1e-9).crop(painted(), mm=14.0)
    assert crop.shape == (47, 47)
    assert crop.max() < 0.01
    with pytest.raises(NotARadiograph, match="spacing"):
        area(mm_per_px=1e-9).crop(painted(), spacing_mm=None)


def test_a_detection_draws_itself() -> None:
    picture = area().draw(painted())
    assert picture.size == (420, 380)
    assert len(picture.getcolors(1 << 24)) > 256  # not grey alone
