"""The loss against the error."""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from kneematch.evaluation.loss_and_error import LossAndError
from kneematch.evaluation.plot_style import DPI, FULL_WIDTH
from kneematch.evaluation.plots import differences, draw_loss_and_error, quartiles_by, wilson


def relation(methods: int, knees: int, seed: int = 0) -> LossAndError:
    """The error is the loss, but for noise."""
    generator = np.random.default_rng(seed)
    loss = generator.uniform(0.05, 0.3, (methods, knees))
    return made(loss, 20 * loss * generator.lognormal(0, 0.3, loss.shape))


def made(loss: NDArray[np.float64], error: NDArray[np.float64]) -> LossAndError:
    """Of (methods, knees), the two knees of a film in order."""
    methods, knees = loss.shape
    return LossAndError(
        method=np.repeat([f"method {k}" for k in range(methods)], knees),
        film=np.tile([f"{k // 2}.png" for k in range(knees)], methods),
        side=np.tile([("left", "right")[k % 2] for k in range(knees)], methods),
        source=np.full(methods * knees, "any"),
        loss=loss.ravel(),
        margin_percent=error.ravel(),
        iou=np.ones(methods * knees),
    )


@pytest.mark.parametrize(("methods", "knees"), [(3, 60), (1, 40), (2, 3), (1, 1), (8, 4)])
def test_a_png_and_a_pdf_are_written_for_many_knees_and_for_few(
    methods: int, knees: int, tmp_path: Path
) -> None:
    png, pdf = draw_loss_and_error(relation(methods, knees), tmp_path / "curve")
    with Image.open(png) as picture:
        assert picture.size[0] == FULL_WIDTH * DPI
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", content)) == 1
    assert b"/FontFile2" in content


def test_errors_of_nothing_can_be_drawn_on_a_logarithmic_axis(tmp_path: Path) -> None:
    data = made(np.full((2, 4), 0.1), np.zeros((2, 4)))
    assert all(path.stat().st_size for path in draw_loss_and_error(data, tmp_path / "curve"))


def test_quartiles_are_those_of_knees_of_like_loss() -> None:
    loss = np.arange(120) / 100
    middle, (lower, median, upper) = quartiles_by(loss, 3 * loss)
    assert len(middle) == 10
    assert median == pytest.approx(3 * middle)
    assert upper - lower == pytest.approx(np.full(10, 3 * 0.055))


def test_of_two_methods_on_a_knee_it_is_told_whether_the_lower_loss_is_closer() -> None:
    loss = np.array([[0.1, 0.2, 0.3, 0.4], [0.2, 0.1, 0.3, 0.1]])
    error = np.array([[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 1.0]])
    apart, closer = differences(made(loss, error))
    assert apart == pytest.approx([0.1, 0.1])  # the third knee's losses, the fourth's errors tie
    assert closer.tolist() == [True, False]


def test_only_entries_of_one_knee_are_compared() -> None:
    apart, closer = differences(relation(4, 10))
    assert len(apart) == len(closer) == 6 * 10
    assert len(differences(relation(1, 10))[0]) == 0


def test_where_the_error_is_the_loss_the_lower_one_is_always_closer() -> None:
    loss = np.random.default_rng(1).random((3, 20))
    assert differences(made(loss, loss))[1].all()


def test_the_interval_of_a_share_is_wilsons() -> None:
    low, high = wilson(np.array([0.5, 1.0]), np.array([10.0, 10.0]))
    assert low == pytest.approx([0.2366, 0.7225], abs=1e-4)
    assert high == pytest.approx([0.7634, 1.0], abs=1e-4)
