"""Tests of the film cache: by content, complete whatever happens, read on demand."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.films.read import read
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import split
from kneematch.training import dataset
from kneematch.training.dataset import BYTES, to_device
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from kneephantoms.files import write_dicom, write_png16

SIDE_MARGIN = 0.08
COUNT = 4
PINNED = (0.7323, 0.5787, 0.7115, 0.5578, 0.7679, 0.9216, 0.7471, 0.9008)  # a ramp's greys
RUN = """
import sys
from pathlib import Path
from kneematch.training.dataset import prepare_films
if __name__ == "__main__":
    films = sorted(Path(sys.argv[1]).glob("*.dcm"))
    made, failures = prepare_films(films, sys.argv[2], side_margin=0.08, workers=int(sys.argv[3]))
    print(len(made), len(failures), *(reason for _, reason in failures))
"""
# Run at the start of every Python process: it dies on opening a certain film.
DEADLY = """
import os, signal, sys
def hook(event, args):
    if event == "open" and str(args[0]).endswith("deadly.dcm"):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
"""
prepare_films = partial(dataset.prepare_films, side_margin=SIDE_MARGIN, workers=0)


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    synthesize(folder, SynthConfig(COUNT, size=(320, 400), workers=0))
    return folder


@pytest.fixture
def films(originals: Path, tmp_path: Path) -> list[Path]:
    """Return copies of the films for one test."""
    folder = tmp_path / "films"
    shutil.copytree(originals, folder, ignore=shutil.ignore_patterns("*.csv", "*.json"))
    return sorted(folder.iterdir())


def entries(folder: Path) -> list[Path]:
    """Return the complete entries; temporary files have other names."""
    return sorted(folder.glob("*/[!.]*.halves"))


def wanted(films: list[Path]) -> Tensor:
    return torch.stack(
        [split(film_tensor(read(film)), side_margin=SIDE_MARGIN).pixels for film in films]
    )


def start(films: Path, folder: Path, workers: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", RUN, str(films), str(folder), str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True)


def until(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until a condition holds, for two minutes at most."""
    latest = time.monotonic() + 120
    while not condition():
        assert process is None or process.poll() is None
        assert time.monotonic() < latest
        time.sleep(0.005)


def test_cached_films_come_back_to_sixteen_bits(films: list[Path], tmp_path: Path) -> None:
    made, failures = prepare_films(films, tmp_path / "cache")
    assert failures == []
    assert list(made.paths) == [str(film) for film in films]
    halves = made.halves([2, 0, 2])
    assert (halves.shape, halves.dtype) == ((3, 2, 800, 500), torch.float32)
    assert (halves - wanted([films[2], films[0], films[2]])).abs().max() < 1e-5
    assert torch.equal(made.halves(torch.tensor([2, 0, 2])), halves)
    assert made.halves([]).shape == (0, 2, 800, 500)


def test_format_is_bumped_when_preprocessing_changes(tmp_path: Path) -> None:
    rows, columns = np.mgrid[:300, :400]
    ramp = (np.sin(rows / 20) ** 2 * 0.5 + columns / 800).astype(np.float32)
    write_png16(tmp_path / "ramp.png", (ramp - ramp.min()) / np.ptp(ramp))
    made, _ = prepare_films([tmp_path / "ramp.png"], tmp_path / "cache")
    found = made.halves([0])[0, :, 300:500:100, 100:400:200]
    assert made.folder.name == "halves-2-0.08"
    # If this fails for a good reason, bump FORMAT and note the new numbers here and above.
    assert found.flatten().tolist() == pytest.approx(PINNED, abs=2e-3)


