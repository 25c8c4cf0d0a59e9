"""Rows are the same however the work is shared out, and whatever happens to a worker."""

import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from kneematch.batch.config import DetectorSource
from kneematch.batch.local_engine import detect_chunk, detect_rows
from kneematch.detection.detector import Detector

SOURCE = DetectorSource(method="neural", device="cpu")


@pytest.fixture
def named(films: Path, tmp_path: Path) -> list[str]:
    """Films, good and bad, one of them with a name that is not UTF-8 and has two lines."""
    good = [str(films / f"phantom-{k:05d}.dcm") for k in range(7)]
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\nodd.dcm")
    shutil.copy(good[0], odd)
    broken = tmp_path / "broken.dcm"
    broken.write_bytes(Path(good[1]).read_bytes()[:3000])
    return [*good[:3], str(broken), odd, *good[3:], str(tmp_path / "missing.dcm")]


def lines(detector: Detector, named: Sequence[str], workers: int) -> list[bytes]:
    numbered = list(enumerate(named))
    with closing(detect_rows(detector, SOURCE, numbered, workers=workers)) as found:
        return sorted(row.to_line() for rows in found for row in rows)


def test_detect_rows_does_not_depend_on_workers(named: list[str], detector: Detector) -> None:
    alone = lines(detector, named, 0)
    assert len(alone) == len(named) == 10
    assert sum(b"failure" in line for line in alone) == 2
    assert lines(detector, named, 1) == alone
    assert lines(detector, named, 3) == alone


def test_detect_chunk_does_not_depend_on_the_size_of_the_chunk(
    named: list[str], detector: Detector
) -> None:
    numbered = list(enumerate(named))
    whole = detect_chunk(detector, numbered)
    single = [detect_chunk(detector, [film])[0] for film in numbered]
    assert [row.to_line() for row in whole] == [row.to_line() for row in single]
