"""The table of a reproduction: printed beside found; the command's test has the rest."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kneematch.detection.detection import CORNERS, Detection
from kneematch.errors import SettingsError
from kneematch.evaluation.datasets import MOST, OAI
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.reproduce import Settings, reproduction_table
from kneematch.evaluation.run import Evaluation
from kneematch.training.config import TrainConfig

SETTINGS = Settings(OAI, Path("root"), Path("out"), TrainConfig("paper"), template=Path("t.json"))


def knee(side: str, loss: float) -> Detection:
    corners = np.array(CORNERS)
    return Detection(side, "R", 0.3, loss, "positive", "neural", corners, (0.0, 0.0), 2, 2, 0.0)


def trial(method: str, losses: Sequence[float]) -> Trial:
    """Films whose sides have a loss and a third of it."""
    found = {
        f"film-{k}": (knee("left", loss), knee("right", loss / 3)) for k, loss in enumerate(losses)
    }
    return Trial(method, found)


def evaluation(*trials: Trial) -> Evaluation:
    return Evaluation(Path("out"), trials, (), ())


def test_the_table_tells_the_mean_of_left_and_right_beside_what_was_printed() -> None:
    done = evaluation(trial("sliding", [0.3, 0.6]), trial("search", [0.15, 0.15]))
    table = reproduction_table(SETTINGS, done)
    sliding, search = table.rows
    assert sliding[0] == "template matching"
    assert sliding[1:] == pytest.approx((0.221, 0.6, 0.2, 0.379))
    assert search[1] is None
    assert search[2:4] == pytest.approx((0.2, 0.0))
    assert search[4] is None
    assert table.shown()[0][1:] == ["0.221", "0.600", "0.2000", "0.379"]
    assert "over 2 films of OAI, beside the paper's Table 1 (400 films)" in table.caption


def test_only_films_that_all_methods_have_count() -> None:
    done = evaluation(trial("sliding", [0.3, 0.6, 9.0]), trial("neural", [0.3, 0.6]))
    (_, _, sliding, *_), (_, _, neural, *_) = reproduction_table(SETTINGS, done).rows
    assert sliding == neural


def test_without_films_there_is_nothing_to_compare() -> None:
    (row,) = reproduction_table(SETTINGS, evaluation(Trial("neural", {}))).rows
    assert row == ("neural method", 0.159, None, None, None)


def test_most_needs_a_model_and_its_caption_says_so() -> None:
    with pytest.raises(SettingsError, match="MOST without a model"):
        replace(SETTINGS, study=MOST)
    settings = replace(SETTINGS, study=MOST, template=None, model=Path("m.safetensors"))
    table = reproduction_table(settings, evaluation(trial("neural", [0.3])))
    assert "Table 2" in table.caption
    assert "the model that was given" in table.caption
