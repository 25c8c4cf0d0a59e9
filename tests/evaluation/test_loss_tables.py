"""Tables of losses, from runs and scores whose answers are known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from kneematch.evaluation.loss_tables import (
    film_losses,
    found_knees,
    loss_error_tables,
    loss_tables,
    paired_differences,
)
from kneematch.evaluation.method_run import MethodRun

from detections import make_detection
from kneematch.evaluation.scores import KneeScore
from kneematch.evaluation.tables import Table, to_latex, to_markdown
from kneematch.films.csv_text import Cell

KNEES = 30
RISING = np.arange(1, KNEES + 1) / 100


def run(method: str, losses: list[float], ms: float | None = None) -> MethodRun:
    """Films 0, 1, ... of two knees, whose losses together are these."""
    found = {
        str(k): (make_detection("left", loss=0.25 * x), make_detection("right", loss=0.75 * x))
        for k, x in enumerate(losses)
    }
    return MethodRun(method, found, ms)


def row(table: Table, *start: str) -> dict[str, object]:
    """The only row that begins so."""
    (found,) = (r for r in table.rows if r[: len(start)] == start)
    return dict(zip((column.title for column in table.columns), found, strict=True))


def test_film_losses_add_both_sides_of_films_with_two_knees() -> None:
    both = make_detection("left", loss=0.1), make_detection("right", loss=0.2)
    found = {"a": both, "b": (make_detection("left", loss=9.0),)}
    assert film_losses(MethodRun("search", found)) == {"a": pytest.approx(0.3)}


def test_loss_tables_have_the_mean_its_error_and_the_time() -> None:
    losses, _ = loss_tables([run("sliding", [0.1, 0.3], 12.5), run("neural", [0.1, 0.1])])
    found = row(losses, "sliding")
    assert found["films"] == 2
    assert found["left + right loss"] == pytest.approx(0.2)
    assert found["standard error"] == pytest.approx(0.1)
    assert found["ms a film"] == 12.5
    assert row(losses, "neural")["ms a film"] is None


def test_loss_tables_leave_out_films_that_one_method_failed_on() -> None:
    losses, pairs = loss_tables([run("sliding", [0.1, 0.3, 0.9]), run("neural", [0.1, 0.1])])
    assert row(losses, "sliding")["left + right loss"] == pytest.approx(0.2)
    assert [r[2] for r in pairs.rows] == [2]


def test_loss_tables_compare_pairs_film_by_film() -> None:
    base = np.linspace(0.1, 0.9, 12)
    steps = np.linspace(0.01, 0.02, 12)
    runs = [
        run("sliding", list(base + steps)),
        run("neural", list(base)),
        run("search", list(base)),
    ]
    _, pairs = loss_tables(runs)
    assert len(pairs.rows) == 3
    found = row(pairs, "sliding", "neural")
    assert found["difference"] == pytest.approx(0.015)
    assert found["p"] == pytest.approx(2 / 2**12)
    assert found["p, Holm"] == pytest.approx(3 * 2 / 2**12)
    assert row(pairs, "neural", "search")["p"] == 1


def test_loss_tables_turn_the_sign_but_not_the_p_value_with_the_order_of_methods() -> None:
    rng = np.random.default_rng(0)
    one, two = run("one", list(rng.random(60))), run("two", list(rng.random(60) + 0.1))
    (a,), (b,) = loss_tables([one, two])[1].rows, loss_tables([two, one])[1].rows
    assert a[3] == pytest.approx(-b[3])  # type: ignore[operator]
    assert a[5] == pytest.approx(b[5])


def test_loss_tables_have_a_table_for_the_fewer_films_of_the_grid_search() -> None:
    runs = [run("sliding", [0.2, 0.4, 0.9, 0.9]), run("grid", [0.1, 0.1])]
    losses, pairs, few = loss_tables(runs)
    assert row(losses, "sliding")["films"] == 4
    assert row(losses, "grid")["films"] == 2
    assert row(pairs, "sliding", "grid")["films"] == 2
    assert few.name == "losses_grid"
    assert row(few, "sliding")["left + right loss"] == pytest.approx(0.3)
    assert row(few, "grid")["left + right loss"] == pytest.approx(0.1)


def test_loss_tables_need_no_further_table_for_a_grid_search_on_all_films() -> None:
    tables = loss_tables([run("sliding", [0.2, 0.4]), run("grid", [0.1, 0.1])])
    assert [table.name for table in tables] == ["losses", "pairs"]


def test_loss_tables_without_films_have_rows_without_numbers() -> None:
    losses, pairs = loss_tables([MethodRun("sliding", {}), MethodRun("neural", {})])
    assert row(losses, "neural")["left + right loss"] is None
    assert row(pairs, "sliding", "neural")["p"] is None
    assert losses.shown()[0] == ["sliding", "0", "-", "-", "-"]


def scored(loss: Sequence[float] | Any, percent: Sequence[float] | Any) -> list[KneeScore]:
    """Knees of films 0, 1, ... with these losses and margin errors."""
    return [
        KneeScore(
            str(k),
            "left",
            "any",
            missed=False,
            iou=1 - float(error) / 100,
            margin_percent=float(error),
            loss=float(value),
        )
        for k, (value, error) in enumerate(zip(loss, percent, strict=True))
    ]


def rows(table: Table) -> list[dict[str, Cell]]:
    titles = [column.title for column in table.columns]
    assert len(set(titles)) == len(titles)
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def test_found_knees_leave_out_missed_knees_and_methods_without_any() -> None:
    missed = KneeScore("9", "left", "any")
    found = found_knees({"search": [*scored([0.1], [1]), missed], "neural": [missed]})
    assert list(found) == ["search"]
    assert [knee.film for knee in found["search"]] == ["0"]


@pytest.mark.parametrize(("error", "expected"), [(RISING**2, 1.0), (1 - RISING, -1.0)])
def test_loss_error_tables_correlate_ranks_that_rise_or_fall_together(
    error: Sequence[float], expected: float
) -> None:
    correlation, *_ = loss_error_tables({"search": scored(RISING, error)})
    (found,) = rows(correlation)
    assert found["rank correlation"] == pytest.approx(expected)
    assert found["p"] < 1e-6  # type: ignore[operator]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_loss_error_tables_have_no_correlation_of_equal_losses(count: int) -> None:
    tables = loss_error_tables({"search": scored([0.1] * count, RISING[:count])})
    assert tables[0].rows == (("search", count, None, None),)
    assert len(tables[1].rows) == count  # fifths that are not empty


def test_loss_error_tables_sort_fifths_from_the_lowest_loss_to_the_highest() -> None:
    shuffled = np.random.default_rng(0).permutation(RISING)
    _, fifths, _ = loss_error_tables({"search": scored(shuffled, 10 * shuffled)})
    table = rows(fifths)
    assert [row["knees"] for row in table] == [6] * 5
    assert table[0]["mean loss"] == pytest.approx(RISING[:6].mean())
    assert table[4]["margins, mean %"] == pytest.approx(10 * RISING[-6:].mean())
    assert table[4]["margins, median %"] == pytest.approx(10 * np.median(RISING[-6:]))
    assert table[0]["mean IoU"] == pytest.approx(1 - RISING[:6].mean() / 10)


def test_loss_error_tables_tell_how_often_the_lower_loss_is_closer() -> None:
    """Here losses that differ little are wrong, those that differ much are right."""
    better = np.where(np.arange(KNEES) < 10, 1.0, -1.0)
    one = scored(0.5 - RISING, 10 + better)
    two = scored(np.full(KNEES, 0.5), np.full(KNEES, 10.0))
    for scores in ({"search": one, "neural": two}, {"neural": two, "search": one}):
        table = rows(loss_error_tables(scores)[2])
        assert [row["difference of loss"] for row in table] == ["small", "middle", "large", "all"]
        assert [row["share"] for row in table] == [0, 1, 1, pytest.approx(2 / 3)]
        assert [row["knees"] for row in table] == [10, 10, 10, 30]
        assert table[0]["p"] == pytest.approx(2 / 2**10)
        assert table[3]["p"] == pytest.approx(0.0987, abs=1e-4)
        assert table[2]["mean difference"] == pytest.approx(RISING[20:].mean())


def test_paired_differences_compare_only_knees_that_both_found_and_that_differ() -> None:
    one = scored([0.1, 0.2, 0.3, 0.4, 0.5], [1, 1, 1, 1, 1])
    two = scored([0.2, 0.1, 0.3, 0.1], [2, 2, 2, 1])  # the third losses, the fourth errors tie
    apart, closer = paired_differences(one, two)
    assert apart == pytest.approx([0.1, 0.1])
    assert closer.tolist() == [True, False]
    assert len(paired_differences(one, one)[0]) == 0
    other_side = [KneeScore("0", "right", "any", False, 1.0, 0.0, 3.0, loss=0.9)]
    assert len(paired_differences(one, other_side)[0]) == 0


def test_loss_error_tables_can_be_written_without_knees() -> None:
    for table in loss_error_tables({"search": [KneeScore("0", "left", "any")]}):
        assert not table.rows
        assert table.caption in to_markdown(table)
        assert table.name in to_latex(table)
