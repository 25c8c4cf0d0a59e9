"""The numbers that the node gives to Prometheus; test_serve.py has the rest of the interface."""

from pathlib import Path

from kneematch.serve.http import metrics_text
from kneematch.serve.queue import Queue

FORMER = ("PACS@former:104", "PACS@first:104")
PRESENT = "https://present/dicom-web"


def test_metrics_text_has_each_series_once(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue", most=3)
    queue.add("1.2.3", b"film")
    film = queue.take()
    assert film is not None
    queue.finish(film, "ok", "", ["a", "b"], [*FORMER, PRESENT])
    lines = metrics_text(queue, [PRESENT]).splitlines()
    assert lines[0] == 'kneematch_films{state="ok"} 1'
    assert lines[2:] == [
        'kneematch_objects{receiver="0",state="waiting"} 4',
        'kneematch_objects{receiver="1",state="waiting"} 2',
    ]


def test_metrics_text_counts_no_time_of_a_film_that_waits_again(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue", most=3)
    queue.add("1.2.3", b"film")
    film = queue.take()
    assert film is not None
    queue.finish(film, "failed", "a worker died", [], [])
    queue.add("1.2.3", b"film")
    assert "kneematch_film_seconds_sum 0.000" in metrics_text(queue, []).splitlines()
