"""A function applied to many tasks by processes; one that dies costs its task, not the others."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Final, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

IN_HAND: Final = 2  # tasks a process, so that it need not wait for the next


def results(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, workers: int
) -> Generator[tuple[Task, Result | None]]:
    """Each task and its result, as they come, by that many processes; by this one if 0.

    The result is None where the process that worked on the task ended. Close the generator to end
    the processes.
    """
    if workers == 0:
        for task in tasks:
            yield task, function(task)
        return
    waiting = deque(tasks)
    while waiting:
        suspects = yield from _until_one_dies(function, waiting, workers, IN_HAND * workers)
        while suspects:  # one at a time, to see which it was
            guilty = yield from _until_one_dies(function, suspects, 1, 1)
            for task in guilty:
                yield task, None


def _until_one_dies(
    function: Callable[[Task], Result], waiting: deque[Task], workers: int, most: int
) -> Generator[tuple[Task, Result], None, deque[Task]]:
    """The results of the tasks that wait, which are taken off, so many in hand at once.

    Returns those that were in hand when a process died.
    """
    pending: dict[Future[Result], Task] = {}
    with _pool(workers) as pool:
        while waiting or pending:
            try:
                while waiting and len(pending) < most:
                    future = pool.submit(function, waiting[0])
                    pending[future] = waiting.popleft()
            except BrokenProcessPool:
                break
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                if isinstance(future.exception(), BrokenProcessPool):
                    return deque(pending.values())
                yield pending.pop(future), future.result()
    return deque(pending.values())


@contextmanager
def _pool(workers: int) -> Generator[ProcessPoolExecutor]:
    # A fork would copy locks that torch's threads may hold.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _start() -> None:
    """In a new process."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its processes to end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
