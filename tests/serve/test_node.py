"""The node's own process: what it does when the system refuses worker processes."""

import multiprocessing
import resource
import threading
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.run.film_record import FilmRecord
from kneematch.serve import node as module
from kneematch.serve.config import ServeConfig
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
    node.finish()
    node.queue.close()
    assert [answer.status for answer in answers] == ["failed"]
    assert "neither DICOM nor" in answers[0].reason


def test_node_refuses_a_certificate_of_receivers_that_is_not_there(tmp_path: Path) -> None:
    config = ServeConfig(port=0, send_to=("tls:PACS@127.0.0.1:104",), tls_ca=tmp_path / "ca.pem")
    with pytest.raises(SettingsError, match="certificate cannot be used: No such file"):
        module.Node(config, tmp_path / "queue")
