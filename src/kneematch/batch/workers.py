"""What a worker process does, on this machine or on a Ray cluster: films in, rows out."""

import json
import os
from collections.abc import Iterable, Sequence

import torch

from kneematch.batch.config import PRELOAD, DetectorSource
from kneematch.batch.row import Row
from kneematch.detection.detector import Detector, FilmResult
from kneematch.errors import NoFrontalKnee
from kneematch.parallel import release_memory

NumberedFilms = Sequence[tuple[int, str]]  # indices in the list of films, and paths


_loaded: tuple[DetectorSource, Detector] | None = None


def load_worker(source: DetectorSource) -> None:
    """Load this process's detector, unless it was forked from one that has it already."""
    global _loaded
    torch.set_num_threads(1)
    if _loaded is None or _loaded[0] != source:
        _loaded = source, source.load()


def detect_in_worker(films: NumberedFilms) -> list[Row]:
    """Return the rows of films, found with this process's detector."""
    if _loaded is None:
        raise RuntimeError("no detector; expected load_worker to be called first")
    return detect_chunk(_loaded[1], films)


def detect_chunk(detector: Detector, films: NumberedFilms) -> list[Row]:
    """Return the rows of a few films."""
    return to_rows(films, detector.detect_each(path for _, path in films))


def to_rows(films: NumberedFilms, results: Iterable[FilmResult]) -> list[Row]:
    """Pair films with their results."""
    return [_row(index, film, each) for (index, film), each in zip(films, results, strict=True)]


def _row(index: int, film: str, result: FilmResult) -> Row:
    if isinstance(result.failure, NoFrontalKnee):
        return Row(index, film, failure=NoFrontalKnee.reason, no_knee=True)
    if result.failure is not None:
        return Row(index, film, failure=str(result.failure))
    return Row(index, film, result.size, result.detections)


if PRELOAD in os.environ:  # in the process that workers are forked from
    load_worker(DetectorSource(**json.loads(os.environ[PRELOAD])))
    release_memory()  # or workers would inherit what loading has freed
