"""Tables of detections, failures and crops: columns, numbers, names, and bounded memory."""

import json
import os
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from kneematch.films.csv_text import read_csv
from kneematch.knee.crop import CropSize
from kneematch.knee.detection import Detection
from kneematch.run.outputs import tables
from kneematch.run.outputs.tables import (
    TABLES,
    crop_name,
    write_crops,
    write_failures,
    write_tables,
)
from tables import read_table

FIXED = (
    "film,side,laterality,laterality_source,status,energy,loss,polarity,method,centre_x_px,"
    "centre_y_px,width_px,height_px,rotation_deg,x0_px,y0_px,x1_px,y1_px,x2_px,y2_px,x3_px,y3_px,mm_per_px,"
    "expected_error_px,review,reason,decision"
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
    laterality_source="header",
)


Knees = tuple[Detection, Detection]
CROP_SIZE = CropSize(mm=30.0, spacing_mm=0.25)


def written(folder: Path, *found: tuple[str, Detection], landmarks: Sequence[str] = ()) -> Path:
    """Write the tables; return the CSV."""
    write_tables(found, folder, landmarks=landmarks)
    return folder / "detections.csv"


def test_write_tables_has_these_columns_and_then_landmarks(tmp_path: Path) -> None:
    assert written(tmp_path, ("a.dcm", FOUND)).read_text().splitlines()[0] == FIXED
    marked = replace(FOUND, landmarks={"rim": (1.5, -2.0), "tip": (3.0, 4.0)})
    path = written(tmp_path, ("a.dcm", marked), ("b.dcm", FOUND), landmarks=["rim", "tip"])
    assert path.read_text().splitlines()[0] == f"{FIXED},rim_x_px,rim_y_px,tip_x_px,tip_y_px"
    first, second = read_table(path)
    assert (first["rim_x_px"], first["rim_y_px"], first["tip_y_px"]) == ("1.500", "-2.000", "4.000")
    assert second["tip_x_px"] == ""


def test_write_tables_numbers_have_fixed_decimals(tmp_path: Path) -> None:
    assert written(tmp_path, ("a.dcm", FOUND)).read_text().splitlines()[1] == (
        "a.dcm,left,R,header,ok,0.250000,0.123457,positive,search,20.000,25.000,20.000,30.000,-1.0000,"
        "30.000,10.000,10.000,10.000,10.000,40.000,30.000,40.000,0.139700,,,,"
    )


def test_write_tables_zero_has_no_sign_and_no_spacing_is_empty(tmp_path: Path) -> None:
    found = replace(FOUND, loss=-1e-9, rotation_deg=-0.0, mm_per_px=None)
    (row,) = read_table(written(tmp_path, ("a", found)))
    assert (row["loss"], row["rotation_deg"], row["mm_per_px"]) == ("0.000000", "0.0000", "")


@pytest.mark.parametrize(
    "name", ["a,b.dcm", 'say "x".png', "two\nlines.png", "one\rtwo.png", "Käsi.dcm"]
)
def test_write_tables_any_name_of_a_film_is_one_row(tmp_path: Path, name: str) -> None:
    assert [row["film"] for row in read_table(written(tmp_path, (name, FOUND)))] == [name]


@pytest.mark.parametrize("name", ["=HYPERLINK(A1)", "+1x.png", "-x.png", "@x.png", "\r=1", "'=x"])
def test_tables_no_name_is_a_formula_and_all_read_back(tmp_path: Path, name: str) -> None:
    written(tmp_path, (name, replace(FOUND, reason=name)))
    write_failures([(name, "failed", f"{name}: empty")], tmp_path / "failures.csv")
    write_crops([(name, FOUND, crop_name(name, "left"), 1.0)], tmp_path / "crops.csv", CROP_SIZE)
    for table in ("detections.csv", "failures.csv", "crops.csv"):
        (row,) = read_table(tmp_path / table)
        texts = {row[key] for key in ("film", "reason", "file") if key in row}
        assert all(text.startswith("'") for text in texts)
        with (tmp_path / table).open(newline="", encoding="utf-8") as file:
            _, (film, *_) = read_csv(file)
        assert film == name
    assert json.loads((tmp_path / "detections.json").read_text())[0]["film"] == name


def test_write_tables_a_name_that_is_not_utf8_keeps_its_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, (os.fsdecode(b"\xff.dcm"), FOUND))
    assert b"\n\xff.dcm," in path.read_bytes()


@pytest.mark.parametrize("name", [os.fsdecode(b"\xff"), "s3:", "ä"])
def test_write_tables_takes_a_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    written(Path(name), ("a.dcm", FOUND))
    assert {path.name for path in Path(name).iterdir()} == set(TABLES)


def test_write_failures_has_a_film_a_status_and_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "failures.csv"
    write_failures([("a.dcm", "failed", "a.dcm: empty; expected a film, whole")], path)
    (row,) = read_table(path)
    assert list(row) == ["film", "status", "reason"]
    assert list(row.values()) == ["a.dcm", "failed", "a.dcm: empty; expected a film, whole"]


