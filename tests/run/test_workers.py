"""Rows are the same however the work is shared out, and whatever happens to a worker."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from kneematch.errors import SettingsError
from kneematch.knee.detector import Detector
from kneematch.run import workers as local_engine
from kneematch.run.config import DetectConfig
from kneematch.run.row import Row
from kneematch.run.workers import (
    NumberedFilms,
    chunks,
    detect_chunk,
    detect_in_worker,
    detect_rows,
)

SOURCE = DetectConfig(method="neural", device="cpu")


@pytest.fixture
def named(films: Path, tmp_path: Path) -> list[str]:
    """Films, good and bad, one of them with a name that is not UTF-8 and has two lines."""
    good = [str(films / f"phantom-{k:05d}.dcm") for k in range(7)]
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\nodd.dcm")
    shutil.copy(good[0], odd)
    broken = tmp_path / "broken.dcm"
    broken.write_bytes(Path(good[1]).read_bytes()[:3000])
    return [*good[:3], str(broken), odd, *good[3:], str(tmp_path / "missing.dcm")]


def lines(detector: Detector, named: Sequence[str], workers: int) -> list[str]:
    numbered = list(enumerate(named))
    with closing(detect_rows(detector, SOURCE, numbered, workers=workers)) as found:
        return sorted(json.dumps(row.to_dict()) for rows in found for row in rows)


def test_detect_rows_does_not_depend_on_workers(named: list[str], detector: Detector) -> None:
    alone = lines(detector, named, 0)
    assert len(alone) == len(named) == 10
    assert sum("failure" in line for line in alone) == 2
    assert lines(detector, named, 1) == alone
    assert lines(detector, named, 3) == alone


def test_detect_chunk_does_not_depend_on_the_size_of_the_chunk(
    named: list[str], detector: Detector
) -> None:
    numbered = list(enumerate(named))
    whole = detect_chunk(detector, numbered)
    single = [detect_chunk(detector, [film])[0] for film in numbered]
    assert [row.to_dict() for row in whole] == [row.to_dict() for row in single]


def test_chunks_are_batches_on_a_gpu() -> None:
    films = [(k, f"{k}.dcm") for k in range(1000)]
    sizes = {
        device: {len(chunk) for chunk in chunks(films, 2, DetectConfig(device=device))}
        for device in ("cpu", "cuda")
    }
    assert sizes == {"cpu": {8}, "cuda": {16, 8}}
    assert len(chunks(films, 2, DetectConfig(device="cuda", batch_size=5))) == 200
    assert len(chunks(films[:40], 2, DetectConfig(device="cuda"))) == 10  # enough for the GPU
    assert len(chunks(films[:40], 2, DetectConfig(device="cpu"))) == 20
    assert len(chunks(films[:40], 0, DetectConfig(device="cuda"))) == 3


@pytest.mark.parametrize("fits_alone", [True, False])
def test_detect_rows_tries_again_alone_what_did_not_fit_into_a_gpu(
    named: list[str],
    detector: Detector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fits_alone: bool,
) -> None:
    tried = []

    def full(
        source: DetectConfig, tasks: Sequence[NumberedFilms], workers: int
    ) -> Iterator[tuple[NumberedFilms, list[Row] | SettingsError]]:
        for task in tasks:
            tried.append((len(task), workers))
            fits = workers == 1 and fits_alone
            yield task, detect_chunk(detector, task) if fits else SettingsError("too large")

    monkeypatch.setattr(local_engine, "_map_chunks", full)
    source, films = DetectConfig(device="cuda", batch_size=4), list(enumerate(named)) * 8
    found = detect_rows(detector, source, films, workers=2)
    if fits_alone:
        assert sum(len(rows) for rows in found) == len(films)
        assert tried == [(4, 2)] * 20 + [(1, 1)] * 80
        assert "80 films are searched one by one" in caplog.text
    else:
        with pytest.raises(SettingsError, match="too large"):
            list(found)


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED"])
def test_detect_in_worker_returns_that_a_gpu_is_full(
    detector: Detector, named: list[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def full(problem: object) -> NoReturn:
        raise RuntimeError(text)

    there = replace(detector, solver=full, device="cpu:0", batch_size=2)
    monkeypatch.setattr(local_engine, "_loaded", (SOURCE, there))
    found = detect_in_worker([(0, named[0])])
    assert isinstance(found, SettingsError)
    assert text in str(found)
    text = "anything else"
    with pytest.raises(RuntimeError, match=text):
        detect_in_worker([(0, named[0])])
