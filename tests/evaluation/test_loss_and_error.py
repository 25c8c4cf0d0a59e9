"""Loss and error: where the answer is known, the tables tell it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kneematch.detection.detection import Detection
from kneematch.evaluation.ground_truth import KnownKnee, Truth
from kneematch.evaluation.loss_and_error import loss_and_error
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.tables import Cell, Table, to_latex, to_markdown

WIDTH = 200.0
KNEES = 30
TRUTH = Truth(
    Path("labels.csv"),
    tuple(KnownKnee(str(k), "left", (0.0, 0.0), (WIDTH, 0.0), "other") for k in range(KNEES)),
    0,
)


def trial(method: str, loss: Sequence[float], percent: Sequence[float]) -> Trial:
    """Areas of the given losses, each so many per cent of the plateau's width too far down."""
    found = {}
    for k, (one, error) in enumerate(zip(loss, percent, strict=True)):
        y = error / 100 * WIDTH
        found[f"{k}.png"] = (
            Detection(
                side="left",
                laterality="R",
                energy=0.3,
                loss=float(one),
                polarity="positive",
                method=method,
                corners=np.zeros((4, 2)),
                centre=(0.0, 0.0),
                width_px=1.0,
                height_px=1.0,
                rotation_deg=0.0,
                landmarks={"a": (0.0, y), "b": (WIDTH, y)},
            ),
        )
    return Trial(method, found)


def rows(table: Table) -> list[dict[str, Cell]]:
    titles = [column.title for column in table.columns]
    assert len(set(titles)) == len(titles)
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


RISING = np.arange(1, KNEES + 1) / 100


def test_every_knee_that_was_found_is_there_with_its_method() -> None:
    one = trial("search", RISING, 100 * RISING)
    two = Trial("neural", dict(list(one.found.items())[:4]), failed={"5.png": "cut"})
    data = loss_and_error([one, two], TRUTH)
    assert data.methods == ["search", "neural"]
    assert (data.method == "search").sum() == KNEES
    assert (data.method == "neural").sum() == 4
    assert data.margin_percent == pytest.approx(100 * data.loss)
    assert set(data.source.tolist()) == {"other"}
    assert data.iou[0] > data.iou[-1] > 0


@pytest.mark.parametrize(("error", "expected"), [(RISING**2, 1.0), (1 - RISING, -1.0)])
def test_ranks_that_rise_or_fall_together_correlate_fully(
    error: Sequence[float], expected: float
) -> None:
    correlation, *_ = loss_and_error([trial("search", RISING, error)], TRUTH).tables()
    (row,) = rows(correlation)
    assert row["rank correlation"] == pytest.approx(expected)
    assert row["p"] < 1e-6  # type: ignore[operator]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_tells_nothing_has_no_correlation(count: int) -> None:
    tables = loss_and_error([trial("search", [0.1] * count, RISING[:count])], TRUTH).tables()
    assert rows(tables[0])[0] == {
        "method": "search",
        "knees": count,
        "rank correlation": None,
        "p": None,
    }
    assert len(tables[1].rows) == count  # fifths that are not empty


def test_fifths_go_from_the_lowest_loss_to_the_highest() -> None:
    shuffled = np.random.default_rng(0).permutation(RISING)
    _, fifths, _ = loss_and_error([trial("search", shuffled, 10 * shuffled)], TRUTH).tables()
    table = rows(fifths)
    assert [row["knees"] for row in table] == [6] * 5
    assert table[0]["mean loss"] == pytest.approx(RISING[:6].mean())
    assert table[4]["margins, mean %"] == pytest.approx(10 * RISING[-6:].mean())
    assert table[4]["margins, median %"] == pytest.approx(10 * np.median(RISING[-6:]))
    assert table[0]["mean IoU"] > table[4]["mean IoU"]  # type: ignore[operator]


def test_the_lower_loss_is_told_to_be_closer_where_it_is() -> None:
    """Losses that differ little are wrong, those that differ much are right."""
    difference = RISING
    better = np.where(np.arange(KNEES) < 10, 1.0, -1.0)
    one = trial("search", 0.5 - difference, 10 + better)
    two = trial("neural", np.full(KNEES, 0.5), np.full(KNEES, 10.0))
    for trials in ([one, two], [two, one]):
        table = rows(loss_and_error(trials, TRUTH).tables()[2])
        assert [row["difference of loss"] for row in table] == ["small", "middle", "large", "all"]
        assert [row["share"] for row in table] == [0, 1, 1, pytest.approx(2 / 3)]
        assert [row["knees"] for row in table] == [10, 10, 10, 30]
        assert table[0]["p"] == pytest.approx(2 / 2**10)
        assert table[3]["p"] == pytest.approx(0.0987, abs=1e-4)
        assert table[2]["mean difference"] == pytest.approx(difference[20:].mean())


def test_only_knees_that_both_methods_found_and_tell_apart_are_compared() -> None:
    one = trial("search", [0.1, 0.2, 0.3], [1, 2, 3])
    two = trial("neural", [0.1, 0.3], [2, 3])
    table = rows(loss_and_error([one, two], TRUTH).tables()[2])
    assert table[-1]["knees"] == 1
    same = loss_and_error([one, trial("copy", [0.1, 0.2, 0.3], [1, 2, 3])], TRUTH).tables()[2]
    assert same.rows == ()


def test_tables_can_be_written_even_of_nothing() -> None:
    data = loss_and_error([Trial("search", {}, failed={"0.png": "cut"})], TRUTH)
    for table in data.tables():
        assert not table.rows
        assert table.caption in to_markdown(table)
        assert table.name in to_latex(table)