def test_write_tables_leaves_the_old_files_when_it_fails(tmp_path: Path) -> None:
    path = written(tmp_path, ("old", FOUND))
    with pytest.raises(AttributeError):
        written(tmp_path, ("new", FOUND), ("bad", replace(FOUND, corners=None)))  # type: ignore[arg-type]
    assert [row["film"] for row in read_table(path)] == ["old"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(TABLES)


MARKED = replace(FOUND, landmarks={"rim": (1.50049, -2.0)}, mm_per_px=None)


def test_write_tables_all_formats_have_the_same_rows(tmp_path: Path) -> None:
    write_tables([("a.dcm", FOUND), ("b.dcm", MARKED)], tmp_path, landmarks=["rim"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(TABLES)
    lines = read_table(tmp_path / "detections.csv")
    typed = parquet.read_table(tmp_path / "detections.parquet").to_pylist()
    assert json.loads((tmp_path / "detections.json").read_text()) == typed
    assert [list(row) for row in typed] == [list(row) for row in lines]
    for line, row in zip(lines, typed, strict=True):
        for name, value in row.items():
            assert line[name] == ("" if value is None else line[name])
            if isinstance(value, float):
                assert float(line[name]) == value


def test_write_tables_parquet_and_json_have_numbers_text_and_nulls(tmp_path: Path) -> None:
    write_tables([("a.dcm", FOUND), ("b.dcm", MARKED)], tmp_path, landmarks=["rim"])
    stored = parquet.read_table(tmp_path / "detections.parquet")
    kinds = {field.name: str(field.type) for field in stored.schema}
    assert kinds["film"] == kinds["reason"] == "string"
    assert {kinds[name] for name in kinds if name.endswith("_px")} == {"double"}
    first, second = stored.to_pylist()
    assert (first["loss"], first["mm_per_px"], first["rim_x_px"]) == (0.123457, 0.1397, None)
    assert (second["mm_per_px"], second["rim_x_px"], second["rim_y_px"]) == (None, 1.5, -2.0)


def test_write_tables_without_rows_has_the_columns(tmp_path: Path) -> None:
    write_tables([], tmp_path, landmarks=["rim"])
    assert json.loads((tmp_path / "detections.json").read_text()) == []
    stored = parquet.read_table(tmp_path / "detections.parquet")
    assert (stored.num_rows, stored.column_names[-1]) == (0, "rim_y_px")
    assert (tmp_path / "detections.csv").read_text() == f"{FIXED},rim_x_px,rim_y_px\n"


def test_write_tables_hostile_names_are_rows_of_every_format(tmp_path: Path) -> None:
    names = [os.fsdecode(b"\xff.dcm"), 'a"\n,b', "骨.png", ""]
    write_tables([(name, FOUND) for name in names], tmp_path)
    told = json.loads((tmp_path / "detections.json").read_text())
    assert [row["film"] for row in told] == names
    films = parquet.read_table(tmp_path / "detections.parquet")["film"].to_pylist()
    assert films == ["\\udcff.dcm", *names[1:]]


def test_write_tables_does_not_keep_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def many(count: int) -> Iterator[tuple[str, Detection]]:
        return ((f"{k}.dcm", replace(FOUND, energy=k / 3)) for k in range(count))

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            write_tables(many(count), tmp_path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(tables, "PARQUET_GROUP_ROWS", 200)
    peak(2400)  # imports, and tuples that Python keeps to use again
    assert peak(2400) < 1.5 * peak(400)
    stored = parquet.ParquetFile(tmp_path / "detections.parquet")
    assert (stored.metadata.num_rows, stored.num_row_groups) == (400, 2)


def test_write_tables_leaves_nothing_when_the_rows_break_off(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[str, Detection]]:
        yield "a.dcm", FOUND
        raise RuntimeError("the journal ends here")

    with pytest.raises(RuntimeError, match="journal"):
        write_tables(broken(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_write_failures_takes_any_iterable(tmp_path: Path) -> None:
    write_failures(((f"{k}.dcm", "failed", "why") for k in range(3)), tmp_path / "failures.csv")
    assert len(read_table(tmp_path / "failures.csv")) == 3


@pytest.mark.parametrize("mirror", [False, True])
def test_write_crops_maps_crop_pixels_to_film_pixels(
    tmp_path: Path, knees: Knees, mirror: bool
) -> None:
    made = [("a.dcm", found, f"{found.side}.png", 1.0) for found in knees]
    write_crops(made, tmp_path / "crops.csv", replace(CROP_SIZE, mirror=mirror))
    for row, found in zip(read_table(tmp_path / "crops.csv"), knees, strict=True):
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


def test_write_crops_without_spacing_has_a_map_and_no_millimetres(
    tmp_path: Path, knees: Knees
) -> None:
    bare = replace(knees[1], mm_per_px=None)
    write_crops([("a.png", bare, "a-right.png", 0.5)], tmp_path / "crops.csv", CROP_SIZE)
    (row,) = read_table(tmp_path / "crops.csv")
    assert (row["mm_per_px"], row["file"], row["laterality"]) == ("", "a-right.png", "L")
    assert float(row["xx"]) == pytest.approx(0.5, rel=0.01)  # 0.25 mm at 0.5 mm per pixel


def test_crop_name_has_film_and_side() -> None:
    assert crop_name("phantom.7", "left") == "phantom.7-left.png"
