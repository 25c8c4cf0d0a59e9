"""The table of a reproduction; the rest is tested in test_reproduce_oai_most.py."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from detections import make_detection
from kneematch.evaluation.method_runs import MethodRun
from kneematch.knee.detection import Detection
from reproduce_config import ReproduceConfig
from reproduce_oai_most import reproduction_table
from study_films import MOST, OAI

CONFIG = ReproduceConfig(template=Path("t.json"))


def knee(side: str, loss: float) -> Detection:
    return make_detection(side, loss=loss)


def run(method: str, losses: Sequence[float]) -> MethodRun:
    """Films whose sides have a loss and a third of it."""
    found = {
        f"film-{k}": (knee("left", loss), knee("right", loss / 3)) for k, loss in enumerate(losses)
    }
    return MethodRun(method, found)


def test_reproduction_table_has_the_mean_of_left_and_right_beside_the_printed_loss() -> None:
    runs = [run("sliding", [0.3, 0.6]), run("search", [0.15, 0.15])]
    table = reproduction_table(OAI, CONFIG, runs)
    sliding, search = table.rows
    assert sliding[0] == "template matching"
    assert sliding[1:] == pytest.approx((0.221, 0.6, 0.2, 0.379))
    assert search[1] is None
    assert search[2:4] == pytest.approx((0.2, 0.0))
    assert search[4] is None
    assert table.shown()[0][1:] == ["0.221", "0.600", "0.2000", "0.379"]
    assert "over 2 films of OAI, beside the paper's Table 1 (400 films)" in table.caption


def test_reproduction_table_uses_films_that_all_methods_have() -> None:
    runs = [run("sliding", [0.3, 0.6, 9.0]), run("neural", [0.3, 0.6])]
    (_, _, sliding, *_), (_, _, neural, *_) = reproduction_table(OAI, CONFIG, runs).rows
    assert sliding == neural


def test_reproduction_table_without_films_has_no_difference() -> None:
    (row,) = reproduction_table(OAI, CONFIG, [MethodRun("neural", {})]).rows
    assert row == ("neural method", 0.159, None, None, None)


def test_reproduction_table_of_most_names_its_table_and_the_given_model() -> None:
    config = ReproduceConfig(model=Path("m.safetensors"))
    table = reproduction_table(MOST, config, [run("neural", [0.3])])
    assert "Table 2" in table.caption
    assert "the given model" in table.caption


def test_reproduction_table_counts_the_grid_search_on_its_own_films() -> None:
    runs = [run("neural", [0.3, 0.6]), run("grid", [0.15])]
    table = reproduction_table(OAI, CONFIG, runs)
    (_, _, neural, *_), (title, printed, grid, *_) = table.rows
    assert neural == pytest.approx(0.6)
    assert (title, printed) == ("grid initialized search", None)
    assert grid == pytest.approx(0.2)
    assert "over 2 films" in table.caption
    assert "run on 1 of these films" in table.caption
