"""Deliver objects to DICOM nodes (C-STORE) and DICOMweb servers (STOW-RS), with retries."""

import logging
import ssl
import threading
from pathlib import Path
from typing import Final

import requests
from dicomweb_client.api import DICOMwebClient
from pydicom import Dataset, dcmread, uid
from pynetdicom import AE

from kneematch.serve.config import ServeConfig, parse_address
from kneematch.serve.queue import Queue

SYNTAXES: Final = [uid.ExplicitVRLittleEndian, uid.ImplicitVRLittleEndian]
TIMEOUT_S: Final = 30.0
LONGEST_S: Final = 600.0  # between two tries to reach a receiver
# Answers to C-STORE, besides success: it is there already, it was changed, there is no room.
DUPLICATE, WARNING, NO_ROOM = 0x0111, 0xB000, 0xA700
BUSY: Final = (408, 429)  # answers of HTTP that mean to try again, besides 500 and above

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
    while (item := queue.due(receiver)) or not ending.is_set():
        if item is None:
            queue.wait()
            continue
        try:
            send(item.path, receiver, config)
            queue.settle(item)
        except Refused as error:
            fate = "is tried again" if queue.refused(item, str(error)) else "is given up"
            logger.warning("Object %d was refused (%s) and %s.", item.id, error, fate)
        except (Unreachable, OSError) as error:
            logger.warning("A receiver cannot be reached (%s).", type(error).__name__)
            if ending.wait(pause):
                return
            pause = min(2 * pause, LONGEST_S)
        else:
            pause = 1.0


def send(path: Path, receiver: str, config: ServeConfig) -> None:
    """Send one object.

    Raises:
        Refused, Unreachable, OSError: the receiver does not have it.
    """
    dataset, address = dcmread(path), parse_address(receiver)
    if address is None:
        _stow(dataset, receiver)
        return
    status = _c_store(dataset, *address, config)
    if status is None or status & 0xFF00 == NO_ROOM:
        raise Unreachable
    if status not in (0, DUPLICATE) and status & 0xF000 != WARNING:
        raise Refused(f"status {status:04X}")


def _c_store(
    dataset: Dataset, tls: bool, title: str, host: str, port: int, config: ServeConfig
) -> int | None:
    """Return the status that a node answers; None if the association ended before."""
    entity = AE(config.ae_title)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = TIMEOUT_S
    entity.connection_timeout = TIMEOUT_S
    entity.add_requested_context(dataset.SOPClassUID, SYNTAXES)
    secure = (config.tls(ssl.Purpose.SERVER_AUTH), host) if tls else None
    association = entity.associate(host, port, ae_title=title, tls_args=secure)
    if association.rejected_contexts:
        raise Refused("the receiver does not take this kind of object")
    if not association.is_established:
        raise Unreachable
    try:
        status: int | None = association.send_c_store(dataset).get("Status")
    except RuntimeError as error:  # the association ended
        raise Unreachable from error
    finally:
        association.release()
    return status


def _stow(dataset: Dataset, url: str) -> None:
    client = DICOMwebClient(url, timeout=TIMEOUT_S)
    client.set_http_retry_params(retry=False)
    try:
        answer = client.store_instances([dataset])
    except requests.HTTPError as error:
        code = 0 if error.response is None else error.response.status_code
        if code >= 500 or code in BUSY:
            raise Unreachable from error
        raise Refused(f"HTTP status {code}") from error
    if answer.get("FailedSOPSequence"):
        raise Refused("the server lists it as failed")
