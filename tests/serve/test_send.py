"""Delivery to real servers of DICOM and HTTP: one connection for many objects, each object once."""

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydicom import Dataset, FileMetaDataset, uid
from pynetdicom import AE, evt

from kneematch.serve import send
from kneematch.serve.config import ServeConfig
from kneematch.serve.queue import MOST_TRIES, Queue
from servers import eventually

REPORT, SEGMENTS = uid.ComprehensiveSRStorage, uid.SegmentationStorage
PICTURE = uid.SecondaryCaptureImageStorage


class Receiver:
    """A DICOM node that counts the associations and objects that it accepts."""

    def __init__(self, *classes: str, syntax: str = uid.ExplicitVRLittleEndian) -> None:
        self.associations, self.arrived = 0, Counter[str]()
        self.answer: Callable[[Any], int] = lambda _: 0
        entity = AE("PACS")
        for each in classes:
            entity.add_supported_context(each, syntax)
        handlers: list[Any] = [(evt.EVT_ACCEPTED, self._accept), (evt.EVT_C_STORE, self._store)]
        self.server: Any = entity.start_server(("127.0.0.1", 0), False, evt_handlers=handlers)
        self.address = f"PACS@127.0.0.1:{self.server.server_address[1]}"

    def _accept(self, _: Any) -> None:
        self.associations += 1

    def _store(self, event: Any) -> int:
        self.arrived[event.dataset.SOPInstanceUID] += 1
        return self.answer(event)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    made = Queue(tmp_path / "queue")
    yield made
    made.close()


def add(queue: Queue, goal: str, *classes: str) -> list[str]:
    """Add objects of SOP classes to a queue, as those of one film; return their UIDs."""
    names = []
    for each in classes:
        dataset, dataset.file_meta = (made := Dataset()), FileMetaDataset()
        made.SOPClassUID, made.SOPInstanceUID = each, uid.generate_uid()
        made.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
        made.save_as(queue.objects / made.SOPInstanceUID, enforce_file_format=True)
        names.append(str(made.SOPInstanceUID))
    queue.add(uid.generate_uid(), b"film")
    film = queue.take()
    assert film is not None
    queue.finish(film, "ok", "", names, [goal])
    return names


def states(queue: Queue) -> dict[str, int]:
    return dict(queue.query("SELECT state, count(*) FROM objects GROUP BY state"))


def deliver(queue: Queue, goal: str) -> None:
    """Deliver what is due, and return then."""
    ending = threading.Event()
    ending.set()
    send.deliver(queue, goal, ServeConfig(), ending)


@pytest.mark.parametrize("syntax", [uid.ExplicitVRLittleEndian, uid.ImplicitVRLittleEndian])
def test_deliver_sends_all_objects_in_one_association(queue: Queue, syntax: str) -> None:
    receiver = Receiver(REPORT, SEGMENTS, PICTURE, syntax=syntax)
    names = add(queue, receiver.address, *(REPORT, SEGMENTS, PICTURE) * 20)
    deliver(queue, receiver.address)
    assert (receiver.associations, receiver.arrived) == (1, Counter(names))
    assert (states(queue), list(queue.objects.iterdir())) == ({"sent": 60}, [])


def test_deliver_refuses_only_the_kinds_that_a_receiver_rejects(queue: Queue) -> None:
    receiver = Receiver(REPORT, PICTURE)
    report, _, picture = add(queue, receiver.address, REPORT, SEGMENTS, PICTURE)
    deliver(queue, receiver.address)
    assert (receiver.associations, set(receiver.arrived)) == (1, {report, picture})
    assert states(queue) == {"sent": 2, "waiting": 1}
    ((tries, reason),) = queue.query("SELECT tries, reason FROM objects WHERE state = 'waiting'")
    assert (tries, reason) == (1, "the receiver does not take this kind of object")


def test_deliver_refuses_objects_of_a_receiver_that_rejects_all_kinds(queue: Queue) -> None:
    receiver = Receiver(uid.CTImageStorage)
    add(queue, receiver.address, REPORT, PICTURE)
    queue.query("UPDATE objects SET tries = ?", MOST_TRIES - 1)
    deliver(queue, receiver.address)
    assert (receiver.arrived, states(queue)) == ({}, {"failed": 2})


def test_deliver_connects_again_at_once_when_a_kept_association_broke(queue: Queue) -> None:
    receiver = Receiver(REPORT)
    names = add(queue, receiver.address, *[REPORT] * 6)

    def answer(event: Any) -> int:
        if sum(receiver.arrived.values()) in (2, 5):
            event.assoc.abort()
        return 0

    receiver.answer = answer
    deliver(queue, receiver.address)  # it would end at the first pause
    assert (receiver.associations, states(queue)) == (3, {"sent": 6})
    assert receiver.arrived == {name: 1 + (name in (names[1], names[3])) for name in names}


