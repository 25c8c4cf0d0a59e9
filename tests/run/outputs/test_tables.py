"""Tables of detections, failures and crops: columns, numbers, names, and bounded memory."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detections import Knees, make_detection, make_record
from kneematch.films.files import DETECTIONS
from kneematch.knee.crop import CropSize
from kneematch.knee.detection import Detection
from kneematch.run.outputs.tables import (
    crop_rows,
    detection_columns,
    detection_rows,
    open_table,
)
from tables import read_table

FIXED = (
    "film,image_side,laterality,laterality_source,status,energy,loss,polarity,method,centre_x_px,"
    "centre_y_px,width_px,height_px,rotation_deg,x0_px,y0_px,x1_px,y1_px,x2_px,y2_px,x3_px,y3_px,mm_per_px,"
    "expected_error_px,review,reason,decision"
)
FOUND = replace(
    make_detection("left", (20.0, 25.0), (30.0, 20.0), energy=0.25, loss=0.12345678),
    laterality_source="header",
    mm_per_px=0.1397,
)
CROP_SIZE = CropSize(mm=30.0, spacing_mm=0.25)
MADE = {"crops": {"settings": {}, "files": ["crop.png"]}}


def written(folder: Path, *found: tuple[str, Detection], landmarks: Sequence[str] = ()) -> Path:
    """Write detections.csv; return its path."""
    with open_table(folder / DETECTIONS, detection_columns({"": landmarks})) as add:
        for film, knee in found:
            add(*detection_rows(make_record(1, path=film), [knee]))
    return folder / DETECTIONS


def test_open_table_has_these_columns_and_then_landmarks(tmp_path: Path) -> None:
    assert written(tmp_path).read_text() == f"{FIXED}\n"
    marked = replace(FOUND, landmarks={"rim": (1.5, -2.0), "tip": (3.0, 4.0)})
    path = written(tmp_path, ("a.dcm", marked), ("b.dcm", FOUND), landmarks=["rim", "tip"])
    assert path.read_text().splitlines()[0] == f"{FIXED},rim_x_px,rim_y_px,tip_x_px,tip_y_px"
    first, second = read_table(path)
    assert (first["rim_x_px"], first["rim_y_px"], first["tip_y_px"]) == ("1.500", "-2.000", "4.000")
    assert second["tip_x_px"] == ""


def test_open_table_numbers_have_fixed_decimals(tmp_path: Path) -> None:
    assert written(tmp_path, ("a.dcm", FOUND)).read_text().splitlines()[1] == (
        "a.dcm,left,R,header,ok,0.250000,0.123457,positive,search,20.000,25.000,20.000,30.000,0.0000,"
        "30.000,10.000,10.000,10.000,10.000,40.000,30.000,40.000,0.139700,,,,"
    )
    found = replace(FOUND, loss=-1e-9, mm_per_px=None)  # zero has no sign, no spacing is empty
    (row,) = read_table(written(tmp_path, ("a", found)))
    assert (row["loss"], row["mm_per_px"]) == ("0.000000", "")


def test_open_table_hostile_names_are_rows(tmp_path: Path) -> None:
    names = [os.fsdecode(b"\xff.dcm"), 'a"\n,b', "one\rtwo.png", "骨.png", "", "=HYPERLINK(A1)"]
    path = written(tmp_path, *((name, FOUND) for name in names))
    assert b"\n\xff.dcm," in path.read_bytes()
    path = written(tmp_path, *((name, FOUND) for name in names[1:]))
    assert [row["film"] for row in read_table(path)] == [*names[1:-1], "'=HYPERLINK(A1)"]


@pytest.mark.parametrize("mirror", [False, True])
def test_crop_rows_map_crop_pixels_to_film_pixels(knees: Knees, mirror: bool) -> None:
    rows = crop_rows(make_record(1, *knees, made=MADE), replace(CROP_SIZE, mirror=mirror))
    for row, found in zip(rows, knees, strict=True):
        matrix = np.array([[row["xx"], row["xy"], row["x0"]], [row["yx"], row["yy"], row["y0"]]])
        to_film = matrix.astype(float)
        assert to_film @ [60, 60, 1] == pytest.approx(found.centre, abs=1e-4)
        mirrored = mirror and found.side == "left"
        assert (np.linalg.det(to_film[:, :2]) < 0) == mirrored
        assert row["mm_per_px"] == pytest.approx(0.25)
        # The area, 80 x 60 film pixels, is 160 x 120 pixels in the middle of the crop.
        ends = np.array([[-20, 140, 140, -20], [0, 0, 120, 120], [1, 1, 1, 1]])
        as_seen = found.corners if found.side == "right" or mirror else found.corners[[1, 0, 3, 2]]
        np.testing.assert_allclose((to_film @ ends).T, as_seen, atol=1e-3)
