"""Node: a DICOM server, worker processes that examine its films, and senders of the results."""

import logging
import ssl
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from pydicom import uid
from pynetdicom import AE, evt
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]

from kneematch.errors import FilmError, SettingsError
from kneematch.films.dicom import CODESTREAM_SYNTAXES, header_value
from kneematch.films.files import DICOM
from kneematch.films.radiograph import silent
from kneematch.films.read import read_header
from kneematch.parallel import ChildProcess, WorkerDied, usable_cores
from kneematch.run.config import DetectConfig
from kneematch.run.film_record import FAILED, FILES, UNREADABLE, FilmRecord
from kneematch.run.outputs.dicom_sr import MAKER
from kneematch.run.visit import Visit
from kneematch.run.workers import load_worker, visit_in_worker
from kneematch.serve.config import ServeConfig
from kneematch.serve.queue import OWN, Entry, Queue, QueueFull
from kneematch.serve.send import OUT_OF_RESOURCES, deliver, limit_silence

FILM_CLASSES: Final = (
    *(uid.ComputedRadiographyImageStorage, uid.SecondaryCaptureImageStorage),
    *(uid.DigitalXRayImageStorageForPresentation, uid.DigitalXRayImageStorageForProcessing),
)
FILM_SYNTAXES: Final = (
    *(uid.ExplicitVRLittleEndian, uid.ImplicitVRLittleEndian, uid.ExplicitVRBigEndian),
    *(uid.RLELossless, *CODESTREAM_SYNTAXES),
)
MOST_ASSOCIATIONS: Final = 32
SUCCESS: Final = 0x0000  # answer to C-STORE
RESTART_S: Final = 10.0  # before worker processes that cannot start are started again
NOTICE_S: Final = 1.0  # in which the main thread notices a signal that another thread received

logger = logging.getLogger("kneematch")


def load(visit: Visit) -> None:
    """Load the networks into a worker process."""
    load_worker(visit)
    _ = visit.detectors
    if visit.config.measure:
        from kneematch.knee.measuring import outline_network  # imports SciPy, which is slow
        from kneematch.models.outlines import JOINT_FRAME, LEG_FRAME

        _ = [outline_network(frame) for frame in (JOINT_FRAME, LEG_FRAME)]


def examine(film: FilmRecord) -> FilmRecord:
    """Visit a film in a worker process; one without a name only starts it."""
    if not film.name:
        return film
    with suppress(FilmError), silent():  # the visit reports an error
        header = read_header(film.path)
        if header is not None and header_value(header, "ManufacturerModelName") == MAKER:
            return replace(film, status=OWN)
    found = visit_in_worker([film])
    if isinstance(found, Exception):  # such as a full disk
        return replace(film, status=UNREADABLE, reason=str(found))
    return found[0]


def _open(event: Any) -> None:
    """Let a connection that nothing comes from end, and let the program end before it."""
    limit_silence(event)
    event.assoc.dul.daemon = True


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        while thread.is_alive():
            thread.join(NOTICE_S)


