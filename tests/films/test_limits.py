"""Reading a film has a limit of memory and of CPU time, in worker processes only."""

import sys

import pytest

from kneematch.films.limits import SLACK_BYTES
from kneematch.parallel import WorkerDied, call_in_child, map_in_workers
from limited_work import MB, allocate, take_turns, work

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")


def test_memory_limit_is_what_a_film_may_take_and_holds_in_workers_only() -> None:
    slack = SLACK_BYTES // MB
    assert call_in_child(allocate, 45) == "read"
    refused = "film.jpg: It cannot be decoded within the memory limit (50 MB)."
    kept = 2 * 45  # megabytes that were freed
    assert call_in_child(allocate, 60 + slack + kept) == refused
    assert call_in_child(allocate, 45) == "read"
    assert allocate(60 + slack) == "read"  # in this process


def test_memory_limit_does_not_grow_from_film_to_film() -> None:
    """A worker keeps the memory that it frees, up to half a gigabyte."""
    assert call_in_child(take_turns, 6) <= 500 + SLACK_BYTES // MB + 512


def test_cpu_limit_ends_the_worker_of_a_slow_film_once() -> None:
    results = dict(map_in_workers(work, [0.1, 1000.0, 0.2], workers=1))
    slow = results.pop(1000.0)
    assert isinstance(slow, WorkerDied)
    assert str(slow) == "reading it took more CPU time than is allowed"
    assert set(results.values()) == {"read"}
    assert work(1.5) == "read"  # in this process, which nobody would replace
