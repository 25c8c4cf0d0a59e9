"""The tables of losses, from trials with known losses."""

import numpy as np
import pytest

from kneematch.detection.detection import Detection
from kneematch.evaluation.losses import film_losses, loss_tables
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.tables import Table


def knee(side: str, loss: float) -> Detection:
    return Detection(
        side=side,
        laterality="R",
        energy=0.0,
        loss=loss,
        polarity="positive",
        method="search",
        corners=np.zeros((4, 2)),
        centre=(0.0, 0.0),
        width_px=1.0,
        height_px=1.0,
        rotation_deg=0.0,
    )


def trial(method: str, losses: list[float], ms: float | None = None) -> Trial:
    """Films 0, 1, ... of two knees, whose losses together are these."""
    found = {
        str(k): (knee("left", 0.25 * x), knee("right", 0.75 * x)) for k, x in enumerate(losses)
    }
    return Trial(method, found, ms)


def row(table: Table, *start: str) -> dict[str, object]:
    """The only row that begins so."""
    (found,) = (r for r in table.rows if r[: len(start)] == start)
    return dict(zip((column.title for column in table.columns), found, strict=True))


def test_the_loss_of_a_film_is_that_of_both_sides() -> None:
    one = Trial("search", {"a": (knee("left", 0.1), knee("right", 0.2)), "b": (knee("left", 9),)})
    assert film_losses(one) == {"a": pytest.approx(0.3)}  # b shows one knee


def test_a_row_has_the_mean_its_error_and_the_time() -> None:
    losses, _ = loss_tables([trial("sliding", [0.1, 0.3], 12.5), trial("neural", [0.1, 0.1])])
    found = row(losses, "sliding")
    assert found["films"] == 2
    assert found["left + right loss"] == pytest.approx(0.2)
    assert found["standard error"] == pytest.approx(0.1)
    assert found["ms a film"] == 12.5
    assert row(losses, "neural")["ms a film"] is None


def test_a_film_that_one_method_failed_on_counts_for_none() -> None:
    whole, part = trial("sliding", [0.1, 0.3, 0.9]), trial("neural", [0.1, 0.1])
    losses, pairs = loss_tables([whole, part])
    assert row(losses, "sliding")["left + right loss"] == pytest.approx(0.2)
    assert [r[2] for r in pairs.rows] == [2]


def test_pairs_are_compared_film_by_film() -> None:
    base = np.linspace(0.1, 0.9, 12)
    steps = np.linspace(0.01, 0.02, 12)
    trials = [
        trial("sliding", list(base + steps)),
        trial("neural", list(base)),
        trial("search", list(base)),
    ]
    _, pairs = loss_tables(trials)
    assert len(pairs.rows) == 3
    found = row(pairs, "sliding", "neural")
    assert found["difference"] == pytest.approx(0.015)
    assert found["p"] == pytest.approx(2 / 2**12)
    assert found["p, Holm"] == pytest.approx(3 * 2 / 2**12)
    assert row(pairs, "neural", "search")["p"] == 1


def test_the_grid_has_its_own_films_and_a_table_of_them() -> None:
    trials = [trial("sliding", [0.2, 0.4, 0.9, 0.9]), trial("grid", [0.1, 0.1])]
    losses, pairs, few = loss_tables(trials)
    assert row(losses, "sliding")["films"] == 4
    assert row(losses, "grid")["films"] == 2
    assert row(pairs, "sliding", "grid")["films"] == 2
    assert few.name == "losses_grid"
    assert row(few, "sliding")["left + right loss"] == pytest.approx(0.3)
    assert row(few, "grid")["left + right loss"] == pytest.approx(0.1)


def test_a_grid_on_all_films_needs_no_second_table() -> None:
    tables = loss_tables([trial("sliding", [0.2, 0.4]), trial("grid", [0.1, 0.1])])
    assert [table.name for table in tables] == ["losses", "pairs"]


def test_without_any_film_there_are_rows_without_numbers() -> None:
    losses, pairs = loss_tables([Trial("sliding", {}), Trial("neural", {})])
    assert row(losses, "neural")["left + right loss"] is None
    assert row(pairs, "sliding", "neural")["p"] is None
    assert losses.shown()[0] == ["sliding", "0", "-", "-", "-"]
