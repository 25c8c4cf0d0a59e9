"""CSV text: no cell is a formula, no name breaks a row, and every cell reads back."""

import csv
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kneematch.films.csv_text import csv_line, read_csv, write_csv


def test_csv_line_puts_an_apostrophe_before_formulas_only() -> None:
    for cell in ("=1+1", "+x", "-x.dcm", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "'=1", "''-x"):
        # Another program's reader takes every line break as part of the cell.
        (row,) = csv.reader(io.StringIO(csv_line([cell, "right"]), newline=""))
        assert row == [f"'{cell}", "right"]
    for cell in ("-1.0000", "+3", "-12", "a=b", "'quoted' name.dcm", "骨.png"):
        assert csv_line(["a", cell, "d,e"]) == f'a,{cell},"d,e"\n'


@given(st.lists(st.text(alphabet="'=-+@\t\r\n\",;a1.\udcff"), min_size=2))
def test_csv_line_reads_back_as_one_row(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "table.csv"
    path.write_bytes(csv_line(cells).encode("utf-8", "surrogateescape"))
    assert read_csv(path) == (cells, [])


def test_write_csv_replaces_the_file_only_on_success(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with write_csv(path, ["film"]) as add:
        add([os.fsdecode(b"\xff.dcm")])
    assert path.read_bytes() == b"film\n\xff.dcm\n"
    with pytest.raises(TypeError), write_csv(path, ["film"]) as add:
        add(None)  # type: ignore[arg-type]
    assert path.read_bytes() == b"film\n\xff.dcm\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.csv"]