def test_prepare_films_knows_films_by_their_content(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = prepare_films(films, tmp_path / "cache")
    content, before = bytearray(films[0].read_bytes()), films[0].stat()
    moved = [film.rename(film.with_name(f"moved-{film.name}")) for film in films]
    with monkeypatch.context() as patched:
        patched.delattr("kneematch.training.dataset.read_isolated")  # nothing is decoded again
        second, failures = prepare_films(moved, tmp_path / "cache")
    assert failures == []
    assert second.keys == first.keys
    assert len(entries(tmp_path / "cache")) == COUNT
    content[-40_000:] = bytes(range(200)) * 200  # pixels
    moved[0].write_bytes(content)
    os.utime(moved[0], ns=(before.st_atime_ns, before.st_mtime_ns))  # as size, as it was
    third, _ = prepare_films(moved[:1], tmp_path / "cache")
    assert (third.halves([0]) - wanted(moved[:1])).abs().max() < 1e-5
    assert not torch.equal(third.halves([0]), first.halves([0]))


def test_prepare_films_refuses_a_film_that_changes_while_it_is_read(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_change(path: str) -> object:
        radiograph = read(path)
        Path(path).write_bytes(films[1].read_bytes())
        return radiograph

    monkeypatch.setattr(dataset, "read_isolated", read_and_change)
    made, ((path, reason),) = prepare_films(films[:1], tmp_path / "cache")
    assert len(made) == 0
    assert path == str(films[0])
    assert "changed while it was read" in reason
    assert entries(tmp_path / "cache") == []


def test_prepare_films_gives_a_reason_for_films_of_one_knee_and_broken_ones(
    films: list[Path], tmp_path: Path
) -> None:
    knee, broken, gone = (tmp_path / name for name in ("knee.dcm", "broken.dcm", "gone.dcm"))
    write_dicom(knee, read(films[0]).pixels, mm_per_px=None, laterality="L")
    broken.write_bytes(b"no film")
    named = [knee, films[1], broken, tmp_path, films[0], gone, films[1]]
    calls: list[int] = []
    made, failures = prepare_films(named, tmp_path / "cache", report=lambda: calls.append(1))
    assert len(calls) == len(set(named))
    assert list(made.paths) == [str(films[1]), str(films[0])]
    assert [path for path, _ in failures] == [str(p) for p in (knee, broken, tmp_path, gone)]
    assert all(path in reason for path, reason in failures)
    for (_, reason), text in zip(
        failures, ("one knee", "", "a folder", "No such file"), strict=True
    ):
        assert text in reason


def test_cached_films_read_only_the_requested_ones_and_truncated_ones_are_replaced(
    films: list[Path], tmp_path: Path
) -> None:
    made, _ = prepare_films(films[:3], tmp_path / "cache")
    whole = made.halves([0, 1, 2])
    for number, size in ((0, 0), (2, BYTES - 1)):
        os.truncate(made.folder / f"{made.keys[number]}.halves", size)
        with pytest.raises(SettingsError, match=r"deleted or damaged .* Run the command again"):
            made.halves([number])
    assert torch.equal(made.halves([1]), whole[1:2])
    again, failures = prepare_films(films[:3], tmp_path / "cache")
    assert failures == []
    assert torch.equal(again.halves([0, 1, 2]), whole)
    sent = to_device(again, "meta")
    assert sent.halves(torch.tensor([1])).device.type == "meta"


def test_prepare_films_stops_where_the_cache_cannot_be_written(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KNEEMATCH_CACHE", str(tmp_path / "own"))
    made, _ = prepare_films(films[:1])
    assert made.folder == tmp_path / "own" / "films" / "halves-2-0.08"
    (entry,) = made.folder.iterdir()
    entry.unlink()
    entry.mkdir()  # in the place of the file
    with pytest.raises(SettingsError, match=r"halves-2-0.08.*cannot be written.*--cache"):
        prepare_films(films[:1], workers=1)
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"cannot be written.*\$KNEEMATCH_CACHE"):
        prepare_films(films, tmp_path / "file")


def test_prepare_films_continues_after_a_kill_with_complete_entries_only(
    films: list[Path], tmp_path: Path
) -> None:
    for k in range(40):
        film = tmp_path / "films" / f"{k}.png"
        write_png16(film, np.roll(read(films[0]).pixels, k, axis=1))
        film.rename(film.with_suffix(".dcm"))
    running = start(tmp_path / "films", tmp_path / "cache", workers=2)
    until(lambda: len(entries(tmp_path / "cache")) >= 3, running)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    running.send_signal(signal.SIGKILL)
    running.communicate()
    until(lambda: not any(_alive(int(child)) for child in children))  # they end with their parent
    left = entries(tmp_path / "cache")
    assert 3 <= len(left) < COUNT + 40
    assert all(entry.stat().st_size == BYTES for entry in left)
    times = [entry.stat().st_mtime_ns for entry in left]
    named = sorted((tmp_path / "films").iterdir())
    made, failures = prepare_films(named, tmp_path / "cache")
    assert failures == []
    assert [entry.stat().st_mtime_ns for entry in left] == times
    assert not list((tmp_path / "cache").glob("*/.*"))
    assert (made.halves(range(8)) - wanted(named[:8])).abs().max() < 1e-5


def _alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_prepare_films_shares_a_folder_between_two_runs(films: list[Path], tmp_path: Path) -> None:
    both = [start(tmp_path / "films", tmp_path / "cache", workers) for workers in (0, 1)]
    assert [run.communicate()[0].split() for run in both] == [[str(COUNT), "0"]] * 2
    assert len(entries(tmp_path / "cache")) == COUNT
    made, _ = prepare_films(films, tmp_path / "cache")
    assert (made.halves(range(COUNT)) - wanted(films)).abs().max() < 1e-5


def test_prepare_films_survives_a_film_that_kills_its_worker(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    deadly = films[1].rename(films[1].with_name("deadly.dcm"))
    told, _ = start(tmp_path / "films", tmp_path / "cache", workers=2).communicate()
    assert told.startswith(f"{COUNT - 1} 1 {deadly}: ")
    assert "killed by" in told
    assert len(entries(tmp_path / "cache")) == COUNT - 1
