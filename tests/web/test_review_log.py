"""review.csv: decisions survive crashes, restarts, undo and damaged lines."""

import csv
import logging
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.web.detections_table import DetectionsTable, read_detections_table
from kneematch.web.review_log import AREA_COLUMNS, COLUMNS, Area, Decision, ReviewLog, area_of_row

MOVED = Area(100.5, 90.25, 80.0, -3.5)


@pytest.fixture
def table(finished_run: Path) -> DetectionsTable:
    return read_detections_table(finished_run)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "review.csv"


def decide(log: ReviewLog, table: DetectionsTable, row: int, state: str) -> None:
    area = MOVED if state == "corrected" else area_of_row(table, row)
    log.add(Decision(row, state, area, 0.25))


def reopened(path: Path, table: DetectionsTable, before: ReviewLog | None = None) -> ReviewLog:
    if before is not None:
        before.close()
    return ReviewLog(path, table)


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def states(log: ReviewLog) -> dict[int, str]:
    return {row: made.state for row in range(len(log.states)) if (made := log.get(row))}


def test_review_log_writes_each_decision_at_once(path: Path, table: DetectionsTable) -> None:
    log = ReviewLog(path, table)
    decide(log, table, 2, "accepted")
    decide(log, table, 3, "corrected")
    written = lines(path)
    assert tuple(written[0]) == COLUMNS
    assert [line["decision"] for line in written] == ["accepted", "corrected"]
    assert [line["side"] for line in written] == ["left", "right"]
    assert written[0]["centre_x_px"] == table.text["centre_x_px"][2]
    assert [float(written[1][name]) for name in AREA_COLUMNS] == [100.5, 90.25, 80.0, -3.5]
    log.close()


def test_review_log_undo_adds_a_line_and_restores_the_decision_before(
    path: Path, table: DetectionsTable
) -> None:
    log = ReviewLog(path, table)
    for state in ("accepted", "rejected"):
        decide(log, table, 1, state)
    assert log.undo() == 1
    assert states(log) == {1: "accepted"}
    assert log.undo() == 1
    assert log.undo() is None
    assert states(log) == {}
    assert [line["decision"] for line in lines(path)] == [
        "accepted",
        "rejected",
        "undone",
        "undone",
    ]
    log.close()


def test_review_log_is_unchanged_by_a_restart(path: Path, table: DetectionsTable) -> None:
    log = ReviewLog(path, table)
    for row, state in ((0, "accepted"), (1, "rejected"), (2, "corrected"), (4, "accepted")):
        decide(log, table, row, state)
    log.undo()
    before = path.read_bytes()
    for _ in range(3):
        log = reopened(path, table, log)
        assert path.read_bytes() == before
    assert states(log) == {0: "accepted", 1: "rejected", 2: "corrected"}
    assert log.get(2) == Decision(2, "corrected", MOVED, 0.25)
    assert log.last == 2
    assert log.undo() == 2
    log.close()


def test_review_log_removes_a_torn_last_line(path: Path, table: DetectionsTable) -> None:
    log = ReviewLog(path, table)
    decide(log, table, 0, "accepted")
    whole = path.read_bytes()
    decide(log, table, 1, "rejected")
    log.close()
    torn = path.read_bytes()
    for end in range(len(whole), len(torn)):
        path.write_bytes(torn[:end])
        log = ReviewLog(path, table)
        assert states(log) == {0: "accepted"}
        assert path.read_bytes() == whole
        log.close()
    path.write_bytes(torn[:10])  # not even the header is whole
    log = ReviewLog(path, table)
    decide(log, table, 1, "rejected")
    assert len(lines(path)) == 1
    log.close()


def test_review_log_keeps_any_film_name(path: Path, table: DetectionsTable) -> None:
    first = {name: cells[:2] for name, cells in table.text.items()}
    odd = DetectionsTable(first | {"film": ['=odd, "name"\r\n\udcff\r.dcm'] * 2})
    log = ReviewLog(path, odd)
    decide(log, odd, 1, "accepted")
    log = reopened(path, odd, log)
    assert states(log) == {1: "accepted"}
    log.close()


def test_review_log_keeps_only_corrections_after_another_run(
    path: Path, table: DetectionsTable
) -> None:
    log = ReviewLog(path, table)
    decide(log, table, 0, "accepted")
    decide(log, table, 1, "corrected")
    elsewhere = DetectionsTable({**table.text, "centre_x_px": ["1.000"] * len(table)})
    log = reopened(path, elsewhere, log)
    assert states(log) == {1: "corrected"}
    log.close()


