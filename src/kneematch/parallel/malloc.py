"""Memory that a process keeps, since getting it again takes time."""

import ctypes
from contextlib import suppress
from typing import Final

# glibc's options of mallopt, and what is chosen.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
KEPT: Final = {MMAP_THRESHOLD: 1 << 30, TRIM_THRESHOLD: (1 << 31) - 1, ARENA_MAX: 1}


def keep_memory() -> None:
    """Do not hand freed memory back to the system, which gives it out again page by page.

    A film's arrays are of many megabytes, and as soon freed as made. Where malloc is not glibc's,
    nothing happens.
    """
    with suppress(OSError, TypeError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in KEPT.items():
            mallopt(option, value)
