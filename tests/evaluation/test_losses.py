"""Tables of losses, from runs whose answers are known."""

import math

import numpy as np
import pytest

from detections import make_detection
from kneematch.evaluation.losses import (
    film_losses,
    holm,
    loss_tables,
    mean_and_error,
    wilcoxon_p,
)
from kneematch.evaluation.method_runs import MethodRun
from kneematch.evaluation.tables import Table


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
    return dict(zip(table.titles, found, strict=True))


def test_film_losses_add_both_sides_of_films_with_two_known_losses() -> None:
    both = make_detection("left", loss=0.1), make_detection("right", loss=0.2)
    unknown = make_detection("left", loss=math.nan), make_detection("right", loss=0.2)
    found = {"a": both, "b": (make_detection("left", loss=9.0),), "c": unknown}
    assert film_losses(MethodRun("search", found)) == {"a": pytest.approx(0.3)}


def test_loss_tables_have_the_mean_its_error_and_the_time() -> None:
    losses, _ = loss_tables([run("sliding", [0.1, 0.3], 12.5), run("neural", [0.1, 0.1])])
    found = row(losses, "sliding")
    assert found["films"] == 2
    assert found["left + right loss"] == pytest.approx(0.2)
    assert found["standard error"] == pytest.approx(0.1)
    assert found["ms a film"] == 12.5
    assert row(losses, "neural")["ms a film"] is None
    assert "computed alike" in losses.caption


def test_loss_tables_leave_out_films_that_one_method_failed_on() -> None:
    losses, pairs = loss_tables([run("sliding", [0.1, 0.3, 0.9]), run("neural", [0.1, 0.1])])
    assert row(losses, "sliding")["left + right loss"] == pytest.approx(0.2)
    assert [r[2] for r in pairs.rows] == [2]


def test_loss_tables_compare_pairs_film_by_film() -> None:
    base = np.linspace(0.1, 0.9, 12)
    steps = np.linspace(0.01, 0.02, 12)
    runs = [run("sliding", list(base + steps)), run("neural", list(base))]
    _, pairs = loss_tables([*runs, run("search", list(base))])
    assert len(pairs.rows) == 3
    found = row(pairs, "sliding", "neural")
    assert found["difference"] == pytest.approx(0.015)
    assert found["p"] == pytest.approx(2 / 2**12)
    assert found["p, Holm"] == pytest.approx(3 * 2 / 2**12)
    assert row(pairs, "neural", "search")["p"] == 1


def test_loss_tables_have_a_table_for_the_fewer_films_of_the_grid_search() -> None:
    runs = [run("sliding", [0.2, 0.4, 0.9, 0.9]), run("grid", [0.1, 0.1])]
    losses, pairs, few = loss_tables(runs)
    assert row(losses, "sliding")["films"] == 4
    assert row(losses, "grid")["films"] == 2
    assert row(pairs, "sliding", "grid")["films"] == 2
    assert few.name == "losses_grid"
    assert row(few, "sliding")["left + right loss"] == pytest.approx(0.3)
    assert len(loss_tables([run("sliding", [0.2, 0.4]), run("grid", [0.1, 0.1])])) == 2


def test_loss_tables_without_films_have_rows_without_numbers() -> None:
    losses, pairs = loss_tables([MethodRun("sliding", {}), MethodRun("neural", {})])
    assert row(pairs, "sliding", "neural")["p"] is None
    assert losses.shown()[0] == ["sliding", "0", "-", "-", "-"]


def test_mean_and_error_divides_the_deviation_by_the_root_of_the_count() -> None:
    assert mean_and_error([1.0, 2, 3, 4]) == (4, 2.5, pytest.approx(math.sqrt(5 / 3) / 2))
    assert mean_and_error([]) == (0, None, None)
    assert mean_and_error([3.0]) == (1, 3.0, None)


def test_wilcoxon_p_is_that_of_counting_all_signs_without_zeros() -> None:
    # Of the 2^6 signs of six differences, one is as one-sided as this, and one to the other side.
    assert wilcoxon_p([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) == pytest.approx(2 / 2**6)
    assert wilcoxon_p([0, 0.1, 0, 0.2, 0.3]) == wilcoxon_p([0.1, 0.2, 0.3])
    assert wilcoxon_p([0.0, 0.0]) == 1
    assert wilcoxon_p([]) is None


def test_holm_multiplies_the_smallest_most_and_keeps_the_order() -> None:
    # 0.005 * 4, 0.01 * 3, 0.03 * 2, then the largest so far.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([None, 0.02]) == [None, 0.02]
    assert holm([]) == []
