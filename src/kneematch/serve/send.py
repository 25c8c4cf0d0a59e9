"""Deliver objects to DICOM nodes (C-STORE) and DICOMweb servers (STOW-RS), with retries.

One connection serves all objects that are due. STOW-RS requests are made here, since
dicomweb-client takes the page of a login for success.
"""

import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from queue import Empty
from queue import Queue as MessageQueue
from typing import Any, Final

import requests
from pydicom import dcmread, uid
from pynetdicom import AE, evt

from kneematch.films.radiograph import silent
from kneematch.serve.config import ServeConfig, parse_address
from kneematch.serve.queue import Entry, Queue

CLASSES: Final = (
    *(uid.ComprehensiveSRStorage, uid.SecondaryCaptureImageStorage, uid.SegmentationStorage),
)
SYNTAXES: Final = [uid.ExplicitVRLittleEndian, uid.ImplicitVRLittleEndian]
TIMEOUT_S: Final = 30.0
LONGEST_S: Final = 600.0  # between two tries to reach a receiver
# Many receivers send an answer in two parts, the second when the first was acknowledged, which
# systems do after 40 ms unless they are asked to do it now. It has to be asked again and again.
PROMPT: Final = (socket.TCP_NODELAY, getattr(socket, "TCP_QUICKACK", socket.TCP_NODELAY))
# Answers to C-STORE, besides success: it is there already, it was changed, there is no room.
DUPLICATE, WARNING, OUT_OF_RESOURCES = 0x0111, 0xB000, 0xA700
BUSY: Final = (408, 429)  # answers of HTTP that mean to try again, besides 500 and above
STORED, FAILED = (200, 202), "00081198"  # and the sequence of objects that a server did not store
BOUNDARY: Final = "kneematch-4f0b1c9ad2e84c55"
PART: Final = f"--{BOUNDARY}\r\nContent-Type: application/dicom\r\n\r\n%b\r\n--{BOUNDARY}--\r\n"
HEADERS: Final = {
    "Content-Type": f'multipart/related; type="application/dicom"; boundary={BOUNDARY}',
    "Accept": "application/dicom+json",
}
Send = Callable[[bytes], None]

logger = logging.getLogger("kneematch")


class Unreachable(Exception):
    """A receiver does not answer, or has no room; nothing is wrong with the object."""


class Refused(Exception):
    """A receiver does not take an object."""


def deliver(queue: Queue, receiver: str, config: ServeConfig, ending: threading.Event) -> None:
    """Deliver what waits for a receiver until `ending` is set and nothing is due.

    A receiver that cannot be reached is tried again after 1, 2, 4 s and so on up to ten minutes,
    but not once `ending` is set: its objects then wait for the next start.
    """
    pause = 1.0
    while (waiting := queue.due(receiver)) or not ending.is_set():
        if waiting is None:
            queue.wait()
            continue
        used = False
        try:
            with connect(receiver, config) as send:
                while item := queue.due(receiver):
                    _deliver(queue, item, send)
                    pause, used = 1.0, True
        except (Unreachable, OSError) as error:
            if used and isinstance(error, OSError):
                continue  # a kept connection broke: the next one shows whether anyone is there
            logger.warning("A receiver cannot be reached (%s).", type(error).__name__)
            if ending.wait(pause):
                return
            pause = min(2 * pause, LONGEST_S)


def _deliver(queue: Queue, item: Entry, send: Send) -> None:
    """Send an object, and note what became of it unless the receiver cannot be reached."""
    try:
        send(_read(item))
    except (Unreachable, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - libraries raise anything for odd answers
        reason = str(error) if isinstance(error, Refused) else type(error).__name__
        fate = "is tried again" if queue.refused(item, reason) else "is given up"
        logger.warning("Object %d was refused (%s) and %s.", item.id, reason, fate)
    else:
        queue.settle(item)


def _read(item: Entry) -> bytes:
    try:
        return item.path.read_bytes()
    except OSError as error:
        raise Refused(f"its file cannot be read: {error.strerror}") from error


@contextmanager
def connect(receiver: str, config: ServeConfig) -> Iterator[Send]:
    """Yield a function that sends an object; all go through one connection.

    It raises Refused, Unreachable or OSError if the receiver does not have the object.
    """
    if (address := parse_address(receiver)) is None:
        with requests.Session() as session:
            yield partial(_stow, session, f"{receiver.rstrip('/')}/studies")
        return
    association = _associate(*address, config)
    try:
        yield partial(_c_store, association)
    except BaseException:
        association.abort()
        raise
    association.release()


def _associate(tls: bool, title: str, host: str, port: int, config: ServeConfig) -> Any:
    """Return an association; one with a receiver that accepts nothing has ended already."""
    entity = AE(config.ae_title)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = TIMEOUT_S
    entity.connection_timeout = TIMEOUT_S
    for each in CLASSES:
        entity.add_requested_context(each, SYNTAXES)
    secure = (config.tls(ssl.Purpose.SERVER_AUTH), host) if tls else None
    handlers: list[Any] = [(evt.EVT_CONN_OPEN, limit_silence)]
    handlers += [(event, _be_prompt) for event in (evt.EVT_PDU_SENT, evt.EVT_DATA_RECV)]
    association = entity.associate(
        host, port, ae_title=title, tls_args=secure, evt_handlers=handlers
    )
    if not association.is_established and not association.rejected_contexts:
        raise Unreachable
    association.dimse.msg_queue = _Answers()
    return association


class _Answers(MessageQueue[Any]):
    """A queue of answers that only send_c_store, which waits for them, takes.

    A thread of pynetdicom looks for requests without waiting. It would take one answer in some
    thousand away, for which send_c_store would then wait until the time is out.
    """

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not block:
            raise Empty
        return super().get(timeout=timeout)


def limit_silence(event: Any) -> None:
    """Limit the pauses within a message on a new connection; pynetdicom waits for ever."""
    event.assoc.dul.socket.socket.settimeout(TIMEOUT_S)


def _be_prompt(event: Any) -> None:
    for option in PROMPT:
        event.assoc.dul.socket.socket.setsockopt(socket.IPPROTO_TCP, option, 1)


def _c_store(association: Any, content: bytes) -> None:
    dataset = dcmread(BytesIO(content))
    if dataset.SOPClassUID not in {each.abstract_syntax for each in association.accepted_contexts}:
        raise Refused("the receiver does not take this kind of object")
    if not association.is_established:
        raise ConnectionError
    with silent():
        status = association.send_c_store(dataset).get("Status")
    if status is None:  # the association ended, or the time was out
        raise ConnectionError
    if status & 0xFF00 == OUT_OF_RESOURCES:
        raise Unreachable
    if status not in (0, DUPLICATE) and status & 0xF000 != WARNING:
        raise Refused(f"status {status:04X}")


def _stow(session: requests.Session, url: str, content: bytes) -> None:
    how: Any = {"headers": HEADERS, "timeout": TIMEOUT_S, "allow_redirects": False}
    answer = session.post(url, PART.encode() % content, **how)
    code, kind = answer.status_code, answer.headers.get("Content-Type", "")
    if code >= 500 or code in BUSY:
        raise Unreachable
    if code not in STORED or "html" in kind:
        raise Refused(f"HTTP status {code}" + ", a page" * ("html" in kind))
    if "json" in kind and json.loads(answer.content).get(FAILED, {}).get("Value"):
        raise Refused("the server lists it as failed")
