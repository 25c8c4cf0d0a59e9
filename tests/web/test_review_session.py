"""The decisions about a run's knees, without a browser."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kneematch.detection.detection import Detection
from kneematch.review.correction import area_of
from kneematch.review.log import Decision
from kneematch.web.review_session import DecisionRequest, ReviewSession


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
