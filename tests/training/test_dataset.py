"""Tests of the film cache: by content, complete whatever happens, read on demand."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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
from kneematch.training.dataset import (
    BYTES,
    CachedFilms,
    FilmsInMemory,
    prepare_films,
    read_index,
    to_device,
)
from kneephantoms import phantom
from kneephantoms.config import SynthConfig
from kneephantoms.dataset import synthesize
from kneephantoms.files import write_dicom, write_png16
from phantom_films import radiograph

SIDE_MARGIN = 0.08
COUNT = 4
PINNED = [0.7323, 0.5787, 0.7115, 0.5578, 0.7679, 0.9216, 0.7471, 0.9008]  # of a picture's halves
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
opened: list[str] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | os.PathLike):
        opened.append(os.fspath(arguments[0]))


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


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust files that were changed a moment ago."""
    monkeypatch.setattr(dataset, "SETTLED_NS", 0)


@pytest.fixture(scope="session")
def noted() -> Callable[[], list[str]]:
    """Return a function that gives the files opened since its last call."""
    sys.addaudithook(_note)

    def since() -> list[str]:
        names = list(opened)
        opened.clear()
        return names

    return since


def entries(folder: Path) -> list[Path]:
    """Return the complete entries; temporary files have other names."""
    return sorted(folder.glob("*/*/[!.]*.halves"))


def wanted(films: list[Path]) -> Tensor:
    return torch.stack(
        [split(film_tensor(read(film)), side_margin=SIDE_MARGIN).pixels for film in films]
    )


