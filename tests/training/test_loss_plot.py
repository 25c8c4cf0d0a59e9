"""Tests of metrics.csv and of the plot of the losses."""

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from kneematch.errors import SettingsError
from kneematch.training.loss_plot import COLOURS, Epoch, plot_losses, read_metrics, write_metrics

SIZE = (1200, 640)  # (width, height) of the picture
EPOCHS = [
    Epoch("coarse", 0, 1, 1.25, 3.5),
    Epoch("coarse", 0, 2, 0.5, 7.0),
    Epoch("coarse", 1, 1, 1.0, 9.25),
    Epoch("fine", 0, 1, 0.123456, 11.0),
    Epoch("fine", 0, 2, 0.1, 12.0),
]


def plotted(epochs: list[Epoch], folder: Path) -> np.ndarray:
    """Return the plot as (height, width, 3); it is the only file in the folder."""
    folder.mkdir(exist_ok=True)
    plot_losses(epochs, folder / "curves.png")
    assert [entry.name for entry in folder.iterdir()] == ["curves.png"]
    with Image.open(folder / "curves.png") as picture:
        assert picture.size == SIZE
        return np.asarray(picture.convert("RGB"))


def pixels(picture: np.ndarray, phase: str) -> np.ndarray:
    """Return the (row, column) of every pixel in the colour of a phase."""
    colour = np.rint(255 * np.array(to_rgb(COLOURS[phase])))
    return np.argwhere((np.abs(picture - colour) <= 1).all(-1))


def test_read_metrics_returns_what_was_written(tmp_path: Path) -> None:
    write_metrics(EPOCHS, tmp_path / "metrics.csv")
    assert read_metrics(tmp_path / "metrics.csv") == EPOCHS
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "phase,round,epoch,loss,seconds"
    assert lines[4] == "fine,0,1,0.123456,11.00"
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.csv"]


def test_read_metrics_of_no_file_and_of_no_rows_is_empty(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.csv") == []
    write_metrics([], tmp_path / "metrics.csv")
    assert read_metrics(tmp_path / "metrics.csv") == []


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "phase,round,epoch,loss,seconds\ncoarse,x,1,1,1\n"])
def test_read_metrics_refuses_another_table_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(SettingsError, match=r"metrics\.csv: malformed .*delete the file"):
        read_metrics(tmp_path / "metrics.csv")


def test_plot_losses_shows_each_phase_in_its_colour(tmp_path: Path) -> None:
    coarse, both = plotted(EPOCHS[:3], tmp_path / "a"), plotted(EPOCHS, tmp_path / "b")
    assert len(pixels(coarse, "coarse")) > 200
    assert len(pixels(coarse, "fine")) == 0
    assert len(pixels(both, "fine")) > 200


def test_plot_losses_draws_a_lower_loss_lower_and_a_later_one_further_right(
    tmp_path: Path,
) -> None:
    picture = plotted(EPOCHS, tmp_path / "a")[100:]  # without the legend
    coarse, fine = pixels(picture, "coarse").mean(0), pixels(picture, "fine").mean(0)
    assert fine[0] > coarse[0]
    assert fine[1] > coarse[1]


def test_plot_losses_does_not_connect_rounds(tmp_path: Path) -> None:
    connected = [Epoch("fine", 0, 1, 0.1, 0), Epoch("fine", 0, 2, 1.0, 0)]
    apart = [connected[0], Epoch("fine", 1, 1, 1.0, 0)]
    line = pixels(plotted(connected, tmp_path / "a"), "fine")
    points = pixels(plotted(apart, tmp_path / "b"), "fine")
    assert len(points) < 0.3 * len(line)


@pytest.mark.parametrize("losses", [[], [0.5], [0.0, 0.0], [math.nan, 0.3], [math.inf], [1e-9]])
def test_plot_losses_accepts_any_losses(losses: list[float], tmp_path: Path) -> None:
    plotted([Epoch("coarse", 0, k, loss, 0.0) for k, loss in enumerate(losses)], tmp_path / "a")
