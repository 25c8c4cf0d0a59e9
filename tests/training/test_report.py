"""Tests of metrics.csv, of the preview, and of the comparison with the built-in model."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from kneematch.films.annotation import Annotation, annotate
from kneematch.films.pictures import LEFT_COLOUR, RIGHT_COLOUR
from kneematch.knee.knee_images import film_tensor
from kneematch.models.model_file import builtin_model, load_model, save_model
from kneematch.paper.network import PoseNetwork
from kneematch.paper.split import split
from kneematch.training.report import (
    Epoch,
    compare_with_built_in,
    plot_poses,
    write_metrics,
)
from kneephantoms import phantom
from kneephantoms.files import write_dicom
from phantom_films import radiograph

FILM_SIZE = (480, 600)
EPOCHS = [Epoch("coarse", 0, 1, 1.25, 3.5), Epoch("fine", 0, 1, 0.123456, 11.0)]


def read_picture(path: Path) -> np.ndarray:
    """Return a picture (height, width, 3), the only file in its folder."""
    assert list(path.parent.iterdir()) == [path]
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def pixels(picture: np.ndarray, colour: Any) -> np.ndarray:
    """Return the (row, column) of every pixel of a colour."""
    return np.argwhere((np.abs(picture - np.rint(colour)) <= 1).all(-1))


def test_write_metrics_writes_a_row_per_epoch(tmp_path: Path) -> None:
    write_metrics(EPOCHS, tmp_path / "metrics.csv")
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + len(EPOCHS)
    assert lines[0] == "phase,round,epoch,loss,seconds"
    assert lines[2] == "fine,0,1,0.123456,11.00"


def test_plot_poses_draws_each_pose_where_it_lies(tmp_path: Path) -> None:
    ramp = torch.linspace(0, 1, 800)[:, None].expand(2, 2, 800, 500)
    theta = torch.tensor([0.4, 0.2, -0.3, 0.0]).expand(2, 2, 4)
    plot_poses(ramp, theta, 0.8, tmp_path / "poses.png")
    picture = read_picture(tmp_path / "poses.png")
    assert picture.shape == (400, 1000, 3)
    for panel, colour in enumerate((LEFT_COLOUR, RIGHT_COLOUR) * 2):
        rows, columns = pixels(picture[:, panel * 250 : (panel + 1) * 250], colour).T
        # Centre (0.2, -0.3), half as wide as 0.4 and as high as 0.4 * 0.8 / 1.6, in [-1, 1].
        assert (columns.min(), columns.max()) == pytest.approx((100, 200), abs=6)
        assert (rows.min(), rows.max()) == pytest.approx((100, 180), abs=4)


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
    good = load_model(builtin_model())
    torch.manual_seed(0)
    bad = replace(good, coarse=PoseNetwork().state_dict(), fine=PoseNetwork().state_dict())
    save_model(tmp_path / "bad.safetensors", bad)
    loss, *_ = compare_with_built_in(tmp_path / "bad.safetensors", drawn, halves)
    assert loss.startswith("mean loss ")
    trained, built_in = re.findall(r"0\.\d+", loss)
    assert float(trained) > 2 * float(built_in)
    assert compare_with_built_in(builtin_model(), drawn, halves) == []


def test_compare_with_built_in_says_nothing_where_it_sees_no_knee(tmp_path: Path) -> None:
    drawn = drawn_on(tmp_path, 22)
    noise = torch.rand(FILM_SIZE, generator=torch.Generator().manual_seed(0)).numpy()
    write_dicom(drawn.film, noise, mm_per_px=None, laterality="B", bits=16)
    halves = split(film_tensor(radiograph(phantom(1, size=FILM_SIZE)))).pixels[None]
    assert compare_with_built_in(builtin_model(), drawn, halves) == []
