"""The films of a cohort on this machine: processes read, this one searches."""

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import Final

import torch

from kneematch.batch.reader import read_film
from kneematch.batch.row import Record
from kneematch.detection.detector import Detector
from kneematch.detection.prepare import Prepared
from kneematch.errors import SettingsError
from kneematch.parallel.pool import Died, apply_in_order

FILMS_A_WORKER: Final = 12  # below which a process takes longer to start than it saves
MOST_WORKERS: Final = 32
MOST_SEARCHERS: Final = 16  # a batch takes some 200 MB while it is searched
BATCHES_AHEAD: Final = 2


def enough_workers(films: int) -> int:
    """Processes that read, by the cores, one of which searches; none for a few films.

    None either where processes share no memory.
    """
    if os.name == "nt":
        return 0
    return min(max(cores() - 1, 1), films // FILMS_A_WORKER, MOST_WORKERS)


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def search_batches(
    detector: Detector, films: Sequence[str], batches: Iterable[range], *, workers: int
) -> Generator[list[Record]]:
    """The records of each batch of films, given by their numbers, in order.

    Later films are read while a batch is searched; how many are held in memory is bounded.
    """
    batches = list(batches)
    named = [films[number] for batch in batches for number in batch]
    searchers = enough_searchers(detector)
    ahead = BATCHES_AHEAD * (searchers * detector.batch_size + workers)
    with (
        _searching(searchers) as threads,
        closing(read_films(named, detector.room, workers=workers, ahead=ahead)) as read,
    ):
        under_way: deque[Future[list[Record]]] = deque()
        for batch in batches:
            there = list(islice(read, len(batch)))
            under_way.append(threads.submit(search, detector, films, batch, there))
            while len(under_way) > searchers or (under_way and under_way[0].done()):
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def enough_searchers(detector: Detector) -> int:
    """Batches that are searched at once, each by one thread; a GPU takes one at a time."""
    return min(cores(), MOST_SEARCHERS) if detector.device == "cpu" else 1


@contextmanager
def _searching(searchers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that search; whatever is computed meanwhile is computed by one thread.

    Threads that share a batch wait for each other, the more so beside processes that read, and
    their number would show in the last digits.
    """
    before, alone = torch.get_num_threads(), partial(torch.set_num_threads, 1)
    alone()
    threads = ThreadPoolExecutor(searchers, "search", initializer=alone)
    try:
        yield threads
    finally:
        threads.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def search(
    detector: Detector,
    films: Sequence[str] | Mapping[int, str],
    batch: range,
    read: Sequence[Prepared | str],
) -> list[Record]:
    """The records of one batch, whose films are read; `films` names them by their numbers."""
    good = [film for film in read if not isinstance(film, str)]
    try:
        found = iter(detector.find(good))
    except torch.cuda.OutOfMemoryError as error:
        raise SettingsError(
            f"{len(good)} films at once do not fit into the memory of {detector.device}; expected "
            "a batch that does; choose a smaller --batch-size"
        ) from error
    return [
        Record(number, films[number], failure=film)
        if isinstance(film, str)
        else Record(number, films[number], film.size, next(found))
        for number, film in zip(batch, read, strict=True)
    ]


def read_films(
    films: Sequence[str], room: float, *, workers: int, ahead: int
) -> Generator[Prepared | str]:
    """Films, prepared or with the reason why not, in order."""
    read = partial(read_film, room)
    with closing(apply_in_order(read, films, workers=workers, ahead=ahead)) as results:
        for film, result in zip(films, results, strict=True):
            yield result.told_of(film) if isinstance(result, Died) else result
