"""The table of a run: which rows are shown, in which order, and which files are refused."""

from pathlib import Path

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.knee.quality import ATYPICAL, DISAGREE
from kneematch.run.outputs.tables import landmark_names, write_tables
from kneematch.web.detections_table import DetectionsTable, RowQuery, read_detections_table


@pytest.fixture
def table(finished_run: Path) -> DetectionsTable:
    return read_detections_table(finished_run)


def select(
    table: DetectionsTable, query: RowQuery, states: dict[int, int] | None = None
) -> list[int]:
    decided = np.zeros(len(table), np.int8)
    for row, state in (states or {}).items():
        decided[row] = state
    return table.select(query, decided).tolist()


def test_select_puts_doubtful_rows_first_and_then_high_losses(table: DetectionsTable) -> None:
    order = select(table, RowQuery())
    assert set(order[:2]) == {3, 6}
    assert sorted(order) == list(range(8))
    for part in (order[:2], order[2:]):
        losses = table.numbers["loss"][part]
        assert (np.diff(losses) <= 0).all()


def test_select_sorts_by_loss_energy_or_film(table: DetectionsTable) -> None:
    assert select(table, RowQuery(sort="film")) == list(range(8))
    assert (np.diff(table.numbers["loss"][select(table, RowQuery(sort="loss"))]) <= 0).all()
    energies = [table.numbers["energy"][row] for row in select(table, RowQuery(sort="energy"))]
    assert energies == sorted(energies, reverse=True)


def test_select_filters_by_reason_side_loss_and_film(table: DetectionsTable) -> None:
    assert set(select(table, RowQuery(reason=ATYPICAL))) == {3, 6}
    assert select(table, RowQuery(reason=DISAGREE)) == [3]
    assert set(select(table, RowQuery(side="left"))) == {0, 2, 4, 6}
    middle = float(np.median(table.numbers["loss"]))
    low, high = select(table, RowQuery(high=middle)), select(table, RowQuery(low=middle))
    assert len(low) == len(high) == 4
    assert select(table, RowQuery(film="FILM-10.", sort="film")) == [4, 5]


def test_select_filters_by_state(table: DetectionsTable) -> None:
    states = {1: 1, 2: 2, 5: 3}
    assert set(select(table, RowQuery(shown="undecided"), states)) == {0, 3, 4, 6, 7}
    assert set(select(table, RowQuery(shown="decided"), states)) == {1, 2, 5}
    assert select(table, RowQuery(shown="rejected"), states) == [2]


def test_reason_counts_are_sorted_by_frequency(table: DetectionsTable) -> None:
    assert table.reason_counts == [(ATYPICAL, 2), (DISAGREE, 1)]
    assert landmark_names(table.text) == ["plateau_medial", "plateau_lateral"]


@pytest.mark.parametrize("name", ["=1+1.dcm", "-a.dcm", "@b", "two\rlines.dcm", "'=c"])
def test_read_detections_table_restores_escaped_names(
    table: DetectionsTable, tmp_path: Path, name: str
) -> None:
    write_tables([(name, table.detection(0))], tmp_path)
    assert read_detections_table(tmp_path).text["film"][0] == name


def test_read_detections_table_reads_tables_of_version_0_1(run_folder: Path) -> None:
    path = run_folder / "detections.csv"
    path.write_text(path.read_text().replace("laterality_source,", "").replace("header,", ""))
    table = read_detections_table(run_folder)
    assert (table.detection(0).laterality, table.detection(0).laterality_source) == ("R", "")


@pytest.mark.parametrize("text", [None, "", "film,side\na,left\n", "\0"])
def test_read_detections_table_refuses_other_files_in_one_line(
    text: str | None, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "detections.csv").write_text(text)
    with pytest.raises(SettingsError, match=r"detections.csv: .*; expected"):
        read_detections_table(tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("plateau_medial_y_px", "other", "no column 'plateau_medial_y_px'"),
        (
            "plateau_medial_x_px",
            "plateau_lateral_x_px",
            "column 'plateau_lateral_x_px' occurs twice",
        ),
        ("film,side", "film,film", "no column 'side'"),
        (",left,", ",above,", "row 1: side is 'above'"),
        (",ok,", ",ok,1,", "row 1 has "),
    ],
)
def test_read_detections_table_refuses_malformed_headers_and_rows(
    before: str, after: str, problem: str, run_folder: Path
) -> None:
    path = run_folder / "detections.csv"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(SettingsError) as caught:
        read_detections_table(run_folder)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "; expected" in str(caught.value)


@pytest.mark.parametrize("value", ["", "nan", "inf", "wide", "0", "-3"])
def test_read_detections_table_refuses_areas_that_cannot_be_drawn(
    value: str, run_folder: Path
) -> None:
    table = read_detections_table(run_folder)
    path = run_folder / "detections.csv"
    width = table.text["width_px"][2]
    path.write_text(path.read_text().replace(f",{width},", f",{value},", 1))
    with pytest.raises(SettingsError, match=f"row 3: width_px is '{value}'; expected"):
        read_detections_table(run_folder)
