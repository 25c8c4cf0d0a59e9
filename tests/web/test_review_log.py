"""review.csv: decisions outlast crashes, restarts and second thoughts."""

import csv
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.web.detections_table import Rows, load_rows
from kneematch.web.review_log import AREA, COLUMNS, Area, Decision, Decisions, area_of

MOVED = Area(100.5, 90.25, 80.0, -3.5)


@pytest.fixture
def rows(finished_run: Path) -> Rows:
    return load_rows(finished_run)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "review.csv"


def decide(decisions: Decisions, rows: Rows, row: int, what: str) -> None:
    area = MOVED if what == "corrected" else area_of(rows, row)
    decisions.add(Decision(row, what, area, 0.25))


def reopened(path: Path, rows: Rows, before: Decisions | None = None) -> Decisions:
    if before is not None:
        before.close()
    return Decisions(path, rows)


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def states(decisions: Decisions) -> dict[int, str]:
    return {row: made.what for row in range(len(decisions.states)) if (made := decisions.of(row))}


def test_each_decision_is_a_line_at_once(path: Path, rows: Rows) -> None:
    decisions = Decisions(path, rows)
    decide(decisions, rows, 2, "accepted")
    decide(decisions, rows, 3, "corrected")
    told = lines(path)
    assert tuple(told[0]) == COLUMNS
    assert [line["decision"] for line in told] == ["accepted", "corrected"]
    assert [line["side"] for line in told] == ["left", "right"]
    assert told[0]["centre_x_px"] == rows.text(2, "centre_x_px")
    assert [float(told[1][name]) for name in AREA] == [100.5, 90.25, 80.0, -3.5]
    decisions.close()


def test_undo_is_another_line_and_brings_back_what_was_before(path: Path, rows: Rows) -> None:
    decisions = Decisions(path, rows)
    for what in ("accepted", "rejected"):
        decide(decisions, rows, 1, what)
    assert decisions.undo() == 1
    assert states(decisions) == {1: "accepted"}
    assert decisions.undo() == 1
    assert decisions.undo() is None
    assert states(decisions) == {}
    assert [line["decision"] for line in lines(path)] == [
        "accepted",
        "rejected",
        "undone",
        "undone",
    ]
    decisions.close()


def test_a_restart_knows_all_of_it_and_can_undo(path: Path, rows: Rows) -> None:
    decisions = Decisions(path, rows)
    for row, what in ((0, "accepted"), (1, "rejected"), (2, "corrected"), (4, "accepted")):
        decide(decisions, rows, row, what)
    decisions.undo()
    before = path.read_bytes()
    for _ in range(3):
        decisions = reopened(path, rows, decisions)
        assert path.read_bytes() == before
    assert states(decisions) == {0: "accepted", 1: "rejected", 2: "corrected"}
    assert decisions.of(2) == Decision(2, "corrected", MOVED, 0.25)
    assert decisions.last == 2
    assert decisions.undo() == 2
    decisions.close()


def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(path: Path, rows: Rows) -> None:
    decisions = Decisions(path, rows)
    decide(decisions, rows, 0, "accepted")
    whole = path.read_bytes()
    decide(decisions, rows, 1, "rejected")
    decisions.close()
    torn = path.read_bytes()
    for end in range(len(whole), len(torn)):
        path.write_bytes(torn[:end])
        decisions = Decisions(path, rows)
        assert states(decisions) == {0: "accepted"}
        assert path.read_bytes() == whole
        decisions.close()
    path.write_bytes(torn[:10])  # not even the header is whole
    decisions = Decisions(path, rows)
    decide(decisions, rows, 1, "rejected")
    assert len(lines(path)) == 1
    decisions.close()


def test_names_with_any_signs_come_back(path: Path, rows: Rows) -> None:
    place = list(rows.columns).index("film")
    cells = [list(row) for row in rows.cells[:2]]
    for row in cells:
        row[place] = '=odd, "name"\r\n\udcff\r.dcm'
    odd = Rows(rows.columns, cells)
    decisions = Decisions(path, odd)
    decide(decisions, odd, 1, "accepted")
    decisions = reopened(path, odd, decisions)
    assert states(decisions) == {1: "accepted"}
    decisions.close()


def test_a_run_made_anew_keeps_only_corrections(path: Path, rows: Rows) -> None:
    decisions = Decisions(path, rows)
    decide(decisions, rows, 0, "accepted")
    decide(decisions, rows, 1, "corrected")
    place = list(rows.columns).index("centre_x_px")
    cells = [list(row) for row in rows.cells]
    for row in cells:
        row[place] = "1.000"
    decisions = reopened(path, Rows(rows.columns, cells), decisions)
    assert states(decisions) == {1: "corrected"}
    decisions.close()


def test_a_second_review_is_kept_out(path: Path, rows: Rows) -> None:
    decisions = Decisions(path, rows)
    with pytest.raises(SettingsError, match="another review"):
        Decisions(path, rows)
    decisions.close()
    Decisions(path, rows).close()


def test_another_programs_review_csv_is_left_alone(path: Path, rows: Rows) -> None:
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SettingsError, match="its columns are a, b"):
        Decisions(path, rows)
    assert path.read_text() == "a,b\n1,2\n"
