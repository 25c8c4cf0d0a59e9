"""The queue on disk: each film and each object once, whatever happens in between."""

import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.serve import queue as module
from kneematch.serve.queue import MOST_TRIES, READ_PAUSES_S, Entry, Queue, QueueFull
from servers import eventually

PACS = "PACS@localhost:104"
WEB = "http://localhost/dicom-web"


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path / "queue")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test may change."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    return now


def taken(queue: Queue) -> Entry:
    film = queue.take()
    assert film is not None
    return film


def finish(queue: Queue, *objects: str, receivers: tuple[str, ...] = (PACS,)) -> None:
    film = taken(queue)
    for name in objects:
        (queue.objects / name).write_bytes(b"object")
    queue.finish(film, "ok", "", objects, receivers)


def test_queue_returns_films_in_order_and_each_once(queue: Queue) -> None:
    for number in range(3):
        queue.add(f"1.2.{number}", b"film %d" % number)
    assert [taken(queue).path.read_bytes() for _ in range(3)] == [b"film 0", b"film 1", b"film 2"]
    assert queue.take() is None


def test_queue_takes_a_film_that_is_sent_by_many_at_once_only_once(queue: Queue) -> None:
    threads = [threading.Thread(target=queue.add, args=("1.2.3", b"film")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(queue.films.iterdir())) == 1
    finish(queue)
    queue.add("1.2.3", b"film")
    assert queue.take() is None


def test_queue_refuses_films_when_it_is_full(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_FREE", 1 << 60)
    with pytest.raises(QueueFull):
        queue.add("1.2.3", b"film")
    monkeypatch.setattr(module, "LEAST_FREE", 0)
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    for number in range(3):
        queue.add(f"1.2.{number}", b"film")
    with pytest.raises(QueueFull):
        queue.add("1.2.4", b"film")
    assert len(list(queue.films.iterdir())) == 3


def test_queue_keeps_what_was_accepted_and_not_finished(queue: Queue) -> None:
    for number in range(3):
        queue.add(f"1.2.{number}", b"film")
    finish(queue, "a", receivers=(PACS, WEB))
    left = taken(queue).path.name
    (queue.objects / "unfinished").write_bytes(b"an object of the film that was taken")
    queue.close()
    again = Queue(queue.films.parent)
    assert taken(again).path.name == left
    assert [item.path.name for item in map(again.due, (PACS, WEB)) if item] == ["a", "a"]
    assert sorted(path.name for path in again.objects.iterdir()) == ["a"]
    assert len(list(again.films.iterdir())) == 2


def test_queue_removes_files_when_they_are_done(queue: Queue) -> None:
    queue.add("1.2.3", b"film")
    finish(queue, "a", receivers=(PACS, WEB))
    assert list(queue.films.iterdir()) == []
    for receiver, left in ((PACS, ["a"]), (WEB, [])):
        item = queue.due(receiver)
        assert item is not None
        queue.settle(item)
        assert queue.due(receiver) is None
        assert [path.name for path in queue.objects.iterdir()] == left


def test_queue_tries_refused_objects_again_and_then_gives_up(
    queue: Queue, now: list[float]
) -> None:
    queue.add("1.2.3", b"film")
    finish(queue, "a")
    waited = []
    while (item := queue.due(PACS)) is not None and queue.refused(item, "status A900"):
        before = now[0]
        while queue.due(PACS) is None:
            now[0] += 1
        waited.append(now[0] - before)
    assert waited == [2.0**k for k in range(MOST_TRIES - 1)]
    assert queue.query("SELECT state, reason FROM objects") == [("failed", "status A900")]
    assert list(queue.objects.iterdir()) == []


def test_queue_reads_films_again_later_and_then_gives_up(queue: Queue, now: list[float]) -> None:
    queue.add("1.2.3", b"film")
    first, waited = taken(queue), []
    film = first
    while queue.postpone(film, "a disk is away"):
        queue.add("1.2.4", b"another film")  # which does not wait for the first
        if (other := queue.take()) is not None:
            queue.finish(other, "ok", "", [], [])
        before = now[0]
        while (again := queue.take()) is None:
            now[0] += 1
        film = again
        waited.append(now[0] - before)
    assert (film.path, tuple(waited)) == (first.path, READ_PAUSES_S)
    queue.finish(film, "failed", "a disk is away", [], [])
    assert list(queue.films.iterdir()) == []
    queue.add("1.2.3", b"the same film")  # which is taken again, since it failed
    again = taken(queue)
    assert (again.tries, again.path.read_bytes()) == (0, b"the same film")


def test_queue_is_for_one_process_and_its_owner_only(queue: Queue) -> None:
    queue.add("1.2.826.999", b"film")
    code = "import sys, pathlib; from kneematch.serve.queue import Queue\n"
    code += "Queue(pathlib.Path(sys.argv[1]))"
    other = [sys.executable, "-c", code, queue.films.parent]
    done = subprocess.run(other, capture_output=True, text=True, check=False)
    assert "Another process uses it" in done.stderr
    paths = [queue.films.parent, *queue.films.parent.rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in paths} == {0}
    queue.close()
    assert b"1.2.826.999" not in (queue.films.parent / "queue.sqlite").read_bytes()


def test_queue_says_what_is_wrong_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "mine" / "films").mkdir(parents=True)
    (tmp_path / "mine" / "films" / "mine.dcm").write_bytes(b"a film that is no part of a queue")
    (tmp_path / "spoilt").mkdir()
    (tmp_path / "spoilt" / "queue.sqlite").write_bytes(b"no database" * 100)
    (tmp_path / "other" / "queue.sqlite").mkdir(parents=True)
    reasons = {"file": "is a file", "mine": "another origin", "spoilt": "damaged"}
    for name, reason in {**reasons, "other": "unable to open"}.items():
        with pytest.raises(SettingsError, match=reason):
            Queue(tmp_path / name)
    assert (tmp_path / "mine" / "films" / "mine.dcm").exists()


def test_queue_waits_while_the_disk_is_full(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The system refuses files that are larger than a limit, as it refuses any on a full disk."""
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    queue.add("1.2.3", b"film")
    arguments = taken(queue), "ok", "", ["a"], [PACS]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limit[1]))
    try:
        thread = threading.Thread(target=queue.finish, args=arguments)
        thread.start()
        eventually(lambda: "The queue cannot be used" in caplog.text, "a commit fails")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    thread.join()
    assert queue.query("SELECT state FROM films") == [("ok",)]
    assert queue.query("SELECT file, state FROM objects") == [("a", "waiting")]
