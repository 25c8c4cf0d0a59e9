"""The ledger: what was written stays, what was torn goes, and other settings are refused."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from kneematch.batch.journal import Ledger, check_ledger, start_ledger
from kneematch.batch.row import Record, from_line, to_line
from kneematch.detection.detection import Detection
from kneematch.errors import SettingsError

SETTINGS = {"method": "search", "batch_size": 2, "films": "abc"}
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


def record(index: int) -> Record:
    if index % 3 == 2:
        return Record(index, f"film-{index}", failure="no film; expected one")
    return Record(index, f"film-{index}", (480, 600), (knee(0.1 * index), knee(0.7)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    start_ledger(path, SETTINGS, force=False)
    return path


def fill(path: Path, batches: list[int], count: int = 7) -> list[Record]:
    """Enter batches of two films; return all that the ledger then holds."""
    with Ledger(path, count, 2) as ledger:
        for batch in batches:
            ledger.append(map(record, ledger.films(batch)))
        return list(ledger.records())


def left(path: Path, count: int = 7) -> list[int]:
    with Ledger(path, count, 2) as ledger:
        return ledger.left()


@pytest.mark.parametrize("index", [0, 2])
def test_a_record_comes_back_exactly(index: int) -> None:
    told = to_line(record(index))
    assert told.count(b"\n") == 1
    assert to_line(from_line(told)) == told
    back = from_line(told)
    assert (back.index, back.film, back.failure) == (
        index,
        record(index).film,
        record(index).failure,
    )
    for found, true in zip(back.detections, record(index).detections, strict=True):
        assert found.loss == true.loss
        assert np.array_equal(found.corners, true.corners)
        assert found.centre == true.centre
        assert math.copysign(1, found.rotation_deg) == -1
        assert found.landmarks == true.landmarks


def test_any_name_of_a_film_is_one_line() -> None:
    line = to_line(Record(3, ODD_NAME, failure=f"{ODD_NAME}: empty"))
    assert line.count(b"\n") == 1
    assert from_line(line).film == ODD_NAME


def test_records_are_told_in_the_order_of_the_films(path: Path) -> None:
    assert [told.index for told in fill(path, [3, 0, 2])] == [0, 1, 4, 5, 6]
    assert left(path) == [1]
    assert [told.index for told in fill(path, [1])] == list(range(7))
    assert left(path) == []


def test_every_cut_of_the_last_batch_loses_that_batch_alone(path: Path) -> None:
    fill(path, [0])
    before = path.stat().st_size
    fill(path, [2])
    whole = path.read_bytes()
    for size in range(before, len(whole), 7):
        path.write_bytes(whole[:size])
        assert left(path) == [1, 2, 3]
        assert path.read_bytes() == whole[:before]
    path.write_bytes(whole)
    assert left(path) == [1, 3]


def test_zeros_that_a_power_cut_left_are_cut_off(path: Path) -> None:
    fill(path, [0])
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 4096)
    assert left(path) == [1, 2, 3]
    fill(path, [1])
    assert path.read_bytes().startswith(whole + b'{"index": 2')


def test_there_is_one_run_at_a_time(path: Path) -> None:
    with Ledger(path, 7, 2), pytest.raises(SettingsError, match="another run"):
        Ledger(path, 7, 2)


def test_a_ledger_is_replaced_only_when_told(path: Path) -> None:
    fill(path, [0])
    with pytest.raises(SettingsError, match=r"--resume.*--force"):
        start_ledger(path, SETTINGS, force=False)
    assert left(path) == [1, 2, 3]
    start_ledger(path, SETTINGS, force=True)
    assert left(path) == [0, 1, 2, 3]


def test_other_settings_are_named(path: Path) -> None:
    check_ledger(path, SETTINGS)
    with pytest.raises(SettingsError, match="batch_size was 2 and is 4") as refusal:
        check_ledger(path, SETTINGS | {"batch_size": 4})
    assert "method" not in str(refusal.value)
    with pytest.raises(SettingsError, match="paper was not set and is True"):
        check_ledger(path, SETTINGS | {"paper": True})


@pytest.mark.parametrize("text", ["", "mine\n", "[1]\n", '{"format": "other/2"}\n'])
def test_what_is_no_ledger_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(SettingsError, match="not a ledger"):
        check_ledger(path, SETTINGS)