def test_deliver_keeps_objects_of_a_receiver_without_room(queue: Queue) -> None:
    receiver = Receiver(REPORT)
    receiver.answer = lambda _: 0xA700 if len(receiver.arrived) > 1 else 0
    add(queue, receiver.address, REPORT, REPORT, REPORT)
    deliver(queue, receiver.address)
    assert states(queue) == {"sent": 1, "waiting": 2}
    assert queue.query("SELECT max(tries) FROM objects") == [(0,)]
    assert sorted(receiver.arrived.values()) == [1, 1]


@pytest.mark.parametrize("begun", [b"\x02\x00\x00", b"\x02\x00\x00\x00\x01\x00half"])
def test_deliver_gives_up_a_receiver_that_stops_in_the_middle_of_an_answer(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(send, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as receiver:
        goal, peers = f"PACS@127.0.0.1:{receiver.getsockname()[1]}", list[socket.socket]()

        def answer() -> None:
            peers.append(receiver.accept()[0])
            peers[0].sendall(begun)

        thread = threading.Thread(target=answer)
        thread.start()
        add(queue, goal, REPORT)
        deliver(queue, goal)
        thread.join()
        peers[0].close()
    assert states(queue) == {"waiting": 1}


def test_deliver_releases_an_idle_association_and_begins_another(queue: Queue) -> None:
    receiver, ending = Receiver(REPORT), threading.Event()
    arguments = queue, receiver.address, ServeConfig(), ending
    thread = threading.Thread(target=send.deliver, args=arguments)
    thread.start()
    for count in (1, 2):
        add(queue, receiver.address, REPORT)
        eventually(lambda count=count: states(queue) == {"sent": count}, "an object is sent")
        eventually(lambda: not receiver.server.active_associations, "the association is released")
    ending.set()
    thread.join()
    assert receiver.associations == 2


def test_deliver_is_not_blocked_by_an_object_that_is_gone(queue: Queue) -> None:
    receiver = Receiver(REPORT)
    gone, spoilt, good = add(queue, receiver.address, REPORT, REPORT, REPORT)
    (queue.objects / gone).unlink()
    (queue.objects / spoilt).write_bytes(b"")
    deliver(queue, receiver.address)
    assert (set(receiver.arrived), states(queue)) == ({good}, {"sent": 1, "waiting": 2})


@pytest.fixture
def web() -> Iterator[tuple[str, list[Any], set[Any]]]:
    """A web server, the answers that it gives (status, type, content), and who connected."""
    answers: list[tuple[int, str, bytes]] = []
    connections: set[Any] = set()

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            connections.add(self.client_address)
            code, kind, content = answers[0]
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            if code == 302:
                answers[0] = 200, kind, content
                self.send_header("Location", "/login")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", answers, connections
    server.shutdown()
    server.server_close()


STORED = json.dumps({"00081199": {"vr": "SQ", "Value": [{}]}}).encode()
FAILED = json.dumps({"00081198": {"vr": "SQ", "Value": [{}]}}).encode()
JSON = "application/dicom+json"


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ((200, JSON, STORED), {"sent": 2}),
        ((200, "", b""), {"sent": 2}),
        ((202, JSON, FAILED), {"waiting": 2}),
        ((202, f"{JSON}; charset=utf-8", FAILED), {"waiting": 2}),
        ((200, JSON, b"no JSON"), {"waiting": 2}),
        ((200, "application/dicom+xml", b"<NativeDicomModel/>"), {"sent": 2}),
        ((200, "text/html; charset=utf-8", b"<p>Your password, please</p>"), {"waiting": 2}),
        ((302, "text/html", b""), {"waiting": 2}),
        ((409, JSON, FAILED), {"waiting": 2}),
        ((503, "text/html", b""), {"waiting": 2}),  # it is busy: this does not count as a try
    ],
)
def test_deliver_takes_only_a_dicomweb_answer_for_success(
    queue: Queue, web: Any, answer: tuple[int, str, bytes], state: dict[str, int]
) -> None:
    url, answers, connections = web
    answers.append(answer)
    add(queue, url, REPORT, PICTURE)
    deliver(queue, url)
    assert states(queue) == state
    assert len(connections) == 1 or state != {"sent": 2}
    refused = state != {"sent": 2} and answer[0] != 503
    assert queue.query("SELECT max(tries) FROM objects") == [(int(refused),)]
