"""The figure of areas side by side, and its style."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from detections import make_detection
from kneematch.evaluation.figures import (
    DPI,
    PAGE_WIDTH,
    choose_films,
    draw_areas,
    journal_style,
    save_figure,
)
from kneematch.evaluation.method_runs import MethodRun
from kneephantoms import phantom
from kneephantoms.files import write_png16

PLACES = {"left": (60.0, 80.0), "right": (140.0, 80.0)}


def run(method: str, losses: dict[str, Sequence[float]]) -> MethodRun:
    """Areas of given losses on films, always at the same places."""
    found = {
        film: tuple(
            make_detection(side, PLACES[side], (60, 60), loss=loss)
            for side, loss in zip(PLACES, values, strict=False)
        )
        for film, values in losses.items()
    }
    return MethodRun(method, found)


def losses(figure: Figure, *, weight: str) -> list[str]:
    """The losses that are written in a weight."""
    labels = [axes.xaxis.label for axes in figure.axes if axes.images]
    return sorted(label.get_text() for label in labels if label.get_weight() == weight)


@pytest.fixture(scope="module", autouse=True)
def style() -> Iterator[None]:
    with journal_style():
        yield


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("films")
    paths = [folder / f"secret-name-{seed}.png" for seed in range(2)]
    for seed, path in enumerate(paths):
        write_png16(path, phantom(seed, size=(160, 200)).pixels)
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def runs(films: list[str]) -> list[MethodRun]:
    losses = {
        "neural": [(0.101, 0.212), (0.303, 0.404)],
        "neural+sharpen": [(0.151, 0.202), (0.333, 0.404)],
    }
    return [run(name, dict(zip(films, rows, strict=True))) for name, rows in losses.items()]


@pytest.fixture(scope="module")
def figure(style: None, runs: list[MethodRun], films: list[str]) -> Figure:
    return draw_areas(runs, films)


def test_draw_areas_writes_losses_the_lowest_of_a_knee_in_bold(
    figure: Figure, runs: list[MethodRun], films: list[str]
) -> None:
    assert losses(figure, weight="normal") == ["0.151", "0.212", "0.333"]
    assert losses(figure, weight="bold") == ["0.101", "0.202", "0.303", "0.404", "0.404"]
    assert losses(draw_areas(runs[:1], films[:1]), weight="bold") == []


def test_draw_areas_names_sides_and_methods_but_no_films(figure: Figure) -> None:
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    names = "neural", "neural\n+ sharpen"
    assert titles == [f"{side}\n{name}" for side in PLACES for name in names]
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == ["(a)", "(b)"]


def test_save_figure_writes_a_png_and_a_pdf_with_its_font(figure: Figure, tmp_path: Path) -> None:
    png, pdf = save_figure(figure, tmp_path / "figure")
    with Image.open(png) as picture:
        assert picture.info["dpi"] == pytest.approx((DPI, DPI), abs=1)
        assert picture.size[0] <= PAGE_WIDTH * DPI
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF-")
    assert b"/FontFile2" in content  # a TrueType font, embedded
    assert b"/Type3" not in content
    assert all(b"secret" not in path.read_bytes() for path in (png, pdf))


@pytest.mark.parametrize("methods", [1, 6])
def test_draw_areas_keeps_areas_square_apart_and_on_the_page(
    methods: int, runs: list[MethodRun], films: list[str]
) -> None:
    figure = draw_areas([runs[0]] * methods, films)
    figure.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in figure.axes if axes.images]
    assert len(boxes) == 2 * 2 * methods
    for k, box in enumerate(boxes):
        assert box.width == pytest.approx(box.height, rel=0.02)
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[:k])


def test_choose_films_spreads_them_over_the_ranks_of_the_first_method() -> None:
    order = np.random.default_rng(0).permutation(40).tolist()
    losses = {f"{k:02d}": (k / 100, k / 100) for k in order}
    against = {film: (1 - a, 1 - b) for film, (a, b) in losses.items()}
    chosen = choose_films([run("first", losses), run("second", against)], 4)
    assert chosen == ["05", "15", "25", "35"]


def test_choose_films_takes_only_those_on_which_all_methods_found_both_knees() -> None:
    first = run("first", {"a": (0.1, 0.1), "b": (0.2,), "c": (0.3, 0.3), "d": (0.4, 0.4)})
    second = run("second", {"a": (0.1, 0.1), "b": (0.2,), "c": (0.3,)})
    assert choose_films([first, second]) == ["a"]
    assert choose_films([run("none", {})]) == []


def test_journal_style_does_not_outlast_its_context() -> None:
    with mpl.rc_context({"font.size": 33.0}):
        with journal_style():
            assert mpl.rcParams["font.size"] == 8
        assert mpl.rcParams["font.size"] == 33


def test_save_figure_keeps_a_dot_in_the_name_and_writes_the_same_bytes_again(
    tmp_path: Path,
) -> None:
    figure = Figure()
    figure.subplots().plot([0, 1])
    first = [path.read_bytes() for path in save_figure(figure, tmp_path / "v1.2")]
    paths = save_figure(figure, tmp_path / "v1.2")
    assert [path.name for path in paths] == ["v1.2.png", "v1.2.pdf"]
    assert [path.read_bytes() for path in paths] == first
