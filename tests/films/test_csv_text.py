"""CSV text: no cell is a formula, no name breaks a row, and every cell reads back."""

import csv
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kneematch.films.csv_text import csv_line, neutralise, read_csv, restore, write_csv

FORMULAS = ["=1+1", "+x", "-x.dcm", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "'=1", "''-x"]


def read_back(text: str) -> list[list[str]]:
    return list(read_csv(io.StringIO(text, newline="")))


@pytest.mark.parametrize("cell", FORMULAS)
def test_neutralise_puts_an_apostrophe_before_a_formula(cell: str) -> None:
    assert neutralise(cell) == f"'{cell}"
    assert restore(neutralise(cell)) == cell


@pytest.mark.parametrize("cell", ["", "-1.0000", "+3", "-12", "a=b", "'quoted' name.dcm", "骨.png"])
def test_neutralise_leaves_numbers_and_plain_text(cell: str) -> None:
    assert neutralise(cell) == restore(cell) == cell


@given(st.lists(st.text(alphabet="'=-+@\t\r\n\",;a1.\udcff"), min_size=2))
def test_csv_line_reads_back_as_one_row(cells: list[str]) -> None:
    assert read_back(csv_line(cells)) == [cells]


@pytest.mark.parametrize("cell", ["a\rb.dcm", "a\r\nb", "a\nb", "\r"])
def test_csv_line_quotes_every_line_break_for_other_readers(cell: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_line([cell, "right"]), newline=""))
    assert row == [neutralise(cell), "right"]


def test_csv_line_ends_with_a_line_feed_alone() -> None:
    assert csv_line(["a", "b c", "d,e"]) == 'a,b c,"d,e"\n'


def test_write_csv_replaces_the_file_only_on_success(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with write_csv(path, ["film"]) as add:
        add([os.fsdecode(b"\xff.dcm")])
    assert path.read_bytes() == b"film\n\xff.dcm\n"
    with pytest.raises(TypeError), write_csv(path, ["film"]) as add:
        add(None)  # type: ignore[arg-type]
    assert path.read_bytes() == b"film\n\xff.dcm\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.csv"]
