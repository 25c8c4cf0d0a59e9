"""Deliver objects to DICOM nodes (C-STORE) and DICOMweb servers (STOW-RS), with retries.

A connection is kept between objects: with one for each, 10 objects are sent in the time of 86.
Requests are made here rather than by pynetdicom's send_c_store, whose answer another thread takes
away now and then, and by dicomweb-client, which takes the page of a login for success.
"""

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from queue import Empty, SimpleQueue
from typing import Any, Final

import requests
from pydicom import dcmread, uid
from pynetdicom import AE, evt
from pynetdicom.dimse_primitives import C_STORE
from pynetdicom.dsutils import encode

from kneematch.films.radiograph import silent
from kneematch.serve.config import ServeConfig, parse_address
from kneematch.serve.queue import Entry, Queue

CLASSES: Final = (
    *(uid.ComprehensiveSRStorage, uid.SecondaryCaptureImageStorage, uid.SegmentationStorage),
)
SYNTAXES: Final = [uid.ExplicitVRLittleEndian, uid.ImplicitVRLittleEndian]
TIMEOUT_S: Final = 30.0
IDLE_S: Final = 5.0  # without an object, after which a connection is ended
RENEWED_S: Final = 60.0  # age at which it is ended, too: the receiver may accept more by then
LONGEST_S: Final = 600.0  # between two tries to reach a receiver
# Many receivers send an answer in two parts, the second when the first was acknowledged, which
# systems do after 40 ms unless they are asked to do it now. It has to be asked again and again.
PROMPT: Final = (socket.TCP_NODELAY, getattr(socket, "TCP_QUICKACK", socket.TCP_NODELAY))
POLL_S: Final = 0.002
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
                for item in _due_soon(queue, receiver, ending):
                    _deliver(queue, item, send)
                    pause, used = 1.0, True
        except (Unreachable, OSError) as error:
            if used and isinstance(error, OSError):
                continue  # a kept connection broke: the next one shows whether anyone is there
            logger.warning("A receiver cannot be reached (%s).", type(error).__name__)
            if ending.wait(pause):
                return
            pause = min(2 * pause, LONGEST_S)


def _due_soon(queue: Queue, receiver: str, ending: threading.Event) -> Iterator[Entry]:
    """Yield the objects for one connection."""
    started = last = time.monotonic()
    while time.monotonic() < min(last + IDLE_S, started + RENEWED_S):
        if item := queue.due(receiver):
            yield item
            last = time.monotonic()
        elif ending.is_set():
            return
        else:
            queue.wait()


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
    answers: SimpleQueue[Any] = SimpleQueue()
    association = _associate(*address, config, lambda event: answers.put(event.message))
    try:
        yield partial(_c_store, association, answers)
    except BaseException:
        association.abort()
        raise
    association.release()


def _associate(
    tls: bool, title: str, host: str, port: int, config: ServeConfig, answered: Callable[..., None]
) -> Any:
    """Return an association; one with a receiver that accepts nothing has ended already."""
    entity = AE(config.ae_title)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = TIMEOUT_S
    entity.connection_timeout = TIMEOUT_S
    for each in CLASSES:
        entity.add_requested_context(each, SYNTAXES)
    secure = (config.tls(ssl.Purpose.SERVER_AUTH), host) if tls else None
    handlers: list[Any] = [(evt.EVT_CONN_OPEN, limit_silence), (evt.EVT_DIMSE_RECV, answered)]
    association = entity.associate(
        host, port, ae_title=title, tls_args=secure, evt_handlers=handlers
    )
    if not association.is_established and not association.rejected_contexts:
        raise Unreachable
    return association


def limit_silence(event: Any) -> None:
    """Limit the pauses within a message on a new connection; pynetdicom waits for ever."""
    event.assoc.dul.socket.socket.settimeout(TIMEOUT_S)


def _c_store(association: Any, answers: SimpleQueue[Any], content: bytes) -> None:
    dataset = dcmread(BytesIO(content))
    contexts = {each.abstract_syntax: each for each in association.accepted_contexts}
    if (context := contexts.get(dataset.SOPClassUID)) is None:
        raise Refused("the receiver does not take this kind of object")
    syntax, request = context.transfer_syntax[0], C_STORE()
    request.MessageID, request.AffectedSOPClassUID = 1, dataset.SOPClassUID
    request.AffectedSOPInstanceUID = dataset.SOPInstanceUID
    with silent():
        encoded = encode(dataset, syntax.is_implicit_VR, syntax.is_little_endian)
    if encoded is None:
        raise Refused("it cannot be encoded")
    request.DataSet = BytesIO(encoded)
    association.dimse.send_msg(request, context.context_id)
    status = _answer(association, answers)
    if status & 0xFF00 == OUT_OF_RESOURCES:
        raise Unreachable
    if status not in (0, DUPLICATE) and status & 0xF000 != WARNING:
        raise Refused(f"status {status:04X}")


def _answer(association: Any, answers: SimpleQueue[Any]) -> int:
    """Return the status that a node answers.

    Raises:
        OSError: the association ended before.
    """
    end = time.monotonic() + TIMEOUT_S
    while True:
        with suppress(Empty):
            return int(answers.get(timeout=POLL_S).command_set.Status)
        connection = association.dul.socket.socket
        if not association.is_established or connection is None or time.monotonic() > end:
            raise ConnectionError
        for option in PROMPT:
            connection.setsockopt(socket.IPPROTO_TCP, option, 1)


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
