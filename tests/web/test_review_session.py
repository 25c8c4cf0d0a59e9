"""The decisions about a run's knees, without a browser."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kneematch.films.annotation import annotate, save_annotation
from kneematch.knee.detection import Detection
from kneematch.run.config import DetectConfig
from kneematch.run.correction import area_of
from kneematch.run.decisions import Decision
from kneematch.run.pipeline import detect_folder
from kneematch.web.review_session import DecisionRequest, ReviewSession
from kneephantoms.phantom import phantom


def test_session_keeps_the_correction_of_an_added_knee_whose_loss_is_unknown(
    run_folder: Path,
) -> None:
    (run_folder / "run.json").unlink()  # it names the template, without which there is no loss
    table = run_folder / "detections.csv"
    header, first, _, *others = table.read_text().splitlines(keepends=True)
    table.write_text("".join([header, first, *others]))  # the first film lacks its right knee
    session = ReviewSession(run_folder, Path())
    drawn = area_of(session.draft(0, "right"))
    row = session.decide(DecisionRequest(0, "corrected", "right", drawn))
    session.decide(DecisionRequest(row, "corrected", area=drawn, laterality="L"))
    made = session.log.decisions
    session.log.close()
    again = ReviewSession(run_folder, Path())
    again.log.close()
    assert (again.log.warning, again.log.decisions) == ("", made)
    assert again.loss(row, drawn) is None


def test_session_says_how_many_decisions_do_not_count(run_folder: Path) -> None:
    session = ReviewSession(run_folder, Path())
    assert session.warning == ""
    (_, side), other = session.knees[:2]
    session.decide(DecisionRequest(0, "accepted"))
    session.log.add(Decision(*other, "accepted", area_of(session.found(0))))  # where it is not
    session.log.add(Decision("gone.dcm", side, "rejected", area_of(session.found(0))))
    session.log.close()
    again = ReviewSession(run_folder, Path())
    again.log.close()
    assert again.counts()["accepted"] == 1
    assert "review.csv: 1 decision does not count, about areas that have moved" in again.warning


@dataclass(frozen=True, slots=True)
class NoOutliner:
    """Outlines no knee."""

    def outline(self, knee: Detection, film: object, *, placed: bool) -> Detection:
        return knee


class InterruptedSession(ReviewSession):
    """A session in which another thread outlines the knee of row 1 whenever one was outlined."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_outlined" and value is not None:
            super().__setattr__(name, ((1, None), self.knee(1)))


def test_session_outlines_the_knee_that_was_asked_for(run_folder: Path) -> None:
    session = InterruptedSession(run_folder, Path())
    session.log.close()
    session.outliner = NoOutliner()  # type: ignore[assignment]
    assert session.outlined(0).side == session.knees[0][1]


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
    session.log.close()
    assert (session.films, session.films_found) == (["film.dcm"], 1)
    assert session.film(0).size == (512, 512)
    assert (session.template is not None, session.no_loss_reason) == (True, "")
