"""The decisions about a run's knees, without a browser."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.films.annotation import annotate, save_annotation
from kneematch.knee.decision import Area, Decision
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run
from kneematch.run.pipeline import detect_folder
from kneematch.web.review_session import DecisionRequest, ReviewSession
from kneephantoms import phantom


def test_session_keeps_the_correction_of_an_added_knee_whose_loss_is_unknown(
    run_folder: Path,
) -> None:
    with Run(run_folder) as run:  # the first film lacks its right knee, and the template is gone
        film = run.record(1)
        run.save([replace(film, found=film.found[:1], knees=film.found[:1])])
        run.store(config={**run.setting("config"), "template": "gone.json"})
    session = ReviewSession(run_folder, Path())
    assert "gone.json" in session.no_loss_reason
    drawn = Area.from_detection(session.draft(session.row(1), "right"))
    key = session.decide(DecisionRequest(1, "corrected", "right", drawn))
    session.decide(DecisionRequest(key, "corrected", area=drawn, laterality="L"))
    session.close()
    again = ReviewSession(run_folder, Path())
    row = again.row(key)
    assert row.knee is not None
    assert (row.state, row.knee.laterality, again.warning) == ("corrected", "L", "")
    assert again.loss(row, drawn) is None
    again.close()


def test_session_says_how_many_decisions_do_not_count(run_folder: Path) -> None:
    with Run(run_folder) as run:
        (knee, _) = run.record(1).found
        run.decide(1, "left", Decision("accepted", Area.from_detection(knee)))
        run.decide(1, "right", Decision("accepted", Area.from_detection(knee)))  # where it is not
    session = ReviewSession(run_folder, Path())
    assert (session.row(1).state, session.row(2).state) == ("accepted", "undecided")
    assert session.warning.startswith("1 of the decisions in ")
    session.close()


def test_session_refuses_a_run_that_has_not_ended(run_folder: Path) -> None:
    with Run(run_folder) as run:
        run.add(["new.dcm"])
    with pytest.raises(SettingsError, match="have not been searched"):
        ReviewSession(run_folder, Path())


def test_session_finds_films_and_template_from_another_working_folder(
    films: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(films[0], tmp_path / "film.dcm")
    knee = phantom(0, size=(512, 512)).knees[1]
    drawn = annotate(tmp_path / "film.dcm", knee.side, knee.plateau_left, knee.plateau_right)
    save_annotation(drawn, tmp_path / "template.json")
    monkeypatch.chdir(tmp_path)
    config = DetectConfig(template="template.json", method="search", device="cpu", workers=0)
    detect_folder("film.dcm", "out", config)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    session = ReviewSession(Path("../out"))
    assert (session.films, session.films_found) == (["film.dcm"], 1)
    assert session.film(session.row(1)).size == (512, 512)
    assert (session.template is not None, session.no_loss_reason) == (True, "")
    session.close()
