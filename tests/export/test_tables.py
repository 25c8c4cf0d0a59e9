"""Tables of detections and failures: columns, numbers, names, and no more memory than a page."""

import csv
import json
import os
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from kneematch.detection.detection import Detection
from kneematch.export import tables as table
from kneematch.export.tables import TABLES, write_detections, write_failures, write_tables

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


MARKED = replace(FOUND, landmarks={"rim": (1.50049, -2.0)}, mm_per_px=None)


def test_all_tables_have_the_same_rows(tmp_path: Path) -> None:
    write_tables([("a.dcm", FOUND), ("b.dcm", MARKED)], tmp_path, landmarks=["rim"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(TABLES)
    lines = rows(tmp_path / "detections.csv")
    typed = parquet.read_table(tmp_path / "detections.parquet").to_pylist()
    assert json.loads((tmp_path / "detections.json").read_text()) == typed
    assert [list(row) for row in typed] == [list(row) for row in lines]
    for line, row in zip(lines, typed, strict=True):
        for name, value in row.items():
            assert line[name] == ("" if value is None else line[name])
            if isinstance(value, float):
                assert float(line[name]) == value


def test_parquet_and_json_have_numbers_text_and_nulls(tmp_path: Path) -> None:
    write_tables([("a.dcm", FOUND), ("b.dcm", MARKED)], tmp_path, landmarks=["rim"])
    stored = parquet.read_table(tmp_path / "detections.parquet")
    kinds = {field.name: str(field.type) for field in stored.schema}
    assert kinds["film"] == kinds["reason"] == "string"
    assert {kinds[name] for name in kinds if name.endswith("_px")} == {"double"}
    first, second = stored.to_pylist()
    assert (first["loss"], first["mm_per_px"], first["rim_x_px"]) == (0.123457, 0.1397, None)
    assert (second["mm_per_px"], second["rim_x_px"], second["rim_y_px"]) == (None, 1.5, -2.0)


def test_a_table_of_nothing_has_its_columns(tmp_path: Path) -> None:
    write_tables([], tmp_path, landmarks=["rim"])
    assert json.loads((tmp_path / "detections.json").read_text()) == []
    stored = parquet.read_table(tmp_path / "detections.parquet")
    assert (stored.num_rows, stored.column_names[-1]) == (0, "rim_y_px")
    assert (tmp_path / "detections.csv").read_text() == f"{FIXED},rim_x_px,rim_y_px\n"


def test_hostile_names_are_rows_of_every_table(tmp_path: Path) -> None:
    names = [os.fsdecode(b"\xff.dcm"), 'a"\n,b', "骨.png", ""]
    write_tables([(name, FOUND) for name in names], tmp_path)
    told = json.loads((tmp_path / "detections.json").read_text())
    assert [row["film"] for row in told] == names
    films = parquet.read_table(tmp_path / "detections.parquet")["film"].to_pylist()
    assert films == ["\\udcff.dcm", *names[1:]]


def test_rows_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def many(count: int) -> Iterator[tuple[str, Detection]]:
        return ((f"{k}.dcm", replace(FOUND, energy=k / 3)) for k in range(count))

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            write_tables(many(count), tmp_path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(table, "ROWS_AT_ONCE", 200)
    peak(200)  # imports
    assert peak(2400) < 1.5 * peak(400)
    stored = parquet.ParquetFile(tmp_path / "detections.parquet")
    assert (stored.metadata.num_rows, stored.num_row_groups) == (400, 2)


def test_a_run_that_breaks_leaves_no_table_behind(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[str, Detection]]:
        yield "a.dcm", FOUND
        raise RuntimeError("the ledger ends here")

    with pytest.raises(RuntimeError, match="ledger"):
        write_tables(broken(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_failures_may_be_any_iterable(tmp_path: Path) -> None:
    write_failures(((f"{k}.dcm", "why") for k in range(3)), tmp_path / "failures.csv")
    assert len(rows(tmp_path / "failures.csv")) == 3
