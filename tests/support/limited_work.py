"""Work that comes up against a limit; worker processes import it."""

import time
from pathlib import Path

import numpy as np

from kneematch.errors import NotAnImage
from kneematch.films.limits import cpu_limit, memory_limit

MB = 1 << 20
FILM = Path("film.jpg")


def allocate(megabytes: int) -> str:
    try:
        with memory_limit(FILM, 50 * MB):
            np.ones(megabytes * MB, np.uint8)
    except NotAnImage as error:
        return str(error)
    np.ones(2 * megabytes * MB, np.uint8)  # the limit has ended
    return "read"


def take_turns(films: int) -> int:
    """Take all the memory that some films may take, one after the other."""
    taken = []
    for _ in range(films):
        for megabytes in range(1200, 0, -20):
            try:
                with memory_limit(FILM, 500 * MB):
                    np.empty(megabytes * MB, np.uint8)
            except NotAnImage:
                continue
            taken.append(megabytes)
            break
    return max(taken)


def work(seconds: float) -> str:
    with cpu_limit(1.0):
        ends = time.process_time() + seconds
        while time.process_time() < ends:
            pass
    return "read"
