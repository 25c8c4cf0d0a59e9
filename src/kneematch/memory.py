"""Keep freed memory, or return it to the system; nothing happens where malloc is not glibc's."""

import ctypes
from contextlib import suppress
from typing import Final

# Options of glibc's mallopt, and their values: keep freed memory instead of returning it.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MALLOC_OPTIONS: Final = {M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: (1 << 31) - 1, M_ARENA_MAX: 1}


def keep_memory() -> None:
    """Keep freed memory, since getting it again page by page takes time.

    A film's arrays have many megabytes and are freed as soon as they are made.
    """
    with suppress(OSError, TypeError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOC_OPTIONS.items():
            mallopt(option, value)


def release_memory() -> None:
    """Return freed memory to the system."""
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
