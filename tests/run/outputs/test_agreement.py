"""Agreement of readers: known kappas, and decisions of a run compared knee by knee."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from detections import make_detection, make_record
from kneematch.knee.decision import Area, Decision
from kneematch.run.database import Run
from kneematch.run.outputs.agreement import Agreement, cohens_kappa, reader_agreement

MARGINS = {"plateau_medial": (10.0, 50.0), "plateau_lateral": (60.0, 50.0)}
KNEE = make_detection(
    "left", (35.0, 50.0), (70.0, 70.0), landmarks=MARGINS, mm_per_px=0.5, needs_review=True
)
PLACE = Area.from_detection(KNEE)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Six films with a knee each, on which nothing was decided."""
    run = Run(tmp_path, create=True)
    for number in run.add([f"{k}.dcm" for k in range(6)]):
        run.save([make_record(number, KNEE)])
    return run


def decide(run: Run, film: int, reader: str, state: str, grade: str = "") -> None:
    run.decide(film, "left", Decision(state, PLACE, reader=reader, grade=grade))


def correct(run: Run, film: int, reader: str, x: float) -> None:
    """Move the medial margin along the plateau."""
    moved = MARGINS | {"plateau_medial": (10.0 + x, 50.0)}
    run.decide(film, "left", Decision("corrected", PLACE, landmarks=moved, reader=reader))


def found(run: Run, subject: str) -> Agreement:
    (only,) = (each for each in reader_agreement(run) if each.subject == subject)
    return only


def test_cohens_kappa_of_the_textbook_example() -> None:
    """Two readers say yes or no: 20 times both yes, 15 both no, 5 and 10 times they differ."""
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    assert cohens_kappa(pairs) == pytest.approx(0.4)
    assert cohens_kappa(pairs[:20]) is None  # by chance, they would always agree, too


def test_cohens_kappa_with_quadratic_weights_counts_the_distance_of_grades() -> None:
    near = [("0", "0"), ("1", "2"), ("4", "4")]
    far = [("0", "4"), ("1", "1"), ("4", "4")]
    # Observed 1 and 16; by chance, of all nine pairs of grades, 51 / 3 and 60 / 3.
    assert cohens_kappa(near, quadratic=True) == pytest.approx(1 - 1 / 17)
    assert cohens_kappa(far, quadratic=True) == pytest.approx(1 - 16 / 20)


def test_reader_agreement_compares_the_last_decision_of_each_reader(run: Run) -> None:
    decide(run, 1, "A", "rejected")
    for film, (one, other) in enumerate([("accepted",) * 2, ("rejected",) * 2] * 2, start=1):
        decide(run, film, "A", one, grade="2")
        decide(run, film, "B", other, grade="3" if film == 1 else "2")
    decide(run, 5, "A", "accepted")  # only one reader saw it
    decide(run, 4, "", "accepted")  # who settles it has no name
    decide(run, 6, "A", "accepted")
    decide(run, 6, "B", "rejected")
    run.revoke("B")
    states, grades = reader_agreement(run)
    assert (states.readers, states.knees, states.same, states.kappa) == (("A", "B"), 4, 1.0, 1.0)
    assert (grades.subject, grades.knees, grades.same) == ("grade", 4, 0.75)


def test_reader_agreement_has_the_spread_of_corrections_in_mm_or_percent(run: Run) -> None:
    for film, (one, other) in enumerate([(3.0, 1.0), (-1.0, 1.0)], start=1):
        correct(run, film, "A", one)
        correct(run, film, "B", other)
    run.decide(3, "left", Decision("corrected", PLACE, laterality="L", reader="A"))
    correct(run, 3, "B", 5.0)  # the other one has changed the side only
    margins = found(run, "margins of the tibial plateau")
    # Differences of 2 and -2 pixels along the plateau, and none of the six other coordinates.
    assert (margins.knees, margins.unit) == (2, "mm")
    assert margins.sd == pytest.approx(0.5 * math.sqrt(8 / 7))
    for film in (1, 2):
        run.save([make_record(film, replace(KNEE, mm_per_px=None))])
    margins = found(run, "margins of the tibial plateau")
    assert margins.unit == "%"
    lengths = 50 - 3, 50 + 1  # those of the first reader
    expected = [100 * 2 / lengths[0], -100 * 2 / lengths[1]]
    mean = sum(expected) / 8
    squares = sum((value - mean) ** 2 for value in expected) + 6 * mean**2
    assert margins.sd == pytest.approx(math.sqrt(squares / 7))


def test_reader_agreement_leaves_out_decisions_about_areas_that_moved(run: Run) -> None:
    decide(run, 1, "A", "accepted")
    decide(run, 1, "B", "accepted")
    assert found(run, "accepted, corrected or rejected").knees == 1
    run.save([make_record(1, make_detection("left", (90.0, 50.0), (70.0, 70.0)))])
    assert reader_agreement(run) == []
