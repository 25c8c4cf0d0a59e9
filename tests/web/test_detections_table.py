"""The rows of a run: which are shown, and in which order."""

from pathlib import Path

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.export.tables import write_tables
from kneematch.web.detections_table import Query, Rows, load_rows


@pytest.fixture
def rows(finished_run: Path) -> Rows:
    return load_rows(finished_run)


def ordered(rows: Rows, query: Query, states: dict[int, int] | None = None) -> list[int]:
    decided = np.zeros(len(rows), np.int8)
    for row, state in (states or {}).items():
        decided[row] = state
    return rows.ordered(query, decided).tolist()


def test_the_doubtful_come_first_and_then_the_worst(rows: Rows) -> None:
    order = ordered(rows, Query())
    assert set(order[:2]) == {3, 6}
    assert sorted(order) == list(range(8))
    for part in (order[:2], order[2:]):
        losses = rows.loss[part]
        assert (np.diff(losses) <= 0).all()


def test_sorting_goes_by_what_is_asked_for(rows: Rows) -> None:
    assert ordered(rows, Query(sort="film")) == list(range(8))
    assert (np.diff(rows.loss[ordered(rows, Query(sort="loss"))]) <= 0).all()
    energies = [rows.number(row, "energy") for row in ordered(rows, Query(sort="energy"))]
    assert energies == sorted(energies, reverse=True)


def test_filters_leave_out_what_does_not_fit(rows: Rows) -> None:
    assert set(ordered(rows, Query(reason="high loss"))) == {3, 6}
    assert ordered(rows, Query(reason="low contrast")) == [3]
    assert set(ordered(rows, Query(side="left"))) == {0, 2, 4, 6}
    middle = float(np.median(rows.loss))
    low, high = ordered(rows, Query(high=middle)), ordered(rows, Query(low=middle))
    assert len(low) == len(high) == 4
    assert ordered(rows, Query(film="FILM-10.", sort="film")) == [4, 5]


def test_what_is_decided_can_be_shown_or_not(rows: Rows) -> None:
    states = {1: 1, 2: 2, 5: 3}
    assert set(ordered(rows, Query(shown="undecided"), states)) == {0, 3, 4, 6, 7}
    assert set(ordered(rows, Query(shown="decided"), states)) == {1, 2, 5}
    assert ordered(rows, Query(shown="rejected"), states) == [2]


def test_reasons_are_counted(rows: Rows) -> None:
    assert rows.frequent_reasons == [("high loss", 2), ("low contrast", 1)]
    assert rows.landmarks == ("plateau_left", "plateau_right")


@pytest.mark.parametrize("name", ["=1+1.dcm", "-a.dcm", "@b", "two\rlines.dcm", "'=c"])
def test_load_rows_restores_names_that_the_table_had_to_escape(
    rows: Rows, tmp_path: Path, name: str
) -> None:
    write_tables([(name, rows.detection(0))], tmp_path)
    assert load_rows(tmp_path).text(0, "film") == name


@pytest.mark.parametrize("text", [None, "", "film,side\na,left\n", "\0"])
def test_what_is_no_table_of_a_run_is_told(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "detections.csv").write_text(text)
    with pytest.raises(SettingsError, match=r"detections.csv: .*; expected"):
        load_rows(tmp_path)
