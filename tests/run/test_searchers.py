"""Films are found by the searchers as by a worker itself, whatever happens to one of them."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from PIL import Image

from kneematch.errors import SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.run import searchers
from kneematch.run import workers as workers_module
from kneematch.run.config import DetectConfig
from kneematch.run.film_record import FilmRecord
from kneematch.run.searchers import SharedDetector, shared_searchers
from kneematch.run.visit import Visit
from kneematch.run.workers import map_visits

CONFIG = DetectConfig(device="cpu")  # searchers do not know of GPUs


def rows(visit: Visit, films: list[FilmRecord]) -> list[str]:
    return as_rows(film for batch in map_visits(visit, films, workers=3) for film in batch)


def as_rows(films: Iterable[FilmRecord]) -> list[str]:
    knees = ((film.id, film.status, [knee.to_dict() for knee in film.knees]) for film in films)
    return sorted(json.dumps(each) for each in knees)


@pytest.fixture
def records(films: Path, tmp_path: Path) -> list[FilmRecord]:
    """Films, one of them broken, one large and one without a knee."""
    broken = tmp_path / "broken.dcm"
    broken.write_bytes(b"not a film")
    large, empty = tmp_path / "large.npy.png", tmp_path / "empty.png"
    write_grey(large, 1000, 960)
    write_grey(empty, 300, 400)
    paths = [*sorted(films.glob("*.dcm"))[:6], broken, large, empty]
    return [FilmRecord(k, str(path), path.stem) for k, path in enumerate(paths)]


def write_grey(path: Path, height: int, width: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (height, width), np.uint8)
    Image.fromarray(noise).save(path)


@pytest.mark.parametrize("together", [False, True])
def test_shared_searchers_find_what_workers_find_themselves(
    records: list[FilmRecord], tmp_path: Path, together: bool
) -> None:
    visit = Visit(CONFIG, tmp_path / "out")
    with shared_searchers(visit, workers=3) as shared:
        assert isinstance(shared.shared, SharedDetector)
        folder = Path(shared.shared.address).parent
        assert folder.stat().st_mode & 0o077 == 0  # nobody else can send anything
        found = as_rows(shared(records)) if together else rows(shared, records)
    assert found == rows(visit, records)
    assert sum('"ok"' in row for row in found) == 6
    assert not folder.exists()


@pytest.mark.parametrize("deaths", [1, 2])
def test_map_visits_does_without_searchers_that_have_ended(
    records: list[FilmRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    visit = Visit(CONFIG, tmp_path / "out")
    expected, started = rows(visit, records), list[int]()

    @contextmanager
    def killed(visit: Visit, workers: int) -> Iterator[Visit]:
        others = multiprocessing.active_children()
        started.append(workers)
        with shared_searchers(visit, workers) as shared:
            assert shared.shared is not None
            if len(started) <= deaths:
                for searcher in {*multiprocessing.active_children()} - {*others}:
                    os.kill(searcher.pid or 0, signal.SIGKILL)
                    searcher.join()
                with pytest.raises(SettingsError, match="has ended"):
                    shared.shared.search([Radiograph(np.zeros((300, 400), np.float32))])
            yield shared

    monkeypatch.setattr(workers_module, "shared_searchers", killed)
    monkeypatch.setattr(workers_module, "may_share", lambda _: True)
    assert rows(visit, records) == expected
    assert started == [3, 3]


@pytest.mark.parametrize(
    ("error", "shown", "goes_on"),
    [
        (RuntimeError("CUDA error: out of memory"), "out of memory", True),
        (RuntimeError("CUDA error: an illegal access, name of a patient"), "RuntimeError", False),
    ],
)
def test_search_says_what_failed_and_whether_to_go_on(
    error: Exception, shown: str, goes_on: bool
) -> None:
    class Failing:
        def search(self, films: object, *, fewest_on_gpu: int) -> NoReturn:
            raise error

    pickled, can_go_on = searchers._search(Failing(), [])  # type: ignore[arg-type]
    ours, theirs = multiprocessing.Pipe()
    theirs.send_bytes(pickled)
    answer = ours.recv()
    assert isinstance(answer, SettingsError)
    assert shown in str(answer)
    assert "patient" not in str(answer)
    assert can_go_on == goes_on


def test_searchers_end_with_the_program(tmp_path: Path) -> None:
    program = f"""
import multiprocessing, time
from kneematch.run.config import DetectConfig
from kneematch.run.searchers import shared_searchers
from kneematch.run.visit import Visit

if __name__ == "__main__":
    visit = Visit(DetectConfig(device="cpu"), {str(tmp_path)!r})
    with shared_searchers(visit, workers=3) as visit:
        pids = [child.pid for child in multiprocessing.active_children()]
        print(visit.shared.address, *pids, flush=True)
        time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address, *pids = process.stdout.readline().decode().split()
        assert len(pids) == 2
        assert Path(address).exists()
        process.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/exe").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not Path(address).parent.exists()
