"""Visit films with a worker process per core."""

import logging
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import Final

import torch

from kneematch.errors import SettingsError, Unreadable, is_gpu_full
from kneematch.knee.detector import FEWEST_ON_GPU, GPU_BATCH
from kneematch.parallel import WorkerDied, map_in_workers, wait_for_processes
from kneematch.run.config import DetectConfig
from kneematch.run.film_record import UNREADABLE, FilmRecord
from kneematch.run.searchers import may_share, shared_searchers
from kneematch.run.visit import Visit

LARGEST_CHUNK: Final = 8  # films that a worker takes at once
SEARCHER_STARTS: Final = 2  # the second time only if some ended before all films were searched
CHUNKS_LEFT: Final = 4  # for each worker, or more, so that all end at about the same time

logger = logging.getLogger("kneematch")

Films = Sequence[FilmRecord]


def map_visits(visit: Visit, films: Films, *, workers: int) -> Generator[list[FilmRecord]]:
    """Yield the films after their visits, some at a time, in any order.

    Films whose worker died are tried again one by one, and so are films that did not fit into the
    memory of a GPU, by a worker that has it for itself. Searchers that ended are replaced once.

    Args:
        visit: does everything with a film; each worker loads its own.
        films: the films to visit.
        workers: number of worker processes; 0 does everything in this process.

    Raises:
        SettingsError: a film does not fit into the memory of a GPU.
        OSError: the files that are made of films cannot be written.
    """
    if workers == 0:
        for chunk in chunks(films, 0, visit.config):
            yield visit(chunk)
        return
    tasks, alone, again = chunks(films, workers, visit.config), list[Films](), list[Films]()
    for _ in range(SEARCHER_STARTS):
        again = []
        with _searchers(visit, tasks, workers) as shared:
            for chunk, result in _map_chunks(shared, tasks, workers):
                if isinstance(result, list):
                    yield result
                elif isinstance(result, OSError):
                    raise result
                elif isinstance(result, WorkerDied) and result.was_slow and len(chunk) == 1:
                    yield [_failed(chunk[0], result)]
                elif isinstance(result, SettingsError) and shared is not visit:
                    again.append(chunk)
                else:
                    alone += [[film] for film in chunk]
        if not again:
            break
        tasks = again
    alone += [[film] for chunk in again for film in chunk]
    most = workers
    if alone and visit.config.device != "cpu":
        wait_for_processes()
        most = 1
        logger.warning(
            "%d films are visited one by one: a process that worked on them ended, or %s had no "
            "room for them beside those of others.",
            len(alone),
            visit.config.device,
        )
    for chunk, result in _map_chunks(visit, alone, min(most, len(alone))):
        if isinstance(result, SettingsError | OSError):
            raise result
        yield result if isinstance(result, list) else [_failed(film, result) for film in chunk]


def _searchers(visit: Visit, tasks: list[Films], workers: int) -> AbstractContextManager[Visit]:
    """Return a context whose visit has searchers if a GPU searches for two workers or more."""
    searching = sum(any(not film.status for film in films) for films in tasks)
    busy = min(workers, searching)
    shares = busy > 1 and may_share(visit.config)
    return shared_searchers(visit, busy) if shares else nullcontext(visit)


def _failed(film: FilmRecord, died: WorkerDied) -> FilmRecord:
    """Return a film whose worker died; what is known of it already stays."""
    reason = Unreadable(f"{film.path}: {died}").message
    if film.status:
        return replace(film, missing=(reason,))
    return replace(film, status=UNREADABLE, reason=reason)


def chunks(films: Films, workers: int, config: DetectConfig) -> list[Films]:
    """Divide films into what a worker, or this process, takes at once: a batch, on a GPU."""
    fewest, most = 1, LARGEST_CHUNK
    if config.device != "cpu":
        most = config.batch_size or GPU_BATCH
        fewest = FEWEST_ON_GPU if workers else most
    divided: list[Films] = []
    first = 0
    while first < len(films):
        left = len(films) - first
        size = min(max(left // (max(workers, 1) * CHUNKS_LEFT), fewest), most)
        divided.append(films[first : first + size])
        first += size
    return divided


def _map_chunks(
    visit: Visit, tasks: Iterable[Films], workers: int
) -> Generator[tuple[Films, list[FilmRecord] | SettingsError | OSError | WorkerDied]]:
    if workers:
        mapped = map_in_workers(
            visit_in_worker,
            tasks,
            workers=workers,
            initializer=load_worker,
            initargs=(visit,),
            wait=visit.config.device == "cpu",  # 16 processes need 1.5 s to leave a GPU
        )
        with closing(mapped) as results:
            yield from results


_visit: Visit | None = None


def load_worker(visit: Visit) -> None:
    """Load what this process needs to visit films."""
    global _visit
    torch.set_num_threads(1)
    _visit = visit


def visit_in_worker(films: Films) -> list[FilmRecord] | SettingsError | OSError:
    """Visit films in this process; return an error that is not that of a film."""
    if _visit is None:
        raise RuntimeError("load_worker was not called")
    try:
        return _visit(films)
    except (SettingsError, OSError) as error:
        return error
    except RuntimeError as error:
        if is_gpu_full(error):  # as CUDA's libraries say it
            return SettingsError(str(error))
        raise