def start(films: Path, folder: Path, workers: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", RUN, str(films), str(folder), str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True)


def test_cached_films_come_back_to_sixteen_bits(films: list[Path], tmp_path: Path) -> None:
    made, failures = prepare_films(films, tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    assert failures == []
    assert len(made) == COUNT
    assert list(made.paths) == [str(film) for film in films]
    halves = made.halves([2, 0, 2])
    assert halves.shape == (3, 2, 800, 500)
    assert halves.dtype == torch.float32
    assert (halves - wanted([films[2], films[0], films[2]])).abs().max() < 1e-5
    assert torch.equal(made.halves(torch.tensor([2, 0, 2])), halves)
    assert made.halves([]).shape == (0, 2, 800, 500)


def test_split_keeps_halves_between_black_and_white_but_for_rounding() -> None:
    for seed in range(3):
        halves = split(
            film_tensor(radiograph(phantom(seed, size=(900, 1100)))), side_margin=SIDE_MARGIN
        ).pixels
        assert halves.min() >= -1e-6
        assert halves.max() <= 1 + 1e-6


def test_format_is_bumped_when_preprocessing_changes(tmp_path: Path) -> None:
    rows, columns = np.mgrid[:300, :400]
    ramp = (np.sin(rows / 20) ** 2 * 0.5 + columns / 800).astype(np.float32)
    write_png16(tmp_path / "ramp.png", (ramp - ramp.min()) / np.ptp(ramp))
    made, _ = prepare_films(
        [tmp_path / "ramp.png"], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0
    )
    found = made.halves([0])[0, :, 300:500:100, 100:400:200]
    assert made.folder.name == "halves-1-0.08"
    # If this fails for a good reason, bump FORMAT and note the new numbers here and above.
    assert found.flatten().tolist() == pytest.approx(PINNED, abs=2e-3)


def test_prepare_films_opens_no_known_film(
    films: list[Path], tmp_path: Path, settled: None, noted: Callable[[], list[str]]
) -> None:
    first, _ = prepare_films(films, tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    assert {str(film) for film in films} <= set(noted())
    second, failures = prepare_films(films, tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    assert not {str(film) for film in films} & set(noted())
    assert failures == []
    assert second == first


def test_prepare_films_hashes_a_moved_film_and_does_not_split_it_again(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = prepare_films(films, tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    moved = [film.rename(film.with_name(f"moved-{film.name}")) for film in films]
    monkeypatch.delattr("kneematch.training.dataset.read_isolated")
    second, failures = prepare_films(moved, tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    assert failures == []
    assert second.keys == first.keys
    assert len(entries(tmp_path / "cache")) == COUNT


def test_prepare_films_notices_a_change_that_keeps_size_and_time(
    films: list[Path], tmp_path: Path, settled: None
) -> None:
    first, _ = prepare_films(films[:1], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    before, content = films[0].stat(), bytearray(films[0].read_bytes())
    content[-40_000:] = bytes(range(200)) * 200  # pixels
    time.sleep(0.02)  # more than a tick of the file system's clock
    films[0].write_bytes(content)
    os.utime(films[0], ns=(before.st_atime_ns, before.st_mtime_ns))
    second, _ = prepare_films(films[:1], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    assert second.keys != first.keys
    assert (second.halves([0]) - wanted(films[:1])).abs().max() < 1e-5
    assert not torch.equal(second.halves([0]), first.halves([0]))


def test_append_to_index_leaves_out_a_file_that_may_still_change(
    films: list[Path], tmp_path: Path
) -> None:
    films[0].touch()
    prepare_films(films[:1], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    assert read_index(tmp_path / "cache" / "known.jsonl") == {}


def test_prepare_films_keeps_rooms_apart(films: list[Path], tmp_path: Path) -> None:
    some, _ = prepare_films(films[:1], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    none, _ = prepare_films(films[:1], tmp_path / "cache", side_margin=0.0, workers=0)
    assert not torch.equal(some.halves([0]), none.halves([0]))
    assert (none.halves([0])[0] - split(film_tensor(read(films[0]))).pixels).abs().max() < 1e-5


def test_prepare_films_gives_a_reason_for_films_of_one_knee_and_broken_ones(
    films: list[Path], tmp_path: Path, settled: None, noted: Callable[[], list[str]]
) -> None:
    knee, broken, gone = (tmp_path / name for name in ("knee.dcm", "broken.dcm", "gone.dcm"))
    write_dicom(knee, read(films[0]).pixels, mm_per_px=None, laterality="L")
    broken.write_bytes(b"no film")
    named = [knee, films[1], broken, tmp_path, films[0], gone, films[1]]
    for _ in range(2):
        noted()
        made, failures = prepare_films(
            named, tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0
        )
        assert list(made.paths) == [str(films[1]), str(films[0])]
        assert [path for path, _ in failures] == [str(p) for p in (knee, broken, tmp_path, gone)]
        assert all(reason.startswith(f"{path}: ") for path, reason in failures)
        assert "one knee (laterality L)" in failures[0][1]
        assert "a folder" in failures[2][1]
        assert "No such file" in failures[3][1]
    assert str(knee) not in noted()  # the second time


def test_prepare_films_reports_every_film_once(
    films: list[Path], tmp_path: Path, settled: None
) -> None:
    for _ in range(2):
        calls: list[int] = []
        broken = tmp_path / "gone.dcm"
        prepare_films(
            [*films, broken, films[0]],
            tmp_path / "cache",
            side_margin=SIDE_MARGIN,
            workers=0,
            report=lambda calls=calls: calls.append(1),  # type: ignore[misc]
        )
        assert len(calls) == COUNT + 1


def test_cached_films_read_only_the_requested_ones(films: list[Path], tmp_path: Path) -> None:
    made, _ = prepare_films(films, tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    kept = made.halves([1])
    for entry in entries(tmp_path / "cache"):
        if entry.stem != made.keys[1]:
            entry.unlink()
    assert torch.equal(made.halves([1]), kept)
    with pytest.raises(SettingsError, match=r"gone or cut short .* run the command again"):
        made.halves([0])


@pytest.mark.parametrize("size", [0, 1000, BYTES - 1])
def test_prepare_films_replaces_a_truncated_entry(
    films: list[Path], tmp_path: Path, settled: None, size: int
) -> None:
    made, _ = prepare_films(films[:2], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    whole = made.halves([0, 1])
    os.truncate(entries(tmp_path / "cache")[0], size)
    again, failures = prepare_films(
        films[:2], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0
    )
    assert failures == []
    assert torch.equal(again.halves([0, 1]), whole)


def test_read_index_skips_torn_lines(films: list[Path], tmp_path: Path, settled: None) -> None:
    made, _ = prepare_films(films[:2], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    file = tmp_path / "cache" / "known.jsonl"
    first, second = file.read_bytes().splitlines()
    for torn in (
        first[:-9] + second,
        first + b"\n" + second[:40],
        b"\xff\n7\n" + second,
        b"[" * 10**5,
    ):
        file.write_bytes(torn)
        assert len(read_index(file)) <= 1
        again, _ = prepare_films(films[:2], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
        assert again == made


def test_prepare_films_removes_temporary_files_of_killed_runs_after_a_day(
    films: list[Path], tmp_path: Path
) -> None:
    prepare_films(films[:1], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    folder = entries(tmp_path / "cache")[0].parent
    old, new = folder / ".1.halves", folder / ".2.halves"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    prepare_films(films[:1], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    assert not old.exists()
    assert new.exists()


def test_prepare_films_refuses_a_folder_that_cannot_be_written(
    films: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"cannot be written .*\$KNEEMATCH_CACHE"):
        prepare_films(films, tmp_path / "file", side_margin=SIDE_MARGIN, workers=0)


@pytest.mark.parametrize("workers", [0, 1])
def test_prepare_films_stops_when_a_worker_cannot_write(
    films: list[Path], tmp_path: Path, workers: int
) -> None:
    key = hashlib.sha256(films[0].read_bytes()).hexdigest()
    own = tmp_path / "cache" / "halves-1-0.08"
    own.mkdir(parents=True)
    (own / key[:2]).touch()  # where the folder of the entry should be
    with pytest.raises(SettingsError, match=r"halves-1-0.08.*: cannot be written .*--cache"):
        prepare_films(films[:1], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=workers)


def test_prepare_films_uses_the_users_cache_unless_a_folder_is_named(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KNEEMATCH_CACHE", str(tmp_path / "own"))
    made, _ = prepare_films(films[:1], side_margin=SIDE_MARGIN, workers=0)
    assert made.folder == tmp_path / "own" / "films" / "halves-1-0.08"


def test_to_device_sends_batches_where_memory_is_short(films: list[Path], tmp_path: Path) -> None:
    made, _ = prepare_films(films[:2], tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    sent = to_device(made, "meta")
    assert isinstance(sent, CachedFilms)
    assert len(sent) == 2
    assert sent.halves(torch.tensor([1])).device.type == "meta"


def test_films_in_memory_are_float_whatever_they_are_stored_as() -> None:
    pixels = torch.arange(24, dtype=torch.uint8).reshape(3, 2, 2, 2)
    films = FilmsInMemory(pixels)
    assert len(films) == 3
    assert torch.equal(films.halves(torch.tensor([2, 0])), pixels[[2, 0]].float())


def test_prepare_films_continues_after_a_kill_with_complete_entries_only(
    films: list[Path], tmp_path: Path
) -> None:
    for k in range(40):
        write_png16(tmp_path / "films" / f"{k}.png", np.roll(read(films[0]).pixels, k, axis=1))
        (tmp_path / "films" / f"{k}.png").rename(tmp_path / "films" / f"{k}.dcm")
    running = start(tmp_path / "films", tmp_path / "cache", workers=2)
    while len(entries(tmp_path / "cache")) < 3:
        assert running.poll() is None
        time.sleep(0.005)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    running.send_signal(signal.SIGKILL)
    running.communicate()
    # Processes of a parent that is gone end, too.
    deadline = time.monotonic() + 20
    while any(_alive(int(child)) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    left = entries(tmp_path / "cache")
    assert 3 <= len(left) < COUNT + 40
    assert all(entry.stat().st_size == BYTES for entry in left)
    times = [entry.stat().st_mtime_ns for entry in left]
    named = sorted((tmp_path / "films").iterdir())
    made, failures = prepare_films(named, tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    assert failures == []
    assert [entry.stat().st_mtime_ns for entry in left] == times
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
    assert not list((tmp_path / "cache").glob("*/*/.*"))
    made, _ = prepare_films(films, tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    assert (made.halves(range(COUNT)) - wanted(films)).abs().max() < 1e-5


def test_prepare_films_survives_a_film_that_kills_its_worker(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEADLY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    deadly = films[1].rename(films[1].with_name("deadly.dcm"))
    told, _ = start(tmp_path / "films", tmp_path / "cache", workers=2).communicate()
    assert told.startswith(f"{COUNT - 1} 1 {deadly}: the process that read it ended (killed by")
    good = [film for film in films if film != films[1]]
    made, failures = prepare_films(good, tmp_path / "cache", side_margin=SIDE_MARGIN, workers=0)
    assert failures == []
    assert len(entries(tmp_path / "cache")) == COUNT - 1
    assert (made.halves(range(COUNT - 1)) - wanted(good)).abs().max() < 1e-5
