"""The rows of the review page: which are shown, and in which order."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kneematch.knee.decision import Area, Decision
from kneematch.knee.quality import DISAGREE
from kneematch.run.database import Run
from kneematch.web.knee_rows import (
    RowQuery,
    add_name_filter,
    count_states,
    read_rows,
    row_order,
    rows_of_film,
)

ALL = list(range(1, 9))
PLACE = Area(100.0, 100.0, 80.0, 0.0)


@pytest.fixture
def run(run_folder: Path) -> Iterator[Run]:
    with Run(run_folder, exclusive=False) as run:
        add_name_filter(run)
        yield run


def losses(run: Run, order: list[int]) -> list[float]:
    rows = read_rows(run, order)
    return [row.found.loss for key in order if (row := rows[key]).found is not None]


def decide(run: Run, key: int, state: str, **more: str) -> None:
    row = read_rows(run, [key])[key]
    assert row.found is not None
    area = Area.from_detection(row.found)
    run.decide(row.film, row.side, Decision(state, area, **more))


def remove_knees(run: Run, film: int, left: int, status: str = "ok") -> None:
    """Leave the first knees of a film, as if the others had not been found."""
    record = run.record(film)
    knees = record.found[:left]
    run.save([replace(record, found=knees, knees=knees, status=status)])


def test_row_order_puts_doubtful_knees_first_and_then_high_losses(run: Run) -> None:
    order = row_order(run, RowQuery())
    assert set(order[:2]) == {4, 7}
    assert sorted(order) == ALL
    for part in (order[:2], order[2:]):
        assert losses(run, part) == sorted(losses(run, part), reverse=True)


@pytest.mark.parametrize("sort", ["doubtful", "film"])
def test_row_order_is_that_of_an_index(run: Run, sort: str) -> None:
    plans: list[str] = []
    run.sql.set_trace_callback(plans.append)
    row_order(run, RowQuery(sort=sort, shown="undecided"))  # type: ignore[arg-type]
    run.sql.set_trace_callback(None)
    (plan,) = run.query(f"EXPLAIN QUERY PLAN {plans[0]}")
    assert "USING COVERING INDEX" in plan[-1]


def test_row_order_filters_by_reason_side_and_film(run: Run) -> None:
    assert row_order(run, RowQuery(reason=DISAGREE)) == [4]
    assert row_order(run, RowQuery(side="unknown")) == []
    decide(run, 3, "corrected", laterality="L")
    assert set(row_order(run, RowQuery(side="L"))) == {2, 3, 4, 6, 8}
    run.revoke()
    run.sql.execute(
        "UPDATE films SET path = CAST(? AS TEXT) WHERE id = 3", (b"\xff/GR\xc3\x96SSE.dcm",)
    )
    assert row_order(run, RowQuery(film="grösse", sort="film")) == [5, 6]


def test_row_order_filters_by_state(run: Run) -> None:
    decide(run, 2, "accepted")
    decide(run, 3, "rejected")
    decide(run, 6, "corrected")
    assert set(row_order(run, RowQuery(shown="undecided"))) == {1, 4, 5, 7, 8}
    assert set(row_order(run, RowQuery(shown="decided"))) == {2, 3, 6}
    assert row_order(run, RowQuery(shown="rejected")) == [3]
    assert set(row_order(run, RowQuery(shown="to_review"))) == {4, 7}
    assert row_order(run, RowQuery(shown="unmeasured", sort="film")) == ALL  # without --measure
    counts = {"undecided": 5, "accepted": 1, "rejected": 1, "corrected": 1, "to_review": 2}
    assert count_states(run) == counts | {"rows": 8}


def test_row_order_has_added_knees_and_films_without_one(run: Run) -> None:
    remove_knees(run, 1, left=1)
    remove_knees(run, 2, left=0, status="no_knee")
    assert row_order(run, RowQuery(shown="no_knee")) == [-2]
    assert row_order(run, RowQuery(shown="no_knee", film="film-0")) == []
    assert read_rows(run, [-2, -1, 99])[-2].state == "no_knee"
    added = Decision("corrected", PLACE, height_px=90.0)
    key = run.decide(2, "right", added)
    assert key == 4
    assert row_order(run, RowQuery())[0] == key
    assert row_order(run, RowQuery(shown="no_knee")) == []
    (row,) = rows_of_film(run, 2)
    assert row.knee is not None
    assert (row.knee.centre, count_states(run)["rows"]) == ((100, 100), 6)
    run.decide(2, "right", Decision("rejected", PLACE))
    assert rows_of_film(run, 2) == []
    assert count_states(run)["rows"] == 5


def test_read_rows_has_the_newest_decision_of_any_reader(run: Run) -> None:
    decide(run, 1, "accepted", reader="A")
    decide(run, 1, "rejected", reader="B")
    assert row_order(run, RowQuery(shown="rejected")) == [1]
    run.revoke()
    row = read_rows(run, [1])[1]
    assert (row.state, row.decision and row.decision.reader) == ("accepted", "A")