def test_review_log_refuses_a_second_review(path: Path, table: DetectionsTable) -> None:
    log = ReviewLog(path, table)
    with pytest.raises(SettingsError, match="another review"):
        ReviewLog(path, table)
    log.close()
    ReviewLog(path, table).close()


def test_review_log_refuses_a_file_with_other_columns(path: Path, table: DetectionsTable) -> None:
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SettingsError, match="its columns are a, b"):
        ReviewLog(path, table)
    assert path.read_text() == "a,b\n1,2\n"


def decided(path: Path, table: DetectionsTable) -> list[bytes]:
    """Write a file with a decision about each row, and return its lines."""
    log = ReviewLog(path, table)
    for row in range(len(table)):
        decide(log, table, row, "accepted")
    log.close()
    return path.read_bytes().splitlines(keepends=True)


def backups(path: Path) -> list[bytes]:
    return [copy.read_bytes() for copy in path.parent.glob("review.csv.*.bak")]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "open quote": lambda line: line.replace(b",", b',"', 1),
    "quote at the end": lambda line: line.replace(b"\n", b'"\n'),
    "cell missing": lambda line: line.replace(b",accepted", b"", 1),
    "cell too many": lambda line: line.replace(b",accepted", b",accepted,1", 1),
    "unknown decision": lambda line: line.replace(b"accepted", b"maybe", 1),
    "not a number": lambda line: line.replace(b"0.250000", b"low", 1),
    "binary": lambda line: bytes(range(256)).replace(b"\n", b"") + b"\n",
    "two lines of text": lambda line: b"one\ntwo\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_review_log_keeps_all_other_lines_beside_a_damaged_one(
    damage: str, path: Path, table: DetectionsTable, caplog: pytest.LogCaptureFixture
) -> None:
    lines = decided(path, table)
    damaged = [*lines[:3], DAMAGE[damage](lines[3]), *lines[4:]]
    path.write_bytes(b"".join(damaged))
    with caplog.at_level(logging.WARNING, "kneematch"):
        log = ReviewLog(path, table)
    assert states(log) == {row: "accepted" for row in range(len(table)) if row != 2}
    assert path.read_bytes() == b"".join([*lines[:3], *lines[4:]])
    assert backups(path) == [b"".join(damaged)]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == log.warning
    assert message.startswith(f"{path}: cannot read line 4; ")
    decide(log, table, 2, "rejected")
    log = reopened(path, table, log)
    assert log.warning == ""
    assert states(log)[2] == "rejected"
    assert len(backups(path)) == 1
    log.close()


def test_review_log_loses_nothing_to_stray_quotes_anywhere(
    path: Path, table: DetectionsTable
) -> None:
    text = b"".join(decided(path, table))
    header = text.index(b"\n") + 1
    for place in range(header, len(text), 7):
        path.write_bytes(text[:place] + b'"' + text[place:])
        log = ReviewLog(path, table)
        assert len(states(log)) >= len(table) - 1
        kept = path.read_bytes()
        assert (text[:place] + b'"' + text[place:]) in [kept, *backups(path)]
        log.close()


def test_review_log_makes_a_backup_of_a_torn_line(path: Path, table: DetectionsTable) -> None:
    lines = decided(path, table)
    torn = b"".join(lines)[:-4]
    path.write_bytes(torn)
    ReviewLog(path, table).close()
    assert path.read_bytes() == b"".join(lines[:-1])
    assert backups(path) == [torn]


def test_review_log_repaired_is_still_locked(path: Path, table: DetectionsTable) -> None:
    lines = decided(path, table)
    path.write_bytes(b"".join([*lines[:2], b'"\n', *lines[2:]]))
    log = ReviewLog(path, table)
    assert log.warning
    with pytest.raises(SettingsError, match="another review"):
        ReviewLog(path, table)
    log.close()


def test_review_log_is_readable_by_the_owner_only(path: Path, table: DetectionsTable) -> None:
    lines = decided(path, table)
    path.write_bytes(b"".join([*lines, b"?\n"]))
    ReviewLog(path, table).close()
    files = list(path.parent.iterdir())
    assert len(files) == 2  # with the backup
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
