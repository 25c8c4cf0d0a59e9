"""Searchers: a few processes that search films for all workers of a run on a GPU.

Every process needs memory on the GPU, and time until it can compute there, which processes spend
one after the other. So workers read films and make files, and send the copies that are searched
through a socket, to whichever searcher is free.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from kneematch.errors import SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detector import GPU_BATCH, NO_AREA, Areas, no_knee_found, search_copies
from kneematch.knee.knee_images import Preparation
from kneematch.parallel import end_processes, start_process

if TYPE_CHECKING:
    from kneematch.run.visit import Visit

WORKERS_PER_SEARCHER: Final = 2  # a worker takes about as long for a film as its search


@dataclass(frozen=True, slots=True)
class SharedDetector:
    """A detector of the searchers, as a worker has it."""

    name: str
    address: str
    batch_size: int
    preparation: Preparation
    is_part: bool  # it finds another part than knees

    def detect_radiographs(self, films: Sequence[Radiograph]) -> list[Areas | Exception]:
        """Return the areas of a few films; an error of a film takes the place of its areas."""
        return search_copies(self.search, films) if self.preparation.locate else self.search(films)

    def search(self, films: Sequence[Radiograph]) -> list[Areas | Exception]:
        """Have a searcher search films.

        Raises:
            SettingsError: it has ended.
        """
        if not films:
            return []
        try:
            with Client(self.address, "AF_UNIX") as searcher:
                searcher.send((self.name, [replace(film, read_whole=None) for film in films]))
                found: list[Areas | Exception] | Exception = searcher.recv()
        except (EOFError, OSError) as error:
            raise SettingsError("A process that searches films on the GPU has ended.") from error
        if isinstance(found, Exception):
            raise found
        return found

    def nothing_found(self, size: tuple[int, int]) -> str:
        """Return what to say of a film (height, width) on which nothing was found."""
        return NO_AREA if self.is_part else no_knee_found(size, self.preparation)


@contextmanager
def shared_searchers(visit: "Visit", workers: int) -> Iterator["Visit"]:
    """Yield a visit whose films are searched by processes that several workers share."""
    processes: list[Any] = []
    theirs, ours = Pipe(duplex=False)  # they end when it is closed, however this process ends
    with TemporaryDirectory(prefix="kneematch-") as folder, ours:
        address = str(Path(folder, "searchers"))
        with socket.socket(socket.AF_UNIX) as listener, theirs:
            listener.bind(address)
            listener.listen(workers)
            listener.setblocking(False)
            for _ in range(-(-workers // WORKERS_PER_SEARCHER)):
                given = visit, listener, theirs
                processes.append(start_process(serve_searches, *given, preload=__name__))
        try:
            yield replace(visit, shared=_shared_detectors(visit, address))
        finally:
            end_processes(processes)


def _shared_detectors(visit: "Visit", address: str) -> dict[str, SharedDetector]:
    known = visit.__dict__.get("detectors")  # they may be those of a CPU
    detectors = known or replace(visit.config, device="cpu").load_detectors()
    size = visit.config.batch_size or GPU_BATCH
    return {
        name: SharedDetector(name, address, size, each.preparation, each.part is not None)
        for name, each in detectors.items()
    }


def serve_searches(visit: "Visit", listener: socket.socket, lifeline: Connection) -> None:
    """Search what workers send, until the other end of the lifeline is closed."""
    detectors = visit.detectors
    while lifeline not in wait([listener, lifeline]):
        with (
            suppress(EOFError, OSError),  # the worker has ended, or another searcher was faster
            Connection(listener.accept()[0].detach()) as worker,
        ):
            worker.send(_search(detectors, *worker.recv()))


def _search(
    detectors: Mapping[str, Any], name: str, films: list[Radiograph]
) -> list[Areas | Exception] | Exception:
    try:
        found: list[Areas | Exception] = detectors[name].search(films)
    except Exception as error:  # noqa: BLE001 - the worker says which films met it
        return error
    return found
