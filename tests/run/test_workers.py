"""Rows are the same however the work is shared out, and whatever happens to a worker."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kneematch.errors import SettingsError
from kneematch.knee.detector import Detector
from kneematch.run import workers as workers_module
from kneematch.run.config import DetectConfig
from kneematch.run.film_record import FilmRecord
from kneematch.run.visit import Visit
from kneematch.run.workers import Films, chunks, map_visits, visit_in_worker

CONFIG = DetectConfig(method="neural", device="cpu")


@pytest.fixture
def films_to_visit(films: Path, tmp_path: Path) -> list[FilmRecord]:
    """Films, good and bad, one of them with a name that is not UTF-8 and has two lines."""
    good = [str(films / f"phantom-{k:05d}.dcm") for k in range(7)]
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\nodd.dcm")
    shutil.copy(good[0], odd)
    broken = tmp_path / "broken.dcm"
    broken.write_bytes(Path(good[1]).read_bytes()[:3000])
    named = [*good[:3], str(broken), odd, *good[3:], str(tmp_path / "missing.dcm")]
    return [FilmRecord(k, path, f"film-{k}") for k, path in enumerate(named)]


def plain(film: FilmRecord) -> str:
    knees = [knee.to_dict() for knee in film.knees]
    return json.dumps([film.path, film.status, film.reason, film.size, knees])


def visited(films: Films, out: Path, workers: int) -> list[str]:
    with closing(map_visits(Visit(CONFIG, out), films, workers=workers)) as batches:
        return sorted(plain(film) for batch in batches for film in batch)


def test_map_visits_does_not_depend_on_workers(
    films_to_visit: list[FilmRecord], tmp_path: Path
) -> None:
    alone = visited(films_to_visit, tmp_path, 0)
    assert len(alone) == 10
    assert sum('"failed"' in line for line in alone) == 1
    assert sum('"unreadable"' in line for line in alone) == 1  # it is missing
    assert visited(films_to_visit, tmp_path, 1) == alone
    assert visited(films_to_visit, tmp_path, 3) == alone


@pytest.mark.parametrize(
    ("workers", "settings", "largest", "smallest"),
    [
        (2, {"device": "cpu"}, 8, 1),
        (2, {"device": "cuda"}, 16, 4),  # fewer are not worth the GPU's time
        (2, {"device": "cuda", "batch_size": 5}, 5, 4),
        (0, {"device": "cuda"}, 16, 16),
    ],
)
def test_chunks_become_smaller_towards_the_end(
    workers: int, settings: dict[str, Any], largest: int, smallest: int
) -> None:
    films = [FilmRecord(k, f"{k}.dcm", str(k)) for k in range(1000)]
    divided = chunks(films, workers, DetectConfig(**settings))
    assert [film for chunk in divided for film in chunk] == films
    sizes = [len(chunk) for chunk in divided]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == largest
    assert min(sizes[:-1]) == smallest  # the last one has what is left


@pytest.mark.parametrize("fits_alone", [True, False])
def test_map_visits_tries_again_alone_what_did_not_fit_into_a_gpu(
    films_to_visit: list[FilmRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fits_alone: bool,
) -> None:
    tried = []

    def full(
        visit: Visit, tasks: Sequence[Films], workers: int
    ) -> Iterator[tuple[Films, list[FilmRecord] | SettingsError]]:
        for task in tasks:
            tried.append((len(task), workers))
            fits = workers == 1 and fits_alone
            yield task, list(task) if fits else SettingsError("too large")

    monkeypatch.setattr(workers_module, "_map_chunks", full)
    monkeypatch.setattr(workers_module, "shared_searchers", lambda visit, _: nullcontext(visit))
    visit = Visit(DetectConfig(device="cuda", batch_size=4), tmp_path)
    found = map_visits(visit, films_to_visit * 8, workers=2)
    if fits_alone:
        assert sum(len(batch) for batch in found) == 80
        assert tried == [(4, 2)] * 20 + [(1, 1)] * 80
        assert "80 films are visited one by one" in caplog.text
    else:
        with pytest.raises(SettingsError, match="too large"):
            list(found)


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED"])
def test_visit_in_worker_returns_that_a_gpu_is_full(
    detector: Detector,
    films_to_visit: list[FilmRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
) -> None:
    def full(problem: object) -> NoReturn:
        raise RuntimeError(text)

    visit = Visit(CONFIG, tmp_path)
    full_gpu = replace(detector, solver=full, device="cpu:0", batch_size=2)
    visit.__dict__["detectors"] = {"": full_gpu}
    monkeypatch.setattr(workers_module, "_visit", visit)
    found = visit_in_worker(films_to_visit[:1])
    assert isinstance(found, SettingsError)
    assert text in str(found)
    text = "anything else"
    with pytest.raises(RuntimeError, match=text):
        visit_in_worker(films_to_visit[:1])
