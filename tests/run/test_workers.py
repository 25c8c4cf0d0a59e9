"""How films are shared out to workers, and what happens when a GPU is full."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
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

CONFIG = DetectConfig(device="cpu")
FILMS = [FilmRecord(k, f"{k}.dcm", f"film-{k}") for k in range(80)]


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
    films = FILMS * 12
    divided = chunks(films, workers, DetectConfig(**settings))
    assert [film for chunk in divided for film in chunk] == films
    sizes = [len(chunk) for chunk in divided]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == largest
    assert min(sizes[:-1]) == smallest  # the last one has what is left


@pytest.mark.parametrize("fits_alone", [True, False])
def test_map_visits_tries_again_alone_what_did_not_fit_into_a_gpu(
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
    found = map_visits(visit, FILMS, workers=2)
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
    films: Path,
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
    film = FilmRecord(0, str(films / "phantom-00000.dcm"), "film")
    found = visit_in_worker([film])
    assert isinstance(found, SettingsError)
    assert text in str(found)
    text = "anything else"
    with pytest.raises(RuntimeError, match=text):
        visit_in_worker([film])
