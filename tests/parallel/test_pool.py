"""Processes that work, and die, in real life."""

import math
import operator
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from itertools import count, islice
from multiprocessing import active_children

import pytest
import torch

from kneematch.parallel.pool import Died, apply_in_order
from kneematch.parallel.shared_memory import ROOM_BYTES, SharedRoom


def test_results_come_in_the_order_of_the_tasks() -> None:
    naps = [0.2, 0.0, 0.1, 0.0, 0.0]
    with closing(apply_in_order(time.sleep, naps, workers=2, ahead=4)) as slept:
        assert list(slept) == [None] * 5
    numbers = range(50)
    with closing(apply_in_order(operator.neg, numbers, workers=2, ahead=4)) as negative:
        assert list(negative) == [-number for number in numbers]


@pytest.mark.parametrize("workers", [0, 1])
def test_no_tasks_have_no_results(workers: int) -> None:
    with closing(apply_in_order(abs, [], workers=workers, ahead=4)) as results:
        assert list(results) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_arrive_as_they_were(workers: int) -> None:
    shapes = [(2, 800, 500), (3,), (0, 4), (2, 1200, 1000)]  # the last exceeds the shared room
    assert 4 * math.prod(shapes[0]) < ROOM_BYTES < 4 * math.prod(shapes[3])
    with closing(apply_in_order(torch.ones, shapes, workers=workers, ahead=9)) as results:
        for shape, result in zip(shapes, results, strict=True):
            assert isinstance(result, torch.Tensor)
            assert torch.equal(result, torch.ones(shape))
            result += 1  # it is ours


def test_a_place_that_is_used_again_changes_nothing_that_was_unpacked() -> None:
    room = SharedRoom(1)
    first = room.unpack(room.pack({"a": torch.arange(5), "b": "text"}, 0), 0)
    room.unpack(room.pack(torch.zeros(9), 0), 0)
    room.close()
    assert torch.equal(first["a"], torch.arange(5))
    assert first["b"] == "text"


def test_a_task_that_kills_its_process_costs_itself_alone() -> None:
    tasks = [0, 0, signal.SIGSEGV, 0, signal.SIGKILL, 0, 0]  # raising 0 does nothing
    with closing(apply_in_order(signal.raise_signal, tasks, workers=2, ahead=7)) as results:
        found = list(results)
    assert found[2] == Died(-signal.SIGSEGV)
    assert found[4] == Died(-signal.SIGKILL)
    assert [result for k, result in enumerate(found) if k not in (2, 4)] == [None] * 5
    assert Died(-signal.SIGSEGV).how == "killed by SIGSEGV"


def test_a_process_that_exits_has_its_code_told() -> None:
    with closing(apply_in_order(os._exit, [3], workers=1, ahead=1)) as results:
        (died,) = results
    assert isinstance(died, Died)
    assert died.how == "exit code 3"


def test_a_task_whose_process_was_killed_from_outside_is_done_again() -> None:
    with closing(apply_in_order(time.sleep, [0.0, 1.0], workers=1, ahead=2)) as results:
        assert next(results) is None
        (process,) = active_children()
        process.kill()
        assert next(results) is None


def test_tasks_are_taken_no_further_ahead_than_allowed() -> None:
    taken = count()
    tasks = (next(taken) for _ in range(1000))
    with closing(apply_in_order(abs, tasks, workers=2, ahead=5)) as results:
        assert list(islice(results, 20)) == list(range(20))
        time.sleep(0.3)
        assert next(taken) <= 20 + 5


def test_closing_ends_the_processes_at_once() -> None:
    started = time.monotonic()
    with closing(apply_in_order(time.sleep, [0.0, 60.0], workers=2, ahead=2)) as results:
        next(results)
        assert active_children()
    assert active_children() == []
    assert time.monotonic() - started < 20


def test_an_error_of_the_tasks_is_raised() -> None:
    tasks = (1 // (2 - number) for number in range(4))
    with (
        pytest.raises(ZeroDivisionError),
        closing(apply_in_order(abs, tasks, workers=1, ahead=1)) as results,
    ):
        list(results)


def test_a_server_that_was_started_early_is_the_one_that_serves() -> None:
    code = """
from contextlib import closing
from multiprocessing import forkserver
from kneematch.parallel.forkserver import start_early
if __name__ == "__main__":
    start_early("json")
    server = forkserver._forkserver._forkserver_pid
    from kneematch.parallel.pool import apply_in_order
    asked = ["__import__('os').getppid()"]
    with closing(apply_in_order(eval, asked, workers=1, ahead=1)) as parents:
        print(list(parents) == [server])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_memory_that_is_kept_is_given_out_again_without_a_page_fault() -> None:
    code = """
import resource, sys
import numpy as np
from kneematch.parallel.malloc import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(50_000_000, np.uint8)
before = faults()
np.ones(50_000_000, np.uint8)
print(faults() - before)
"""
    kept, returned = (
        int(subprocess.check_output([sys.executable, "-c", code, how])) for how in ("kept", "not")
    )
    assert kept < 100 < returned
