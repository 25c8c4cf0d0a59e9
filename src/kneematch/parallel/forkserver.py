"""The process that others are forked from, started early: what it imports takes seconds."""

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext


def context(preload: str) -> BaseContext:
    """Processes that share nothing by chance: a fork of this one would copy locks held.

    Args:
        preload: the module that is imported once, for all of them.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([preload])
    return forks


def start_early(preload: str) -> None:
    """Have a module imported while this process does other things."""
    if sys.platform != "linux":
        return
    from multiprocessing.forkserver import ensure_running

    context(preload)
    with signals_blocked():
        ensure_running()


@contextmanager
def signals_blocked() -> Iterator[None]:
    """What is sent to stop the program is for this process; those started meanwhile do not get it.

    They end when their pipe is closed.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
