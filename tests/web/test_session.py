"""The decisions about a run's knees, without a browser."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from kneematch.errors import SettingsError
from kneematch.knee.decision import Area, Decision
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run
from kneematch.run.pipeline import detect_folder, finish_run
from kneematch.web.knee_rows import Row
from kneematch.web.review import ReviewSession


def test_session_says_what_does_not_count_and_is_not_measured(run_folder: Path) -> None:
    with Run(run_folder) as run:
        (knee, _) = run.record(1).found
        run.decide(1, "left", Decision("accepted", Area.from_detection(knee)))
        run.decide(1, "right", Decision("accepted", Area.from_detection(knee)))  # where it is not
    session = ReviewSession(run_folder, Path())
    assert (session.row(1).state, session.row(2).state) == ("accepted", "undecided")
    assert session.warning.startswith("1 of the decisions in ")
    with pytest.raises(SettingsError, match="made without `measure`"):
        session.outlined(session.row(1))
    session.close()


def test_session_answers_requests_after_apply_has_ended(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kneematch.run.database.REVIEW_BUSY_MS", 1)
    session = ReviewSession(run_folder, Path())
    requests: list[Future[Row]] = []
    with ThreadPoolExecutor(1) as pool:

        def write(*args: Any, **options: Any) -> Any:
            """Write the outputs while another request waits, or after it has failed."""
            requests.append(pool.submit(session.row, 1))
            wait(requests, timeout=1)
            return finish_run(*args, **options)

        monkeypatch.setattr("kneematch.run.apply.finish_run", write)
        session.apply()
        assert requests[0].result().key == 1
    session.close()


def test_session_finds_films_from_another_working_folder(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(films[0], tmp_path / "film.dcm")
    monkeypatch.chdir(tmp_path)
    detect_folder("film.dcm", "out", DetectConfig(device="cpu", workers=0))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    session = ReviewSession(Path("../out"))
    assert session.films == ["film.dcm"]
    film = session.film(session.row(1))
    assert film.size == (512, 512)
    assert session.film(session.row(2)) is film  # read once
    session.close()
