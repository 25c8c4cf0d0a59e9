"""The losses of a training: rows that come back, and a picture of them."""

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kneematch.training.loss_plot import (
    COLOURS,
    PAPER,
    SIZE,
    Epoch,
    draw_curves,
    read_metrics,
    write_metrics,
)

EPOCHS = [
    Epoch("coarse", 0, 1, 1.25, 3.5),
    Epoch("coarse", 0, 2, 0.5, 7.0),
    Epoch("coarse", 1, 1, 1.0, 9.25),
    Epoch("fine", 0, 1, 0.123456, 11.0),
    Epoch("fine", 0, 2, 0.1, 12.0),
]


def pixels(picture: Image.Image, colour: tuple[int, int, int]) -> int:
    """How many there are of a colour."""
    return int((np.asarray(picture) == colour).all(-1).sum())


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_metrics(EPOCHS, tmp_path / "metrics.csv")
    assert read_metrics(tmp_path / "metrics.csv") == EPOCHS
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "phase,round,epoch,loss,seconds"
    assert lines[4] == "fine,0,1,0.123456,11.00"
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_file_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.csv") == []
    write_metrics([], tmp_path / "metrics.csv")
    assert read_metrics(tmp_path / "metrics.csv") == []


def test_a_picture_shows_each_phase_in_its_colour() -> None:
    coarse, both = draw_curves(EPOCHS[:3]), draw_curves(EPOCHS)
    assert coarse.size == both.size == SIZE
    assert coarse.mode == "RGB"
    assert both.getpixel((2, 2)) == PAPER
    assert pixels(coarse, COLOURS["coarse"]) > 200
    assert pixels(coarse, COLOURS["fine"]) == 0
    assert pixels(both, COLOURS["fine"]) > 200


def test_a_lower_loss_is_drawn_lower_and_a_later_one_further_right() -> None:
    picture = np.asarray(draw_curves([Epoch("x", 0, 1, 1.0, 0), Epoch("fine", 0, 1, 0.5, 0)]))
    rows, columns = np.nonzero((picture[60:] == COLOURS["fine"]).all(-1))  # below the legend
    assert 60 + rows.mean() == pytest.approx((50 + 640 - 70) / 2, abs=2)  # half of the height
    assert columns.mean() == pytest.approx(1200 - 40, abs=2)


def test_rounds_are_not_joined_by_a_line() -> None:
    joined = [Epoch("fine", 0, 1, 0.1, 0), Epoch("fine", 0, 2, 1.0, 0)]
    apart = [joined[0], Epoch("fine", 1, 1, 1.0, 0)]
    colour = COLOURS["fine"]
    assert pixels(draw_curves(apart), colour) < 0.3 * pixels(draw_curves(joined), colour)


@pytest.mark.parametrize("losses", [[], [0.5], [0.0, 0.0], [math.nan, 0.3], [math.inf], [1e-9]])
def test_any_losses_can_be_drawn(losses: list[float]) -> None:
    epochs = [Epoch("coarse", 0, k, loss, 0.0) for k, loss in enumerate(losses)]
    assert draw_curves(epochs).size == SIZE
