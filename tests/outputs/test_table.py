"""detections.csv and failures.csv: columns, numbers, names."""

import csv
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kneematch.detection.detection import Detection
from kneematch.outputs.table import write_detections, write_failures

FIXED = (
    "film,side,laterality,status,energy,loss,polarity,method,centre_x_px,centre_y_px,width_px,"
    "height_px,rotation_deg,x0_px,y0_px,x1_px,y1_px,x2_px,y2_px,x3_px,y3_px,mm_per_px,review,reason"
)
FOUND = Detection(
    side="left",
    laterality="R",
    energy=0.25,
    loss=0.12345678,
    polarity="positive",
    method="search",
    corners=np.array([[30, 10], [10, 10], [10, 40.0004], [30, 40]], np.float64),
    centre=(20.0, 25.0),
    width_px=20.0,
    height_px=30.0,
    rotation_deg=-1.0,
    mm_per_px=0.1397,
)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_columns_are_these_and_landmarks_follow(tmp_path: Path) -> None:
    path = tmp_path / "detections.csv"
    write_detections([("a.dcm", FOUND)], path)
    assert path.read_text().splitlines()[0] == FIXED
    marked = replace(FOUND, landmarks={"rim": (1.5, -2.0), "tip": (3.0, 4.0)})
    write_detections([("a.dcm", marked), ("b.dcm", FOUND)], path)
    assert path.read_text().splitlines()[0] == f"{FIXED},rim_x_px,rim_y_px,tip_x_px,tip_y_px"
    first, second = rows(path)
    assert (first["rim_x_px"], first["rim_y_px"], first["tip_y_px"]) == ("1.500", "-2.000", "4.000")
    assert second["tip_x_px"] == ""


def test_numbers_have_fixed_decimals(tmp_path: Path) -> None:
    path = tmp_path / "detections.csv"
    write_detections([("a.dcm", FOUND)], path)
    assert path.read_text().splitlines()[1] == (
        "a.dcm,left,R,ok,0.250000,0.123457,positive,search,20.000,25.000,20.000,30.000,-1.0000,"
        "30.000,10.000,10.000,10.000,10.000,40.000,30.000,40.000,0.139700,,"
    )


def test_zero_has_no_sign_and_no_spacing_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "detections.csv"
    write_detections([("a", replace(FOUND, loss=-1e-9, rotation_deg=-0.0, mm_per_px=None))], path)
    (row,) = rows(path)
    assert (row["loss"], row["rotation_deg"], row["mm_per_px"]) == ("0.000000", "0.0000", "")


@pytest.mark.parametrize("name", ["a,b.dcm", 'say "x".png', "two\nlines.png", "Käsi.dcm"])
def test_any_name_of_a_film_comes_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / "detections.csv"
    write_detections([(name, FOUND)], path)
    assert [row["film"] for row in rows(path)] == [name]


def test_a_name_that_is_not_utf8_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "detections.csv"
    write_detections([(os.fsdecode(b"\xff.dcm"), FOUND)], path)
    assert b"\n\xff.dcm," in path.read_bytes()


def test_no_detections_are_a_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "detections.csv"
    write_detections([], path)
    assert path.read_text() == FIXED + "\n"


def test_failures_have_a_film_and_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "failures.csv"
    write_failures([("a.dcm", "a.dcm: empty; expected a film, whole")], path)
    assert rows(path) == [{"film": "a.dcm", "reason": "a.dcm: empty; expected a film, whole"}]


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "detections.csv"
    write_detections([("old", FOUND)], path)
    with pytest.raises(AttributeError):
        write_detections([("new", FOUND), ("bad", replace(FOUND, corners=None))], path)  # type: ignore[arg-type]
    assert [row["film"] for row in rows(path)] == ["old"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["detections.csv"]
