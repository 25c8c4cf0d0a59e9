"""review.csv: decisions survive crashes, restarts, undo and damaged lines."""

import json
import logging
import math
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.knee.outlines import Outlines
from kneematch.paper.split import SIDES
from kneematch.run.decisions import (
    AREA_COLUMNS,
    COLUMNS,
    OLD_COLUMNS,
    Area,
    Decision,
    KneeKey,
    ReviewLog,
    read_decisions,
)
from tables import read_table

FOUND, MOVED = Area(50.125, 60.5, 70.0, 1.25), Area(100.5, 90.25, 80.0, -3.5)
KNEES: list[KneeKey] = [(f"film-{k}.dcm", side) for k in range(4) for side in SIDES]
CORRECTION = Decision(
    *KNEES[2], "corrected", MOVED, 0.25, "L", {"plateau_medial": (90.5, 91.0)}, 60.0
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "review.csv"


def decide(log: ReviewLog, row: int, state: str) -> None:
    log.add(Decision(*KNEES[row], state, MOVED if state == "corrected" else FOUND, 0.25))


def reopened(path: Path, before: ReviewLog) -> ReviewLog:
    before.close()
    return ReviewLog(path)


def states(log: ReviewLog) -> dict[int, str]:
    decisions = log.decisions
    return {row: decisions[knee].state for row, knee in enumerate(KNEES) if knee in decisions}


def test_review_log_writes_each_decision_at_once(path: Path) -> None:
    log = ReviewLog(path)
    decide(log, 2, "accepted")
    decide(log, 3, "corrected")
    written = read_table(path)
    assert tuple(written[0]) == COLUMNS
    assert [line["decision"] for line in written] == ["accepted", "corrected"]
    assert [line["side"] for line in written] == ["left", "right"]
    assert written[0]["centre_x_px"] == "50.125"
    assert [float(written[1][name]) for name in AREA_COLUMNS] == [100.5, 90.25, 80.0, -3.5]
    log.close()


def test_review_log_undo_adds_a_line_and_restores_the_decision_before(path: Path) -> None:
    log = ReviewLog(path)
    for state in ("accepted", "rejected"):
        decide(log, 1, state)
    assert log.undo() == Decision(*KNEES[1], "rejected", FOUND, 0.25)
    assert states(log) == {1: "accepted"}
    assert log.undo() == Decision(*KNEES[1], "accepted", FOUND, 0.25)
    assert log.undo() is None
    assert states(log) == {}
    assert [line["decision"] for line in read_table(path)] == [
        "accepted",
        "rejected",
        "undone",
        "undone",
    ]
    log.close()


def test_review_log_is_unchanged_by_a_restart(path: Path) -> None:
    log = ReviewLog(path)
    for row, state in ((0, "accepted"), (1, "rejected"), (2, "corrected"), (4, "accepted")):
        decide(log, row, state)
    log.undo()
    before = path.read_bytes()
    for _ in range(3):
        log = reopened(path, log)
        assert path.read_bytes() == before
    assert states(log) == {0: "accepted", 1: "rejected", 2: "corrected"}
    assert log.last == log.decisions[KNEES[2]] == Decision(*KNEES[2], "corrected", MOVED, 0.25)
    assert read_decisions(path) == log.decisions
    assert log.undo() == Decision(*KNEES[2], "corrected", MOVED, 0.25)
    assert read_decisions(path) == log.decisions
    log.close()


def test_review_log_removes_a_torn_last_line(path: Path) -> None:
    log = ReviewLog(path)
    decide(log, 0, "accepted")
    whole = path.read_bytes()
    decide(log, 1, "rejected")
    log.close()
    torn = path.read_bytes()
    for end in range(len(whole), len(torn)):
        path.write_bytes(torn[:end])
        log = ReviewLog(path)
        assert states(log) == {0: "accepted"}
        assert path.read_bytes() == whole
        log.close()
    path.write_bytes(torn[:10])  # not even the header is whole
    log = ReviewLog(path)
    decide(log, 1, "rejected")
    assert len(read_table(path)) == 1
    log.close()


def test_review_log_keeps_any_film_name(path: Path) -> None:
    log, odd = ReviewLog(path), '=odd, "name"\r\n\udcff\r.dcm'
    log.add(Decision(odd, "right", "accepted", FOUND))
    log = reopened(path, log)
    assert log.decisions == {(odd, "right"): Decision(odd, "right", "accepted", FOUND)}
    log.close()


def test_review_log_keeps_landmarks_laterality_and_height(path: Path) -> None:
    log = ReviewLog(path)
    unknown = replace(CORRECTION, film=KNEES[4][0], laterality="", landmarks=None, height_px=None)
    for decision in (CORRECTION, unknown):
        log.add(decision)
    log.close()
    assert list(read_decisions(path).values()) == [CORRECTION, unknown]
    assert [line["laterality"] for line in read_table(path)] == ["L", "unknown"]
    assert json.loads(read_table(path)[0]["landmarks"]) == {"plateau_medial": [90.5, 91.0]}


def test_review_log_continues_a_file_of_version_0_1(path: Path) -> None:
    header, cells = ",".join(OLD_COLUMNS), "film-1.dcm,left,corrected,100.5,90.25,80.0,-3.5,0.25"
    path.write_text(f"{header}\n2026-01-01T00:00:00+00:00,{cells}\n")
    assert read_decisions(path) == {KNEES[2]: Decision(*KNEES[2], "corrected", MOVED, 0.25)}
    log = ReviewLog(path)
    assert log.warning == ""
    log.add(CORRECTION)
    log.close()
    assert [tuple(line) for line in read_table(path)] == [COLUMNS, COLUMNS]
    assert all(None not in line.values() for line in read_table(path))
    assert read_decisions(path) == {KNEES[2]: CORRECTION}


def test_review_log_continues_a_file_without_outlines(path: Path) -> None:
    header, cells = ",".join(COLUMNS[:-1]), "film-1.dcm,left,corrected,100.5,90.25,80.0,-3.5,0.25"
    path.write_text(f"{header}\n2026-01-01T00:00:00+00:00,{cells},L,,\n")
    assert read_decisions(path) == {KNEES[2]: Decision(*KNEES[2], "corrected", MOVED, 0.25, "L")}
    log = ReviewLog(path)
    assert log.warning == ""
    log.add(CORRECTION)
    log.close()
    assert [tuple(line) for line in read_table(path)] == [COLUMNS, COLUMNS]
    assert read_decisions(path) == {KNEES[2]: CORRECTION}


def test_review_log_keeps_outlines_that_were_drawn(path: Path) -> None:
    x = np.linspace(10, 90, 9)
    found = Outlines(np.stack([x, 0 * x + 40], 1), np.stack([x, 0 * x + 50.125], 1), "right")
    drawn = replace(found, mm_per_px=0.2).redrawn(found.femur - 1, found.tibia)
    log = ReviewLog(path)
    log.add(replace(CORRECTION, outlines=drawn))
    log = reopened(path, log)
    kept = log.decisions[CORRECTION.knee].outlines
    assert kept is not None
    assert kept.corrected
    assert kept.to_dict() == drawn.to_dict()
    log.undo()
    log.close()
    assert read_decisions(path) == {}


def test_decision_refuses_outlines_that_are_not_on_a_film() -> None:
    line = np.array([[0.0, 0.0], [3.0, 0.0]])
    for tibia in (line, line * 1e7):
        with pytest.raises(SettingsError, match="expected borders on a film; draw them there"):
            replace(CORRECTION, outlines=Outlines(line, tibia, "left"))


def test_read_decisions_without_a_file_finds_none(path: Path) -> None:
    assert read_decisions(path) == {}
    assert not path.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"side": "above"},
        {"state": "undone"},
        {"laterality": "B"},
        {"landmarks": {"a": (math.nan, 1.0)}},
        {"height_px": math.inf},
    ],
)
def test_decision_refuses_what_no_reviewer_means(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        replace(CORRECTION, **wrong)


@pytest.mark.parametrize(
    "values",
    [(math.nan, 1, 9, 0), (1, 1e7, 9, 0), (1, 1, 3, 0), (1, 1, 9, 400), (1, 1, 9, math.nan)],
)
def test_area_refuses_what_lies_on_no_film(values: tuple[float, float, float, float]) -> None:
    with pytest.raises(SettingsError):
        Area(*values)


def test_review_log_refuses_a_second_review(path: Path) -> None:
    log = ReviewLog(path)
    with pytest.raises(SettingsError, match="another review"):
        ReviewLog(path)
    log.close()
    ReviewLog(path).close()


def test_review_log_refuses_a_file_with_other_columns(path: Path) -> None:
    path.write_text("a,b\n1,2\n")
    with pytest.raises(SettingsError, match="its columns are a, b"):
        ReviewLog(path)
    assert path.read_text() == "a,b\n1,2\n"


def decided(path: Path) -> list[bytes]:
    """Write a file with a decision about each row, and return its lines."""
    log = ReviewLog(path)
    for row in range(len(KNEES)):
        decide(log, row, "accepted")
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
    "endless number": lambda line: line.replace(
        b",,,\n", b',"{""a"": [1, 1%b]}",,\n' % (b"0" * 400)
    ),
    "no landmarks": lambda line: line.replace(b",,,\n", b",7,,\n"),
    "no outlines": lambda line: line.replace(b",,,\n", b",,,7\n"),
    "one border": lambda line: line.replace(b",,,\n", b',,,"{""femur"": [[1, 2], [3, 4]]}"\n'),
    "two lines of text": lambda line: b"one\ntwo\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_review_log_keeps_all_other_lines_beside_a_damaged_one(
    damage: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = decided(path)
    damaged = [*lines[:3], DAMAGE[damage](lines[3]), *lines[4:]]
    path.write_bytes(b"".join(damaged))
    with caplog.at_level(logging.WARNING, "kneematch"):
        log = ReviewLog(path)
    assert states(log) == {row: "accepted" for row in range(len(KNEES)) if row != 2}
    assert path.read_bytes() == b"".join([*lines[:3], *lines[4:]])
    assert backups(path) == [b"".join(damaged)]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == log.warning
    assert message.startswith(f"{path}: cannot read line 4; ")
    decide(log, 2, "rejected")
    log = reopened(path, log)
    assert log.warning == ""
    assert states(log)[2] == "rejected"
    assert len(backups(path)) == 1
    log.close()


def test_review_log_loses_nothing_to_stray_quotes_anywhere(path: Path) -> None:
    text = b"".join(decided(path))
    header = text.index(b"\n") + 1
    for place in range(header, len(text), 7):
        path.write_bytes(text[:place] + b'"' + text[place:])
        log = ReviewLog(path)
        assert len(states(log)) >= len(KNEES) - 1
        kept = path.read_bytes()
        assert (text[:place] + b'"' + text[place:]) in [kept, *backups(path)]
        log.close()


def test_review_log_makes_a_backup_of_a_torn_line(path: Path) -> None:
    lines = decided(path)
    torn = b"".join(lines)[:-4]
    path.write_bytes(torn)
    ReviewLog(path).close()
    assert path.read_bytes() == b"".join(lines[:-1])
    assert backups(path) == [torn]


def test_review_log_repaired_is_still_locked(path: Path) -> None:
    lines = decided(path)
    path.write_bytes(b"".join([*lines[:2], b'"\n', *lines[2:]]))
    log = ReviewLog(path)
    assert log.warning
    with pytest.raises(SettingsError, match="another review"):
        ReviewLog(path)
    log.close()


def test_review_log_is_readable_by_the_owner_only(path: Path) -> None:
    lines = decided(path)
    path.write_bytes(b"".join([*lines, b"?\n"]))
    ReviewLog(path).close()
    files = list(path.parent.iterdir())
    assert len(files) == 2  # with the backup
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
