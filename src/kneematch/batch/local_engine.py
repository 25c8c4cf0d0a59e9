"""Detect on this machine: one worker process per core, or reader processes that feed a GPU."""

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Final

from kneematch.batch.config import DetectorSource
from kneematch.batch.gpu_engine import detect_on_gpu
from kneematch.batch.row import Row
from kneematch.batch.workers import NumberedFilms, detect_chunk, detect_in_worker, load_worker
from kneematch.detection.detector import Detector
from kneematch.parallel import WorkerDied, map_in_workers

LARGEST_CHUNK: Final = 8  # films that a worker takes at once, and that a power cut costs
CHUNKS_PER_WORKER: Final = 8  # or more, so that all workers end at about the same time


def detect_rows(
    detector: Detector, source: DetectorSource, films: NumberedFilms, *, workers: int
) -> Generator[list[Row]]:
    """Yield the rows of films, some at a time, in any order.

    Args:
        detector: searches in this process, on a GPU or if there are no workers.
        source: loads the same detector in each worker.
        films: indices and paths.
        workers: number of worker processes; 0 does everything in this process.
    """
    if detector.device != "cpu":
        yield from detect_on_gpu(detector, films, workers)
    elif workers == 0:
        for chunk in chunks(films, 1):
            yield detect_chunk(detector, chunk)
    else:
        yield from _detect_in_workers(source, films, workers)


def _detect_in_workers(
    source: DetectorSource, films: NumberedFilms, workers: int
) -> Generator[list[Row]]:
    """Yield rows from workers; films whose worker died are tried again one by one."""
    alone: list[NumberedFilms] = []
    for chunk, rows in _map_chunks(source, chunks(films, workers), workers):
        if isinstance(rows, WorkerDied):
            alone += [[film] for film in chunk]
        else:
            yield rows
    for chunk, rows in _map_chunks(source, alone, min(workers, len(alone))):
        if isinstance(rows, WorkerDied):
            yield [Row(index, film, failure=f"{film}: {rows}") for index, film in chunk]
        else:
            yield rows


def _map_chunks(
    source: DetectorSource, tasks: Sequence[NumberedFilms], workers: int
) -> Generator[tuple[NumberedFilms, list[Row] | WorkerDied]]:
    if tasks:
        found = map_in_workers(
            detect_in_worker,
            tasks,
            workers=workers,
            initializer=load_worker,
            initargs=(source,),
        )
        with closing(found) as results:
            yield from results


def chunks(films: NumberedFilms, workers: int) -> list[NumberedFilms]:
    """Divide films into what a worker takes at once."""
    size = min(max(len(films) // (workers * CHUNKS_PER_WORKER), 1), LARGEST_CHUNK)
    return [films[first : first + size] for first in range(0, len(films), size)]
