"""Detect on this machine, with a worker process per core; on a GPU all of them share it."""

import json
import logging
import os
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from typing import Final

import torch

from kneematch.errors import KneematchError, NoFrontalKnee, SettingsError, is_gpu_full
from kneematch.films.radiograph import pin_films
from kneematch.knee.detector import FEWEST_ON_GPU, GPU_BATCH, Detector
from kneematch.memory import release_memory
from kneematch.parallel import WorkerDied, map_in_workers
from kneematch.run.config import PRELOAD, DetectConfig, config_from_json
from kneematch.run.row import Row

LARGEST_CHUNK: Final = 8  # films that a worker takes at once, and that a power cut costs
CHUNKS_PER_WORKER: Final = 8  # or more, so that all workers end at about the same time

logger = logging.getLogger("kneematch")

NumberedFilms = Sequence[tuple[int, str]]  # indices in the list of films, and paths


def detect_rows(
    detector: Detector, config: DetectConfig, films: NumberedFilms, *, workers: int
) -> Generator[list[Row]]:
    """Yield the rows of films, some at a time, in any order.

    Args:
        detector: searches in this process, if there are no workers.
        config: loads the same detector in each worker.
        films: indices and paths.
        workers: number of worker processes; 0 does everything in this process.
    """
    if workers == 0:
        for chunk in chunks(films, 0, config):
            yield detect_chunk(detector, chunk)
    else:
        yield from _detect_in_workers(config, films, workers)


def _detect_in_workers(
    config: DetectConfig, films: NumberedFilms, workers: int
) -> Generator[list[Row]]:
    """Yield rows from workers; films whose worker died are tried again one by one.

    So are films that did not fit into the memory of a GPU, by a worker that has it for itself.

    Raises:
        SettingsError: a film does not even fit then.
    """
    alone: list[NumberedFilms] = []
    for chunk, rows in _map_chunks(config, chunks(films, workers, config), workers):
        if isinstance(rows, list):
            yield rows
        else:
            alone += [[film] for film in chunk]
    most = workers
    if alone and config.device != "cpu":
        most = 1
        logger.warning(
            "%d films are searched one by one: their worker ended, or %s had no room for them "
            "beside those of other workers",
            len(alone),
            config.device,
        )
    for chunk, rows in _map_chunks(config, alone, min(most, len(alone))):
        if isinstance(rows, SettingsError):
            raise rows
        if isinstance(rows, WorkerDied):
            yield [Row(index, film, failure=f"{film}: {rows}") for index, film in chunk]
        else:
            yield rows


def _map_chunks(
    config: DetectConfig, tasks: Sequence[NumberedFilms], workers: int
) -> Generator[tuple[NumberedFilms, list[Row] | SettingsError | WorkerDied]]:
    if tasks:
        found = map_in_workers(
            detect_in_worker,
            tasks,
            workers=workers,
            initializer=load_worker,
            initargs=(config,),
        )
        with closing(found) as results:
            yield from results


def chunks(films: NumberedFilms, workers: int, config: DetectConfig) -> list[NumberedFilms]:
    """Divide films into what a worker, or this process, takes at once: a batch, on a GPU."""
    fewest, most = 1, LARGEST_CHUNK
    if config.device != "cpu":
        most = config.batch_size or GPU_BATCH
        fewest = FEWEST_ON_GPU if workers else most
    size = min(max(len(films) // (max(workers, 1) * CHUNKS_PER_WORKER), fewest), most)
    return [films[first : first + size] for first in range(0, len(films), size)]


_loaded: tuple[DetectConfig, Detector] | None = None


def load_worker(config: DetectConfig) -> None:
    """Load this process's detector, unless it was forked from one that has it already."""
    global _loaded
    torch.set_num_threads(1)
    if _loaded is None or _loaded[0] != config:
        _loaded = config, config.load_detector()
    if config.device != "cpu":
        pin_films()


def detect_in_worker(films: NumberedFilms) -> list[Row] | SettingsError:
    """Return the rows of films, found with this process's detector; or that a GPU is full."""
    if _loaded is None:
        raise RuntimeError("no detector; expected load_worker to be called first")
    try:
        return detect_chunk(_loaded[1], films)
    except SettingsError as error:
        return error
    except RuntimeError as error:  # of CUDA's libraries
        if is_gpu_full(error):
            return SettingsError(str(error))
        raise


def detect_chunk(detector: Detector, films: NumberedFilms) -> list[Row]:
    """Return the rows of a few films."""
    rows, results = [], detector.detect_each(path for _, path in films)
    for (index, film), result in zip(films, results, strict=True):
        if isinstance(result.failure, NoFrontalKnee):
            rows.append(Row(index, film, failure=NoFrontalKnee.reason, no_knee=True))
        elif result.failure is not None:
            rows.append(Row(index, film, failure=str(result.failure)))
        else:
            rows.append(Row(index, film, result.size, result.detections))
    return rows


if PRELOAD in os.environ:  # in the process that workers are forked from
    with suppress(KneematchError, OSError, RuntimeError):  # the main process says what is wrong
        load_worker(config_from_json(json.loads(os.environ[PRELOAD])))
    release_memory()  # or workers would inherit what loading has freed
