"""Searchers: a few processes that locate and find knees for all workers of a run on a GPU.

Every process needs memory on the GPU, and time until it can compute there, which processes spend
one after the other. So workers read films and make files, and send the copies that are searched
through a socket, to whichever searcher is free.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection, Pipe, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from kneematch.errors import SettingsError, is_gpu_full
from kneematch.films.annotation import KNEES, load_annotation
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detector import GPU_BATCH, Areas, no_knee_found, search_copies
from kneematch.knee.knee_images import Preparation
from kneematch.parallel import end_processes, start_process
from kneematch.settings import AUTO

if TYPE_CHECKING:
    from kneematch.knee.detector import Detector
    from kneematch.run.config import DetectConfig
    from kneematch.run.visit import Visit

WORKERS_PER_SEARCHER: Final = 2  # a worker takes about as long for a film as its search


def may_share(config: "DetectConfig") -> bool:
    """Return whether workers share searchers, which have a GPU.

    A search computes much on the CPU, where every worker does it for itself.
    """
    networks = config.method == AUTO and config.device != "cpu"
    knees = (load_annotation(template).find == KNEES for template in config.template)
    return networks and hasattr(socket, "AF_UNIX") and all(knees)


@dataclass(frozen=True, slots=True)
class SharedDetector:
    """The detector of the searchers, as a worker has it."""

    address: str
    batch_size: int
    preparation: Preparation

    def detect_radiographs(self, films: Sequence[Radiograph]) -> list[Areas | Exception]:
        """Return the knees of a few films; an error of a film takes the place of its knees."""
        return search_copies(self.search, films)

    def search(self, films: Sequence[Radiograph]) -> list[Areas | Exception]:
        """Have a searcher search films.

        Raises:
            SettingsError: it could not, or has ended.
        """
        if not films:
            return []
        sent = ForkingPickler.dumps([replace(film, read_whole=None) for film in films])
        try:
            with Client(self.address, "AF_UNIX") as searcher:
                searcher.send_bytes(sent)
                found: list[Areas | Exception] | SettingsError = searcher.recv()
        except (EOFError, OSError) as error:
            raise SettingsError("A process that searches films on the GPU has ended.") from error
        if isinstance(found, SettingsError):
            raise found
        return found

    def nothing_found(self, size: tuple[int, int]) -> str:
        """Return what to say of a film (height, width) on which nothing was found."""
        return no_knee_found(size, cropped=self.preparation.cropped)


@contextmanager
def shared_searchers(visit: "Visit", workers: int) -> Iterator["Visit"]:
    """Yield a visit whose films are searched by processes that several workers share."""
    config, processes = visit.config, list[Any]()
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
        how = Preparation(cropped=config.cropped)
        try:
            yield replace(
                visit, shared=SharedDetector(address, config.batch_size or GPU_BATCH, how)
            )
        finally:
            end_processes(processes)


def serve_searches(visit: "Visit", listener: socket.socket, lifeline: Connection) -> None:
    """Search what workers send, until the other end of the lifeline is closed."""
    detector: Any = visit.detectors[""]
    while lifeline not in wait([listener, lifeline]):
        with suppress(EOFError, OSError):  # the worker has ended, or another searcher was faster
            accepted, _ = listener.accept()
            accepted.setblocking(True)
            with Connection(accepted.detach()) as worker:
                found, goes_on = _search(detector, worker.recv())
                worker.send_bytes(found)
            if not goes_on:
                return
    address = Path(listener.getsockname())  # which nobody else removes if the program was killed
    with suppress(OSError):  # another searcher was faster
        address.unlink()
        address.parent.rmdir()


def _search(detector: "Detector", films: list[Radiograph]) -> tuple[Any, bool]:
    """Return what was found, pickled, and whether the next search can be expected to succeed."""
    try:
        return ForkingPickler.dumps(detector.search(films, fewest_on_gpu=1)), True
    except Exception as error:  # noqa: BLE001 - the worker says which films met it
        is_full = is_gpu_full(error)
        what = str(error) if is_full else f"an unexpected {type(error).__name__} occurred"
        return ForkingPickler.dumps(SettingsError(f"A search on the GPU failed: {what}")), is_full
