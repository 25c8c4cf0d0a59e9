"""Detect on a GPU: processes read films and cut out the knees, this one finds them in batches."""

import math
import mmap
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Final

import torch
from torch import Tensor

from kneematch.batch.local_engine import NumberedFilms, to_rows
from kneematch.batch.row import Row
from kneematch.detection.detector import Detector
from kneematch.detection.preparation import FilmFacts, Preparation, PreparedFilm, prepare_file
from kneematch.errors import FilmError
from kneematch.geometry.split import SIDES
from kneematch.geometry.view import View
from kneematch.parallel import WorkerDied, map_in_workers

BYTES: Final = 2  # of a pixel
QUEUED: Final = 6  # films that a reader holds, to go on while the GPU searches a batch
WHITE: Final = 65535

Item = tuple[int, str, int]  # index and path of a film, and the slot for its images
Facts = tuple[list[list[list[float]]], FilmFacts]  # all of a PreparedFilm but its pixels


def detect_on_gpu(detector: Detector, films: NumberedFilms, workers: int) -> Generator[list[Row]]:
    """Yield the rows of films, a batch at a time; later films are read while one is searched."""
    if not films:
        return
    warm_up = Thread(target=detector.warm_up)
    warm_up.start()
    try:
        with closing(_read_batches(detector, films, workers)) as batches:
            for batch in batches:
                warm_up.join()
                numbered = [(index, path) for (index, path, _), _ in batch]
                yield to_rows(numbered, detector.results([film for _, film in batch]))
    finally:
        warm_up.join()


def _read_batches(
    detector: Detector, films: NumberedFilms, workers: int
) -> Generator[list[tuple[Item, PreparedFilm | FilmError]]]:
    """Yield films that were read, in batches; each must be done with before the next is taken."""
    size = detector.batch_size
    if workers == 0 or not hasattr(os, "memfd_create"):  # Linux has it
        for first in range(0, len(films), size):
            chunk = films[first : first + size]
            yield [((index, path, 0), detector.prepare(path)) for index, path in chunk]
        return
    # A batch, what workers hold, and what has arrived from them but is not in the batch yet.
    memory = SharedImages(size + workers * (QUEUED + 1), detector.preparation.size)
    prepare = partial(_prepare_in_worker, memory.address, detector.preparation)
    items = ((index, film, memory.free.pop()) for index, film in films)
    try:
        with closing(map_in_workers(prepare, items, workers=workers, queued=QUEUED)) as results:
            received = _received(results, memory)
            while batch := list(islice(received, size)):
                yield batch
                memory.free += [slot for (_, _, slot), _ in batch]
    finally:
        memory.close()


class SharedImages:
    """Images of knees in memory that processes share: a slot per film, 16 bits a pixel.

    It is an anonymous file, since a container's /dev/shm holds no more than 64 MB, and known to
    CUDA, so that the GPU copies from it directly.
    """

    def __init__(self, slots: int, size: tuple[int, int]) -> None:
        self._file = os.memfd_create("kneematch")
        os.truncate(self._file, slots * len(SIDES) * math.prod(size) * BYTES)
        self.address = f"/proc/{os.getpid()}/fd/{self._file}"
        self.pixels = open_images(self.address, size)
        self.free = list(range(slots))
        if torch.cuda.is_available():
            cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            cuda.cudaHostRegister(self.pixels.data_ptr(), self.pixels.nbytes, 0)

    def close(self) -> None:
        """Unregister the memory from CUDA and close its file; the last tensor frees it."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            cuda.cudaHostUnregister(self.pixels.data_ptr())
        os.close(self._file)


def open_images(address: str, size: tuple[int, int]) -> Tensor:
    """Map shared images into this process: (slots, 2, *size) of 16-bit integers."""
    with Path(address).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    return torch.frombuffer(memory, dtype=torch.uint16).reshape(-1, len(SIDES), *size)


_opened: dict[str, Tensor] = {}  # in a reader process: its view of the shared memory


def _prepare_in_worker(address: str, how: Preparation, item: Item) -> Facts | FilmError:
    """Read a film and cut out its knees; their images stay behind in their slot.

    The result holds no tensor: torch would open a socket to send one.
    """
    if address not in _opened:
        _opened[address] = open_images(address, how.size)
    _, path, slot = item
    film = prepare_file(path, how)
    if isinstance(film, FilmError):
        return film
    pixels = film.views.pixels
    levels = (WHITE * pixels.clamp(0, 1)).round_().to(torch.int32).to(torch.uint16)
    _opened[address][slot, : len(pixels)] = levels
    return film.views.to_film.tolist(), film.facts


def _received(
    results: Iterator[tuple[Item, Facts | FilmError | WorkerDied]], memory: SharedImages
) -> Iterator[tuple[Item, PreparedFilm | FilmError]]:
    """Yield films with the images that their reader left in shared memory."""
    for item, result in results:
        if isinstance(result, WorkerDied):
            yield item, FilmError(f"{item[1]}: {result}")
        elif isinstance(result, FilmError):
            yield item, result
        else:
            to_film, facts = result
            pixels = memory.pixels[item[2], : len(facts.mirrored)]
            views = View(pixels, torch.tensor(to_film, dtype=torch.float64))
            yield item, PreparedFilm(views, facts)
