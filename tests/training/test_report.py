"""Tests of metrics.csv, of the plot of the losses, of the preview, and of the comparison."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from kneematch.errors import SettingsError
from kneematch.films.annotation import Annotation, annotate
from kneematch.films.display import LEFT_COLOUR, RIGHT_COLOUR
from kneematch.knee.knee_images import film_tensor
from kneematch.models.model_file import load_model, save_model, shipped_model
from kneematch.paper.network import PoseNetwork
from kneematch.paper.split import split
from kneematch.training.config import DEFAULT, PAPER
from kneematch.training.distributed import Group
from kneematch.training.phase import predict_poses
from kneematch.training.report import (
    COLOURS,
    GAP_PX,
    HEIGHT_PX,
    Epoch,
    compare_with_built_in,
    draw_poses,
    draw_preview,
    plot_losses,
    read_metrics,
    write_metrics,
)
from kneematch.training.two_phases import Task, coarse_phase, fine_phase
from kneephantoms import phantom
from kneephantoms.files import write_dicom
from phantom_films import radiograph

SIZE = (1200, 640)  # (width, height) of the picture
FILM_SIZE = (480, 600)
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


WIDTH = 250  # of a half of 800 x 500 that is 400 high


def picture(theta: torch.Tensor, count: int = 2) -> np.ndarray:
    ramp = torch.linspace(0, 1, 800)[:, None].expand(count, 2, 800, 500)
    return np.asarray(draw_poses(ramp, theta.expand(count, 2, 4), 0.8))


def test_draw_poses_puts_halves_side_by_side_each_with_its_own_colour() -> None:
    sheet = picture(torch.tensor([0.5, 0.0, 0.0, 0.0]))
    assert sheet.shape == (HEIGHT_PX, 4 * WIDTH + 3 * GAP_PX, 3)
    for k, colour in enumerate((LEFT_COLOUR, RIGHT_COLOUR) * 2):
        left = k * (WIDTH + GAP_PX)
        own = (sheet[:, left : left + WIDTH] == colour).all(-1)
        assert own.sum() > 200
        assert (sheet == colour).all(-1).sum() > own.sum()  # the other film's, too
    assert not sheet[:, WIDTH : WIDTH + GAP_PX].any()


def test_draw_poses_draws_a_pose_where_it_lies() -> None:
    sheet = picture(torch.tensor([0.4, 0.2, -0.3, 0.0]), count=1)
    rows, columns = np.nonzero((sheet[:, :WIDTH] == LEFT_COLOUR).all(-1))
    # Centre (0.2, -0.3), half as wide as 0.4 and as high as 0.4 * 0.8 / 1.6, of [-1, 1].
    assert (columns.min(), columns.max()) == pytest.approx((100, 200), abs=2)
    assert (rows.min(), rows.max()) == pytest.approx((100, 180), abs=2)


def test_draw_poses_draws_a_rotated_pose_rotated() -> None:
    upright, turned = (
        np.nonzero((picture(torch.tensor([0.4, 0, 0, angle]), 1)[:, :WIDTH] == LEFT_COLOUR).all(-1))
        for angle in (0.0, 0.13)
    )
    assert np.ptp(turned[0]) > np.ptp(upright[0]) + 5


def test_draw_poses_accepts_a_pose_past_the_edge_and_a_black_film() -> None:
    far = torch.tensor([1.4, 0.9, -0.9, 0.1]).expand(1, 2, 4)
    assert draw_poses(torch.zeros(1, 2, 800, 500), far, 1.0).size == (2 * WIDTH + GAP_PX, HEIGHT_PX)


@pytest.mark.parametrize("phase", ["coarse", "fine"])
@pytest.mark.parametrize("recipe", [DEFAULT, PAPER], ids=["default", "paper"])
def test_draw_preview_shows_the_first_films_with_the_poses_predicted_on_all(
    phantoms: Any, small_network: Callable, phase: str, recipe: Any
) -> None:
    labels = None if recipe.minimise_energy else phantoms.truth
    task = Task(phantoms.films, phantoms.templates, recipe, labels)
    networks = small_network(0), small_network(1)
    if phase == "coarse":
        (data, _), network = coarse_phase(task), networks[0]
    else:
        (data, _), network = fine_phase(task, networks[0], Group()), networks[1]
    theta = predict_poses(network, data, Group())[:4]
    aspect = getattr(phantoms.templates, phase).aspect
    wanted = np.asarray(draw_poses(phantoms.films.pixels[:4], theta, aspect), dtype=float)
    found = np.asarray(draw_preview(task, networks, phase), dtype=float)
    assert found.shape == wanted.shape
    assert (np.abs(found - wanted).max(-1) > 40).mean() < 0.001  # a line may round to a neighbour


def drawn_on(folder: Path, seed: int) -> Annotation:
    made = phantom(seed, size=FILM_SIZE)
    path = folder / "film.dcm"
    write_dicom(path, made.pixels, mm_per_px=None, laterality="B", bits=16)
    knee = made.knees[1]
    return annotate(path, knee.side, knee.plateau_left, knee.plateau_right)


def test_compare_with_built_in_tells_an_untrained_model_from_a_good_one(tmp_path: Path) -> None:
    drawn = drawn_on(tmp_path, 22)
    films = [radiograph(phantom(seed, size=FILM_SIZE)) for seed in (1, 2, 5, 22)]
    halves = torch.stack([split(film_tensor(film)).pixels for film in films])
    good = load_model(shipped_model())
    torch.manual_seed(0)
    bad = replace(good, coarse=PoseNetwork().state_dict(), fine=PoseNetwork().state_dict())
    save_model(tmp_path / "bad.safetensors", bad)
    loss, _ = compare_with_built_in(tmp_path / "bad.safetensors", drawn, halves)
    assert loss.worse
    assert loss.trained > 2 * loss.built_in
    same, heights = compare_with_built_in(shipped_model(), drawn, halves)
    assert not same.worse
    assert not heights.worse


def test_compare_with_built_in_says_nothing_where_it_sees_no_knee(tmp_path: Path) -> None:
    drawn = drawn_on(tmp_path, 22)
    noise = torch.rand(FILM_SIZE, generator=torch.Generator().manual_seed(0)).numpy()
    write_dicom(drawn.film, noise, mm_per_px=None, laterality="B", bits=16)
    halves = split(film_tensor(radiograph(phantom(1, size=FILM_SIZE)))).pixels[None]
    assert compare_with_built_in(shipped_model(), drawn, halves) == []
