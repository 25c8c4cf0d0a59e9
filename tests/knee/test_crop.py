"""Crops: upright, to the sub-pixel, of the size asked for, black beyond the film."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from detections import make_detection
from kneematch.errors import SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.knee.crop import ASSUMED_WIDTH_MM, MOST_PX, CropSize, assumed_spacing, cut, place
from kneematch.knee.detection import Detection

Array = NDArray[Any]
TURN_DEG = 7.0
CENTRE = (213.3, 187.9)


def wave(x: Array, y: Array) -> Array:
    """A smooth film, known everywhere."""
    return 0.5 + 0.2 * np.sin(x / 17) + 0.2 * np.cos(y / 13 + x / 29)


Y, X = np.mgrid[:380, :420] + 0.5
FILM = Radiograph(wave(X, Y).astype(np.float32), mm_per_px=0.2)


def area(side: str = "right", width: float = 150.0, **changes: Any) -> Detection:
    """An area of film pixels, turned clockwise; mirrored in the left half."""
    found = make_detection(side, CENTRE, (120.0, width), TURN_DEG, mm_per_px=0.2)
    return replace(found, **changes)


def expected(size: int, step: float) -> Array:
    """What a square crop of the wave is, worked out without the code under test."""
    along = (np.arange(size) + 0.5 - size / 2) * step
    x, y = np.meshgrid(along, along)
    cos, sin = math.cos(math.radians(TURN_DEG)), math.sin(math.radians(TURN_DEG))
    return wave(CENTRE[0] + x * cos - y * sin, CENTRE[1] + x * sin + y * cos)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("spacing_mm", "within"), [(0.2, 4e-4), (0.1, 4e-4), (0.7, 3e-3)])
def test_crop_is_the_film_turned_upright(side: str, spacing_mm: float, within: float) -> None:
    crop = area(side).crop(FILM, mm=28.0, spacing_mm=spacing_mm)
    size = round(28.0 / spacing_mm)
    assert (crop.shape, crop.dtype) == ((size, size), np.float32)
    assert np.abs(crop - expected(size, spacing_mm / 0.2)).max() < within


def test_crop_mirrors_knees_of_the_left_half_if_asked_to() -> None:
    left, right = (area(side).crop(FILM, mm=28.0, mirror=True) for side in ("left", "right"))
    assert np.array_equal(right, area("right").crop(FILM, mm=28.0))
    assert np.allclose(left, area("left").crop(FILM, mm=28.0)[:, ::-1], atol=1e-5)
    assert np.abs(left - right).max() > 0.1


def test_crop_is_black_beyond_the_film() -> None:
    white = Radiograph(np.ones((380, 420), np.float32), mm_per_px=0.2)
    crop = area().crop(white, mm=200.0, spacing_mm=1.0)
    assert (crop[0] == 0).all()
    assert (crop[:, -1] == 0).all()
    assert crop[100, 100] == pytest.approx(1)
    assert crop.sum() == pytest.approx(380 * 420 / 25, rel=0.01)


def test_place_maps_the_pixels_of_a_crop_to_the_film() -> None:
    pixels = np.zeros((380, 420), np.float32)
    pixels[200:202, 230:232] = 1  # its middle is at (231, 201)
    placed = place(area(), CropSize(mm=28.0, spacing_mm=0.2))
    bright = cut(Radiograph(pixels), placed)
    y, x = np.mgrid[: bright.shape[0], : bright.shape[1]] + 0.5
    point = np.array([(bright * x).sum(), (bright * y).sum(), bright.sum()]) / bright.sum()
    assert placed.pixel_map @ point == pytest.approx([231, 201], abs=0.05)
    assert place(area(), CropSize()).to_film[:2, 2].tolist() == list(CENTRE)


def test_place_has_one_scale_for_the_knees_of_a_film_without_spacing() -> None:
    knees = [area("left", 140.0, mm_per_px=None), area("right", 160.0, mm_per_px=None)]
    assumed = assumed_spacing(knees)
    assert assumed == pytest.approx(ASSUMED_WIDTH_MM / 150)
    steps = [place(knee, CropSize(), assumed).step_px for knee in (*knees, area())]
    assert steps == pytest.approx([0.3 / assumed, 0.3 / assumed, 0.3 / 0.2])


@pytest.mark.parametrize("wrong", [{"mm": 0.0}, {"spacing_mm": -1.0}, {"mm": 0.3 * MOST_PX + 1}])
def test_crop_size_refuses_what_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"more than 0|too large|finite"):
        CropSize(**wrong)


def test_crop_averages_what_is_too_fine_to_show() -> None:
    y, x = np.mgrid[:400, :400]
    chequered = Radiograph(((x + y) % 2).astype(np.float32), mm_per_px=0.1)
    crop = area(mm_per_px=0.1).crop(chequered, mm=20.0, spacing_mm=0.4)
    assert np.abs(crop - 0.5).max() < 0.06
    absurd = area(mm_per_px=1e-9).crop(FILM, mm=14.0)
    assert (absurd.shape, absurd.max() < 0.01) == ((47, 47), True)
