"""Worker processes that work, and die, for real."""

import operator
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count, islice
from multiprocessing import active_children
from pathlib import Path

import pytest

from kneematch import parallel
from kneematch.errors import SettingsError
from kneematch.parallel import WorkerDied, call_in_child, map_in_workers, usable_cores


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("max 100000", 4), ("", 4)],
)
def test_usable_cores_heeds_the_cpu_limit_of_a_container(
    limit: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(parallel, "CPU_LIMIT", tmp_path / "cpu.max")
    assert usable_cores() == 4
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert usable_cores() == cores


@pytest.mark.parametrize("workers", [0, 2])
def test_map_in_workers_pairs_every_item_with_its_result(workers: int) -> None:
    with closing(map_in_workers(operator.neg, range(50), workers=workers)) as results:
        assert sorted(results) == [(number, -number) for number in range(50)]
    with closing(map_in_workers(operator.neg, [], workers=workers)) as results:
        assert list(results) == []


def test_map_in_workers_sends_large_items_and_results_at_the_same_time() -> None:
    items = [bytes([number]) * 3_000_000 for number in range(4)]  # far more than a pipe holds
    with closing(map_in_workers(bytes, items, workers=1)) as results:
        assert [item == result for item, result in results] == [True] * 4


def test_map_in_workers_loses_only_the_item_that_kills_its_worker() -> None:
    items = [0, 0, signal.SIGSEGV, 0, signal.SIGKILL, 0, 0]  # raising 0 does nothing
    with closing(map_in_workers(signal.raise_signal, items, workers=2)) as results:
        found = list(results)
    assert sorted(int(item) for item, _ in found) == sorted(map(int, items))
    outcomes = {item: result for item, result in found if item}
    assert outcomes == {
        signal.SIGSEGV: WorkerDied(-signal.SIGSEGV),
        signal.SIGKILL: WorkerDied(-signal.SIGKILL),
    }
    assert [result for item, result in found if not item] == [None] * 5
    assert "killed by SIGSEGV" in str(WorkerDied(-signal.SIGSEGV))
    assert "killed by signal 40" in str(WorkerDied(-40))  # one without a name
    with closing(map_in_workers(os._exit, [3], workers=1)) as results:
        ((_, died),) = results
    assert "exit code 3" in str(died)


def test_map_in_workers_repeats_an_item_whose_worker_was_killed_from_outside() -> None:
    before = set(active_children())
    with closing(map_in_workers(time.sleep, [0.0, 1.0], workers=1)) as results:
        assert next(results) == (0.0, None)
        (process,) = set(active_children()) - before
        process.kill()
        assert next(results) == (1.0, None)


def test_map_in_workers_takes_items_only_as_workers_become_free() -> None:
    taken = count()
    items = (next(taken) for _ in range(1000))
    with closing(map_in_workers(abs, items, workers=2)) as results:
        assert len(list(islice(results, 20))) == 20
        assert next(taken) <= 20 + 8


def test_map_in_workers_ends_its_processes_when_closed() -> None:
    before = set(active_children())
    with closing(map_in_workers(time.sleep, [0.0, 600.0], workers=2)) as results:
        next(results)
        assert set(active_children()) > before
    assert set(active_children()) == before


def test_map_in_workers_raises_an_error_of_the_items() -> None:
    items = (1 // (2 - number) for number in range(4))
    with (
        pytest.raises(ZeroDivisionError),
        closing(map_in_workers(abs, items, workers=1)) as results,
    ):
        list(results)


def test_map_in_workers_gives_up_when_no_worker_ever_starts() -> None:
    dying = map_in_workers(abs, [1], workers=1, initializer=os._exit, initargs=(0,))
    with closing(dying) as results, pytest.raises(SettingsError, match="end as they start"):
        list(results)


def child() -> int:
    """The process that calls are made in."""
    return call_in_child(operator.methodcaller("__call__"), os.getpid)


def test_call_in_child_survives_a_crash_and_keeps_its_process() -> None:
    first = child()
    assert first == child() != os.getpid()
    assert call_in_child(signal.raise_signal, signal.SIGABRT) == WorkerDied(-signal.SIGABRT)
    assert child() not in (first, os.getpid())


def test_start_early_starts_the_process_that_workers_are_forked_from() -> None:
    code = """
from contextlib import closing
from multiprocessing import forkserver
from kneematch.parallel import start_early
if __name__ == "__main__":
    start_early("json")
    server = forkserver._forkserver._forkserver_pid
    from kneematch.parallel import map_in_workers
    with closing(map_in_workers(eval, ["__import__('os').getppid()"], workers=1)) as parents:
        print([parent for _, parent in parents] == [server])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_call_in_child_works_in_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert call_in_child(os.path.realpath, ".") == os.path.realpath(tmp_path / name)


def test_call_in_child_blames_no_item_for_a_missing_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = child()
    (tmp_path / "gone").mkdir()
    with monkeypatch.context() as here:
        here.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with pytest.raises(FileNotFoundError):
            call_in_child(operator.neg, 1)
    assert child() == before


def test_call_in_child_gives_every_thread_its_own_result() -> None:
    def call(number: int) -> bool:
        return call_in_child(operator.neg, number) == -number

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(call, range(200)))


def test_call_in_child_forgets_a_call_that_was_interrupted() -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            call_in_child(time.sleep, 10)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert call_in_child(operator.neg, 1) == -1


def test_keep_memory_gives_freed_memory_out_again_without_page_faults() -> None:
    code = """
import resource, sys
import numpy as np
from kneematch.parallel import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(50_000_000, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    kept, returned = (
        int(subprocess.check_output([sys.executable, "-c", code, how])) for how in ("kept", "not")
    )
    assert kept < 100 < returned
