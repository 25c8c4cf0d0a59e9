"""The journal: what was written stays, damaged lines are done again, other settings refused."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from kneematch.batch.journal import Journal, Row, check_journal, start_journal
from kneematch.detection.detection import Detection
from kneematch.errors import SettingsError

SETTINGS = {"method": "search", "paper": False, "films": "abc"}
ODD_NAME = os.fsdecode(b"odd \xff\n name.dcm")


def knee(value: float) -> Detection:
    """One whose every number is hard to write in decimals."""
    return Detection(
        side="left",
        laterality="R",
        energy=value,
        loss=math.pi * value,
        polarity="positive",
        method="search",
        corners=np.array([[value, 1 / 3], [1e-17, 2e17], [math.e, -0.1], [0.1 + 0.2, 5]]),
        centre=(value / 7, 1e300),
        width_px=1 / 3,
        height_px=2 / 3,
        rotation_deg=-0.0,
        mm_per_px=None,
        landmarks={"ä": (1 / 9, 2 / 9)},
    )


def row(index: int) -> Row:
    if index % 3 == 2:
        return Row(index, f"film-{index}", failure="no film; expected one")
    return Row(index, f"film-{index}", (480, 600), (knee(0.1 * index), knee(0.7)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    start_journal(path, SETTINGS)
    return path


def fill(path: Path, indices: list[int], count: int = 7) -> list[Row]:
    """Append rows; return all that the journal then holds."""
    with Journal(path, count) as journal:
        journal.append(map(row, indices))
        return list(journal.rows())


def remaining(path: Path, count: int = 7) -> list[int]:
    with Journal(path, count) as journal:
        assert journal.done() == count - len(journal.remaining())
        return journal.remaining()


@pytest.mark.parametrize("index", [0, 2])
def test_row_comes_back_exactly_from_its_line(index: int) -> None:
    line = row(index).to_line()
    assert line.count(b"\n") == 1
    back = Row.from_line(line)
    assert back.to_line() == line
    assert (back.index, back.film, back.failure) == (index, row(index).film, row(index).failure)
    for found, true in zip(back.detections, row(index).detections, strict=True):
        assert found.loss == true.loss
        assert np.array_equal(found.corners, true.corners)
        assert found.centre == true.centre
        assert math.copysign(1, found.rotation_deg) == -1
        assert found.landmarks == true.landmarks


def test_row_with_any_film_name_is_one_line() -> None:
    line = Row(3, ODD_NAME, failure=f"{ODD_NAME}: empty").to_line()
    assert line.count(b"\n") == 1
    assert Row.from_line(line).film == ODD_NAME


def test_journal_yields_rows_in_the_order_of_the_films(path: Path) -> None:
    assert [each.index for each in fill(path, [6, 0, 1, 4, 5])] == [0, 1, 4, 5, 6]
    assert remaining(path) == [2, 3]
    assert [each.index for each in fill(path, [3, 2])] == list(range(7))
    assert remaining(path) == []


def test_journal_loses_only_the_line_that_was_cut(path: Path) -> None:
    fill(path, [0, 1])
    before = path.stat().st_size
    fill(path, [4])
    whole = path.read_bytes()
    for size in range(before, len(whole), 7):
        path.write_bytes(whole[:size])
        assert remaining(path) == [2, 3, 4, 5, 6]
        assert path.read_bytes() == whole[:before]
    path.write_bytes(whole)
    assert remaining(path) == [2, 3, 5, 6]


def test_journal_cuts_off_zeros_that_a_power_cut_left(path: Path) -> None:
    fill(path, [0, 1])
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 4096)
    assert remaining(path) == [2, 3, 4, 5, 6]
    fill(path, [2])
    assert path.read_bytes().startswith(whole + b'{"index": 2')


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[" * 5000,
        b'{"index": 1}',
        b'{"index": Infinity, "film": "x", "failure": "y"}',
        b'{"index": 99, "film": "x", "failure": "y"}',
        b"\xff",
    ],
)
def test_journal_keeps_all_good_lines_around_a_damaged_one(path: Path, damage: bytes) -> None:
    fill(path, [0, 1, 2])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], damage + b"\n", *lines[3:]]))
    assert remaining(path) == [1, 3, 4, 5, 6]
    assert [each.index for each in fill(path, [1])] == [0, 1, 2]


def test_journal_is_open_once_at_a_time(path: Path) -> None:
    with Journal(path, 7), pytest.raises(SettingsError, match="another run"):
        Journal(path, 7)


def test_check_journal_names_settings_that_differ(path: Path) -> None:
    check_journal(path, SETTINGS)
    with pytest.raises(SettingsError, match="paper was False and is True") as refusal:
        check_journal(path, SETTINGS | {"paper": True})
    assert "method" not in str(refusal.value)
    with pytest.raises(SettingsError, match="model was not set and is abc"):
        check_journal(path, SETTINGS | {"model": "abc"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mine\n",
        "[1]\n",
        '{"format": "other/2"}\n',
        '{"format": "kneematch-journal/1"}\n',
        '{"format": "kneematch-journal/1", "settings": {}, "started": 1' + "0" * 400 + "}\n",
    ],
)
def test_check_journal_refuses_other_files(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(SettingsError, match="not a journal"):
        check_journal(path, SETTINGS)
