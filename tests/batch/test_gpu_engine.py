"""The engine for GPUs, here with a detector on the CPU: readers, shared memory and batches."""

import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event, active_count
from typing import NoReturn

import numpy as np
import pytest

from kneematch.batch.gpu_engine import detect_on_gpu
from kneematch.batch.local_engine import detect_chunk
from kneematch.detection.detector import Detector


@pytest.mark.parametrize(("workers", "batch_size"), [(0, 4), (1, 1), (2, 4), (3, 64)])
def test_detect_on_gpu_finds_what_one_process_finds(
    films: Path, tmp_path: Path, detector: Detector, workers: int, batch_size: int
) -> None:
    """Half images travel with 16 bits a pixel, which 8-bit networks may turn into 0.1 px."""
    paths = [str(path) for path in sorted(films.glob("*.dcm"))] * 3
    paths.insert(5, str(tmp_path / "missing.dcm"))
    numbered = list(enumerate(paths))
    batched = replace(detector, batch_size=batch_size)
    with closing(detect_on_gpu(batched, numbered, workers)) as found:
        rows = {row.index: row for some in found for row in some}
    expected = detect_chunk(detector, numbered)
    assert sorted(rows) == list(range(len(paths)))
    for row in expected:
        assert (rows[row.index].film, rows[row.index].failure) == (row.film, row.failure)
        for knee, true in zip(rows[row.index].detections, row.detections, strict=True):
            assert np.abs(knee.corners - true.corners).max() < 0.4  # 0.3 % of the width
            assert (knee.side, knee.review) == (true.side, true.review)


@pytest.mark.parametrize("workers", [0, 2])
def test_detect_on_gpu_leaves_no_thread_behind(
    films: Path, detector: Detector, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """A thread that is still in PyTorch when the interpreter ends aborts the program."""
    ended = Event()

    def slow(self: Detector) -> None:
        time.sleep(0.5)
        ended.set()

    monkeypatch.setattr(Detector, "warm_up", slow)
    numbered = list(enumerate(str(path) for path in sorted(films.glob("*.dcm"))))
    before = active_count()
    assert list(detect_on_gpu(detector, [], workers)) == []
    assert active_count() == before
    with closing(detect_on_gpu(detector, numbered, workers)) as found:
        next(found)
        assert ended.is_set()
    assert active_count() == before


def test_warm_up_survives_a_failing_search(detector: Detector) -> None:
    def fail(problem: object) -> NoReturn:
        raise RuntimeError("CUDA out of memory")

    replace(detector, solver=fail).warm_up()


def test_detect_on_gpu_works_without_shared_memory(
    films: Path, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")  # as on a Mac
    numbered = list(enumerate(str(path) for path in sorted(films.glob("*.dcm"))))
    with closing(detect_on_gpu(detector, numbered, workers=2)) as found:
        assert [row.index for some in found for row in some] == list(range(len(numbered)))
