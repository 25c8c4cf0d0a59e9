"""Batches of films on this machine: the same records however they are read."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import torch

from kneematch.batch.local_engine import read_films, search_batches
from kneematch.batch.row import to_line
from kneematch.detection.detector import Detector
from kneematch.detection.prepare import Prepared
from kneematch.errors import SettingsError

Make = Callable[..., Detector]


@pytest.fixture
def named(films: Path, tmp_path: Path) -> list[str]:
    """Films, good and bad, one of them with a name that is not UTF-8 and has two lines."""
    good = [str(films / f"phantom-{k:05d}.dcm") for k in range(7)]
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\nodd.dcm")
    shutil.copy(good[0], odd)
    broken = tmp_path / "broken.dcm"
    broken.write_bytes(Path(good[1]).read_bytes()[:3000])
    return [*good[:3], str(broken), odd, *good[3:], str(tmp_path / "missing.dcm")]


def batches(count: int, size: int) -> list[range]:
    return [range(k, min(k + size, count)) for k in range(0, count, size)]


def lines(detector: Detector, named: Sequence[str], workers: int) -> bytes:
    numbers = batches(len(named), detector.batch_size)
    with closing(search_batches(detector, named, numbers, workers=workers)) as found:
        return b"".join(to_line(record) for records in found for record in records)


def test_workers_change_nothing(named: list[str], make_detector: Make) -> None:
    detector = make_detector()
    alone = lines(detector, named, 0)
    assert alone.count(b"\n") == len(named) == 10
    assert alone.count(b"failure") == 2
    assert lines(detector, named, 1) == alone
    assert lines(detector, named, 3) == alone


def test_batches_are_of_the_list_and_not_of_what_is_left(
    named: list[str], make_detector: Make
) -> None:
    detector = make_detector()
    whole = lines(detector, named, 0).splitlines(keepends=True)
    with closing(search_batches(detector, named, [range(3, 6)], workers=0)) as found:
        (records,) = found
    assert [to_line(record) for record in records] == whole[3:6]


def test_later_films_are_read_while_a_batch_is_searched(named: list[str]) -> None:
    with closing(read_films(named, 0.0, workers=2, ahead=8)) as films:
        next(films)
        time.sleep(2)  # a search
        started = time.monotonic()
        ready = [next(films) for _ in range(6)]
        assert time.monotonic() - started < 0.2
    assert sum(isinstance(film, Prepared) for film in ready) == 5


def test_a_bug_in_reading_is_the_films_failure_and_not_the_runs(
    named: list[str], make_detector: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(film: str, room: float) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("kneematch.batch.reader.load", broken)
    told = lines(make_detector(), named[:2], 0)
    assert told.count(b"ZeroDivisionError: oh; expected a film or a known fault") == 2


def test_a_batch_too_large_for_the_gpu_is_told(
    named: list[str], make_detector: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(detector: Detector, films: object) -> None:
        raise torch.cuda.OutOfMemoryError("2 GiB")

    monkeypatch.setattr(Detector, "find", full)
    with pytest.raises(SettingsError, match="smaller --batch-size"):
        lines(make_detector(), named[:2], 0)
