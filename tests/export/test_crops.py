"""Crops on disk: 16 bits, and a table that leads back to the film."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kneematch.detection.crop import CropSize
from kneematch.detection.detection import Detection
from kneematch.export.crops import crop_name, save_crop, write_crops
from kneematch.io.radiograph import Radiograph

Knees = tuple[Detection, Detection]
SIZE = CropSize(mm=30.0, spacing_mm=0.25)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_crop_has_sixteen_bits_and_the_size_asked_for(
    tmp_path: Path, film: Radiograph, knees: Knees
) -> None:
    save_crop(film, knees[0], tmp_path / "a.png", SIZE)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (120, 120)
        levels = np.asarray(picture)
    assert levels.dtype == np.uint16
    assert len(np.unique(levels)) > 5000
    crop = knees[0].crop(film, mm=30.0, spacing_mm=0.25)
    assert np.abs(levels / 65535 - crop).max() < 1e-5


@pytest.mark.parametrize("mirror", [False, True])
def test_the_table_maps_crop_pixels_to_film_pixels(
    tmp_path: Path, knees: Knees, mirror: bool
) -> None:
    rows = [("a.dcm", found, f"{found.side}.png") for found in knees]
    write_crops(rows, tmp_path / "crops.csv", replace(SIZE, mirror=mirror))
    for row, found in zip(table(tmp_path / "crops.csv"), knees, strict=True):
        matrix = np.array([[row["xx"], row["xy"], row["x0"]], [row["yx"], row["yy"], row["y0"]]])
        to_film = matrix.astype(float)
        assert to_film @ [60, 60, 1] == pytest.approx(found.centre, abs=1e-4)
        mirrored = mirror and found.side == "left"
        assert (np.linalg.det(to_film[:, :2]) < 0) == mirrored
        assert float(row["mm_per_px"]) == pytest.approx(0.25)
        # The area, 80 x 60 film pixels, is 160 x 120 pixels in the middle of the crop.
        ends = np.array([[-20, 140, 140, -20], [0, 0, 120, 120], [1, 1, 1, 1]])
        as_seen = found.corners if found.side == "right" or mirror else found.corners[[1, 0, 3, 2]]
        np.testing.assert_allclose((to_film @ ends).T, as_seen, atol=1e-3)


def test_a_film_without_spacing_has_a_map_and_no_millimetres(tmp_path: Path, knees: Knees) -> None:
    bare = replace(knees[1], mm_per_px=None)
    write_crops([("a.png", bare, "a-right.png")], tmp_path / "crops.csv", SIZE)
    (row,) = table(tmp_path / "crops.csv")
    assert (row["mm_per_px"], row["file"], row["laterality"]) == ("", "a-right.png", "L")
    assert float(row["xx"]) > 0


def test_crops_are_named_after_film_and_side() -> None:
    assert crop_name("phantom.7", "left") == "phantom.7-left.png"
