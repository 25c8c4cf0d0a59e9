"""The node's own process: what it does when the system refuses worker processes or files."""

import multiprocessing
import resource
import threading
from pathlib import Path

import pytest
from fastapi import HTTPException

from kneematch.errors import SettingsError
from kneematch.run.film_record import FilmRecord
from kneematch.serve import http
from kneematch.serve import node as module
from kneematch.serve import queue as queue_module
from kneematch.serve.config import ServeConfig
from kneematch.serve.queue import Queue
from servers import eventually


def test_node_waits_while_no_worker_process_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0.05)
    (tmp_path / "film").write_bytes(b"no film")
    limit, answers = resource.getrlimit(resource.RLIMIT_NOFILE), list[FilmRecord]()
    node = module.Node(ServeConfig(port=0, workers=1), tmp_path / "queue")
    eventually(node.ready.is_set, "the networks are loaded")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))  # no pipe to a process
        for child in multiprocessing.active_children():
            child.kill()
        film = FilmRecord(0, str(tmp_path / "film"), "film", to_make=frozenset())
        request = threading.Thread(target=lambda: answers.append(node.examine(film)))
        request.start()
        eventually(lambda: "A worker process cannot start" in caplog.text, "a start fails")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    request.join()
    finish(node)
    assert [answer.status for answer in answers] == ["failed"]
    assert "neither DICOM nor" in answers[0].reason


def finish(node: module.Node) -> None:
    node.finish()
    node.queue.close()


@pytest.fixture
def film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A film that waits in a queue whose tries follow each other at once."""
    monkeypatch.setattr(queue_module, "READ_PAUSES_S", (0.1,) * 3)
    queue = Queue(tmp_path / "queue")
    queue.add("1.2.3", b"no film")
    queue.close()
    (path,) = queue.films.iterdir()
    return path


def test_node_reads_films_again_that_failed_for_their_surroundings(
    film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_module, "READ_PAUSES_S", (1.0,) * 1000)
    film.rename(tmp_path / "away")
    node = module.Node(ServeConfig(port=0, workers=1), tmp_path / "queue")
    eventually(lambda: "Film 1 is tried again: No such file" in caplog.text, "it is not there")
    with pytest.raises(HTTPException) as caught:
        http._detect(node, tmp_path / "none")
    assert caught.value.status_code == 503
    (tmp_path / "away").rename(film)
    failed = "SELECT reason FROM films WHERE state = 'failed'"
    ((reason,),) = eventually(lambda: node.queue.query(failed), "its content is seen")
    assert "neither DICOM nor" in reason
    finish(node)


def test_node_gives_up_a_film_that_ends_every_worker(
    film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "examine", int)  # which raises an error, and so ends the process
    node = module.Node(ServeConfig(port=0, workers=1), tmp_path / "queue")
    failed = "SELECT tries, reason FROM films WHERE state = 'failed'"
    ((tries, reason),) = eventually(lambda: node.queue.query(failed), "it is given up")
    assert (tries, caplog.text.count("Film 1 is tried again")) == (3, 3)
    assert "the process that read it ended" in reason
    eventually(lambda: not film.exists(), "its file is removed")
    finish(node)


def test_node_refuses_a_certificate_of_receivers_that_is_not_there(tmp_path: Path) -> None:
    config = ServeConfig(port=0, send_to=("tls:PACS@127.0.0.1:104",), tls_ca=tmp_path / "ca.pem")
    with pytest.raises(SettingsError, match="certificate cannot be used: No such file"):
        module.Node(config, tmp_path / "queue")
