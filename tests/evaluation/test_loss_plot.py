"""The plot of loss against error."""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from kneematch.evaluation.figures import DPI, FULL_WIDTH, journal_style, save_figure
from kneematch.evaluation.loss_plot import draw_loss_and_error, quartiles_by
from kneematch.evaluation.scores import KneeScore, Scores


def random_scores(methods: int, knees: int, seed: int = 0) -> Scores:
    """Scores whose error is proportional to the loss, but for noise."""
    generator = np.random.default_rng(seed)
    loss = generator.uniform(0.05, 0.3, (methods, knees))
    return made(loss, 20 * loss * generator.lognormal(0, 0.3, loss.shape))


def made(loss: NDArray[np.float64], error: NDArray[np.float64]) -> Scores:
    """Scores of (methods, knees), two knees per film."""
    return {
        f"method {m}": [
            KneeScore(
                f"{k // 2}.png",
                ("left", "right")[k % 2],
                "any",
                missed=False,
                margin_percent=float(error[m, k]),
                loss=float(loss[m, k]),
            )
            for k in range(loss.shape[1])
        ]
        for m in range(loss.shape[0])
    }


@pytest.mark.parametrize(("methods", "knees"), [(3, 60), (1, 40), (2, 3), (1, 1), (8, 4)])
def test_draw_loss_and_error_works_for_many_knees_and_for_few(
    methods: int, knees: int, tmp_path: Path
) -> None:
    with journal_style():
        figure = draw_loss_and_error(random_scores(methods, knees))
        png, pdf = save_figure(figure, tmp_path / "curve")
    assert len(figure.axes) == (1 if methods == 1 else 2)
    with Image.open(png) as picture:
        assert picture.size[0] == FULL_WIDTH * DPI
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", content)) == 1
    assert b"/FontFile2" in content


def test_draw_loss_and_error_shows_errors_of_zero_on_a_logarithmic_axis(tmp_path: Path) -> None:
    figure = draw_loss_and_error(made(np.full((2, 4), 0.1), np.zeros((2, 4))))
    assert all(path.stat().st_size for path in save_figure(figure, tmp_path / "curve"))


def test_draw_loss_and_error_compares_methods_with_wilsons_intervals() -> None:
    """Ten knees on which the lower loss is closer half the time, and all the time."""
    loss = np.stack([np.full(10, 0.1), np.full(10, 0.2)])
    for closer, low, high in ((5, 0.2366, 0.7634), (10, 0.7225, 1.0)):
        error = np.stack([np.full(10, 1.0), np.where(np.arange(10) < closer, 2.0, 0.5)])
        axes = draw_loss_and_error(made(loss, error)).axes[1]
        (bars,) = axes.containers
        data, _, (vertical,) = bars.lines  # type: ignore[attr-defined]
        assert data.get_ydata() == pytest.approx([closer / 10])
        (segment,) = vertical.get_segments()
        assert segment[:, 1] == pytest.approx([low, high], abs=1e-4)


def test_quartiles_by_are_those_of_knees_with_similar_loss() -> None:
    loss = np.arange(120) / 100
    middle, (lower, median, upper) = quartiles_by(loss, 3 * loss)
    assert len(middle) == 10
    assert median == pytest.approx(3 * middle)
    assert upper - lower == pytest.approx(np.full(10, 3 * 0.055))
