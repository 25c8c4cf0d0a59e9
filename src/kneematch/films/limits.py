"""Limits on the memory and the CPU time of reading a film, in processes that may be killed.

They hold in worker and child processes of `kneematch.parallel`. A process of the user's own has
other threads, and no one who would replace it, so there they do nothing.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kneematch.errors import NotAnImage
from kneematch.parallel import freed_bytes, is_worker, release_memory

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

CPU_S: Final = 60.0  # CPU time to read a film
KEPT_BYTES: Final = 512 << 20  # freed memory that is not returned before a film is decoded
SLACK_BYTES: Final = 128 << 20  # for what does not grow with the film, such as loaded libraries
STATE: Final = Path("/proc/self/statm")  # its first number: pages of virtual memory


@contextmanager
def cpu_limit(seconds: float = CPU_S) -> Iterator[None]:
    """Have this process killed by SIGPROF when it takes more CPU time than this.

    An exception would wait for the end of a native decoder, which is what takes the time.
    """
    if not (is_worker() and hasattr(signal, "setitimer")):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def memory_limit(path: Path, more: int) -> Iterator[None]:
    """Let this process take at most so many bytes more than it has now, and a little slack.

    Raises:
        NotAnImage: the film at `path` needs more, which no good one of its size does.
    """
    if not is_worker() or resource is None or not STATE.exists():
        yield
        return
    if freed_bytes() > KEPT_BYTES:  # which the decoder could take in addition
        release_memory()
    before = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = int(STATE.read_bytes().split()[0]) * resource.getpagesize()
    limit += more + SLACK_BYTES
    if resource.RLIM_INFINITY != soft <= limit:  # the user's own
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    except MemoryError:
        raise NotAnImage(
            f"{path}: It cannot be decoded within the memory limit ({more >> 20} MB)."
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
