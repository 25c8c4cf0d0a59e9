"""What a report keeps of a run: all counts, the worst films, the first failures."""

from collections.abc import Iterator
from dataclasses import replace

from kneematch.detection.detection import Detection
from kneematch.export.summary import BINS, survey

Knees = tuple[Detection, Detection]


def films(knees: Knees, losses: list[tuple[float, float]]) -> Iterator[tuple[str, Detection]]:
    for number, pair in enumerate(losses):
        for knee, loss in zip(knees, pair, strict=True):
            yield f"{number}.dcm", replace(knee, loss=loss)


def test_every_knee_is_counted_by_its_loss(knees: Knees) -> None:
    found = survey(films(knees, [(0.0, 0.1024), (0.1025, 1.0), (-0.01, 1.7)]), [])
    assert sum(found.good) == 6
    assert len(found.good) == len(found.flagged) == BINS
    assert (found.good[0], found.good[20], found.good[-1]) == (2, 2, 2)
    assert sum(found.flagged) == 0


def test_the_worst_knee_of_a_film_ranks_it(knees: Knees) -> None:
    found = survey(films(knees, [(0.1, 0.2), (0.5, 0.0), (0.3, 0.3), (0.0, 0.0)]), [], most_films=3)
    assert [worst.film for worst in found.worst] == ["1.dcm", "2.dcm", "0.dcm"]
    assert [knee.loss for knee in found.worst[0].detections] == [0.5, 0.0]


def test_films_to_review_come_before_all_others(knees: Knees) -> None:
    rows = list(films(knees, [(0.9, 0.9), (0.1, 0.1), (0.2, 0.2)]))
    rows[2] = rows[2][0], replace(rows[2][1], review="yes", reason="cut by the edge; metal")
    rows[3] = rows[3][0], replace(rows[3][1], review="yes", reason="metal")
    found = survey(rows, [])
    assert [worst.film for worst in found.worst] == ["1.dcm", "0.dcm", "2.dcm"]
    assert found.reasons == (("metal", 2), ("cut by the edge", 1))
    assert (sum(found.good), sum(found.flagged)) == (4, 2)


def test_films_that_are_equally_bad_stay_in_order(knees: Knees) -> None:
    found = survey(films(knees, [(0.1, 0.1)] * 9), [], most_films=4)
    assert [worst.film for worst in found.worst] == ["0.dcm", "1.dcm", "2.dcm", "3.dcm"]


def test_a_flag_without_a_reason_is_counted_too(knees: Knees) -> None:
    found = survey([("a", replace(knees[0], review="yes"))], [])
    assert found.reasons == (("not stated", 1),)


def test_failures_are_counted_past_those_that_are_kept() -> None:
    found = survey([], ((f"{k}.dcm", "why") for k in range(7)), most_failures=3)
    assert (found.failed, len(found.failures), found.worst) == (7, 3, ())