class Node:
    """Receives films, and examines them until it is told to finish."""

    def __init__(self, config: ServeConfig, folder: Path) -> None:
        """Open queue and port, and begin with what an earlier process left.

        Raises:
            SettingsError: the folder, the port or a certificate cannot be used.
        """
        log = logging.getLogger("pynetdicom")  # which names instances and patients
        log.propagate = False
        log.addHandler(logging.NullHandler())
        self.config, self.queue = config, Queue(folder)
        self.ready = threading.Event()  # the networks are loaded
        self._last_film, self._last_object = threading.Event(), threading.Event()
        self._server = self._listen()
        self.port: int = self._server.server_address[1]
        objects = config.objects if config.send_to else ()
        how = DetectConfig(measure=config.measure, export=objects, device="cpu")
        start = partial(load, Visit(how, folder))
        count = config.workers or usable_cores()
        self._children: SimpleQueue[ChildProcess] = SimpleQueue()
        for _ in range(count):
            self._children.put(ChildProcess(examine, start))
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        sender = partial(threading.Thread, target=deliver, daemon=True)
        rest = config, self._last_object
        self._senders = [sender(args=(self.queue, goal, *rest)) for goal in config.send_to]
        for thread in (*self._workers, *self._senders):
            thread.start()

    def finish(self) -> None:
        """Accept nothing more, examine what was accepted, and deliver what can be delivered."""
        self._last_film.set()
        self._server.shutdown()
        _join(self._workers)
        self._last_object.set()
        _join(self._senders)

    def examine(self, film: FilmRecord) -> FilmRecord:
        """Visit a film in the next worker process that is free."""
        child = self._children.get()
        found: FilmRecord | WorkerDied | None = None
        while found is None:
            try:
                found = child(film)
            except (SettingsError, OSError, EOFError) as error:  # no process can start
                logger.warning("A worker process cannot start (%s).", error)
                time.sleep(RESTART_S)
        self._children.put(child)
        if isinstance(found, WorkerDied):
            return replace(film, status=UNREADABLE, reason=str(found))
        return replace(found, reason=found.reason.removeprefix(f"{film.path}: "))

    def _listen(self) -> Any:
        """Return the DICOM server, which has a thread for each association."""
        config, entity = self.config, AE(self.config.ae_title)
        entity.require_calling_aet = list(config.accept)
        entity.maximum_associations = MOST_ASSOCIATIONS
        entity.add_supported_context(Verification)
        for each in FILM_CLASSES:
            entity.add_supported_context(each, list(FILM_SYNTAXES))
        handlers: list[Any] = [(evt.EVT_CONN_OPEN, _open), (evt.EVT_C_STORE, self._receive)]
        try:
            tls = None if config.tls_cert is None else config.tls(ssl.Purpose.CLIENT_AUTH)
            if tls is not None:  # or all would wait for a peer that connects and says nothing
                wrap = partial(tls.wrap_socket, do_handshake_on_connect=False)
                tls.wrap_socket = wrap  # type: ignore[method-assign]
            config.tls(ssl.Purpose.SERVER_AUTH)  # refused now rather than when results are sent
            return entity.start_server((config.host, config.port), False, tls, handlers)
        except OSError as error:
            reason = f"port {config.port} or a certificate cannot be used: {error.strerror}."
            raise SettingsError(f"The DICOM {reason}") from error

    def _receive(self, event: Any) -> int:
        """Answer a C-STORE request when its film is on disk."""
        if self._last_film.is_set():  # the association is older
            return OUT_OF_RESOURCES
        try:
            self.queue.add(event.request.AffectedSOPInstanceUID, event.encoded_dataset())
        except (QueueFull, OSError) as error:
            logger.warning("A film was not accepted (%s).", type(error).__name__)
            return OUT_OF_RESOURCES
        return SUCCESS

    def _work(self) -> None:
        """Examine films until none waits and none will come."""
        self.examine(FilmRecord(0, "", ""))
        self.ready.set()
        while (film := self.queue.take()) or not self._last_film.is_set():
            if film is None:
                self.queue.wait()
            else:
                self._examine(film)

    def _examine(self, film: Entry) -> None:
        found = self.examine(FilmRecord(film.id, str(film.path), film.path.name))
        reason = "; ".join(each for each in (found.reason, *found.missing) if each)
        is_unread = found.status == UNREADABLE
        waits = is_unread and self.queue.postpone(film, reason)
        if reason:
            fate = " is tried again" if waits else ""
            logger.warning("Film %d%s: %s", film.id, fate, reason)
        if not waits:
            files = found.made.get(DICOM, {}).get(FILES, [])
            state = FAILED if is_unread or (found.missing and not files) else found.status
            self.queue.finish(film, state, reason, files, self.config.send_to)
