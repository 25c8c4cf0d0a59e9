"""The decisions about a run's knees, without a browser."""

from pathlib import Path

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
