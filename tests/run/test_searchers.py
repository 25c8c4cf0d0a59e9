"""Films are found by the searchers as by a worker itself, whatever happens to one of them."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.run import workers as workers_module
from kneematch.run.config import DetectConfig
from kneematch.run.film_record import FilmRecord
from kneematch.run.searchers import SharedDetector, shared_searchers
from kneematch.run.visit import Visit
from kneematch.run.workers import map_visits

CONFIG = DetectConfig(method="locator", device="cpu")  # searchers do not know of GPUs


def rows(visit: Visit, films: list[FilmRecord]) -> list[str]:
    found = (film for batch in map_visits(visit, films, workers=3) for film in batch)
    knees = ((film.id, film.status, [knee.to_dict() for knee in film.knees]) for film in found)
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
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (height, width), np.uint8)
    Image.fromarray(noise).save(path)


def test_shared_searchers_find_what_workers_find_themselves(
    records: list[FilmRecord], tmp_path: Path
) -> None:
    visit = Visit(CONFIG, tmp_path / "out")
    with shared_searchers(visit, workers=3) as shared:
        assert isinstance(shared.detectors[""], SharedDetector)
        found = rows(shared, records)
        folder = Path(shared.detectors[""].address).parent
        assert folder.stat().st_mode & 0o077 == 0  # nobody else can send anything
    assert found == rows(visit, records)
    assert sum('"ok"' in row for row in found) == 6
    assert not folder.exists()


def test_map_visits_does_without_a_searcher_that_has_ended(
    records: list[FilmRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = Visit(CONFIG, tmp_path / "out")
    expected = rows(visit, records)

    @contextmanager
    def killed(visit: Visit, workers: int) -> Iterator[Visit]:
        others = multiprocessing.active_children()
        with shared_searchers(visit, workers=1) as shared:
            detector = shared.detectors[""]
            film = Radiograph(np.random.default_rng(0).random((300, 400), np.float32))
            assert detector.search([film]) == [()]
            (searcher,) = {*multiprocessing.active_children()} - {*others}
            os.kill(searcher.pid or 0, signal.SIGKILL)
            searcher.join()
            with pytest.raises(SettingsError, match="has ended"):
                detector.search([film])
            yield shared

    monkeypatch.setattr(workers_module, "shared_searchers", killed)
    monkeypatch.setattr(workers_module, "shares_searchers", lambda *_: True)
    assert rows(visit, records) == expected


def test_search_raises_what_a_searcher_met(tmp_path: Path) -> None:
    film = Radiograph(np.random.default_rng(0).random((300, 400), np.float32))
    with shared_searchers(Visit(CONFIG, tmp_path), workers=1) as shared:
        detector = shared.detectors[""]
        assert isinstance(detector, SharedDetector)
        with pytest.raises(KeyError, match="other"):
            replace(detector, name="other").search([film])
        assert detector.search([film]) == [()]  # it goes on
        assert detector.search([]) == []


def test_searchers_end_with_the_program(tmp_path: Path) -> None:
    program = f"""
import multiprocessing, time
from kneematch.run.config import DetectConfig
from kneematch.run.searchers import shared_searchers
from kneematch.run.visit import Visit

if __name__ == "__main__":
    with shared_searchers(Visit(DetectConfig(device="cpu"), {str(tmp_path)!r}), workers=3):
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        process.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/exe").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)
