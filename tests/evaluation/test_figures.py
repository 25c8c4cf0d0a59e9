"""The figure of areas side by side, and its style."""

import re
import zlib
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
from kneematch.films.write import write_png16
from kneephantoms.phantom import phantom

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


def written(pdf: Path) -> list[tuple[str, str]]:
    """The font and the signs of every piece of text on a page."""
    texts = []
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf.read_bytes(), re.S):
        try:
            page = zlib.decompress(stream)
        except zlib.error:
            continue
        for block in re.findall(rb"\bBT\b(.*?)\bET\b", page, re.S):
            font = re.search(rb"/(\S+) [\d.]+ Tf", block)
            assert font is not None
            signs = b"".join(re.findall(rb"\(((?:\\.|[^\\)])*)\)", block, re.S))
            plain = re.sub(rb"\\(.)", rb"\1", signs).replace(b"\0", b"")
            texts.append((font[1].decode(), plain.decode("latin-1")))
    return texts


def bold(pdf: Path) -> list[str]:
    """The losses that are not in the font of the methods' names."""
    texts = written(pdf)
    normal = next(font for font, text in texts if text == "left")
    return sorted(text for font, text in texts if font != normal)


@pytest.fixture(scope="module", autouse=True)
def style() -> Iterator[None]:
    with journal_style():
        yield


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("films")
    paths = [folder / f"secret-name-{seed}.png" for seed in range(2)]
    for seed, path in enumerate(paths):
        write_png16(path, phantom(seed, size=(160, 200)).radiograph.pixels)
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def runs(films: list[str]) -> list[MethodRun]:
    losses = {
        "neural": [(0.101, 0.212), (0.303, 0.404)],
        "neural+sharpen": [(0.151, 0.202), (0.333, 0.404)],
    }
    return [run(name, dict(zip(films, rows, strict=True))) for name, rows in losses.items()]


@pytest.fixture(scope="module")
def drawn(
    style: None, runs: list[MethodRun], films: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    png, pdf = save_figure(draw_areas(runs, films), tmp_path_factory.mktemp("out") / "figure")
    return png, pdf


def test_draw_areas_gives_a_png_and_a_pdf_with_its_font(drawn: tuple[Path, Path]) -> None:
    png, pdf = drawn
    with Image.open(png) as picture:
        assert picture.info["dpi"] == pytest.approx((DPI, DPI), abs=1)
        assert picture.size[0] <= PAGE_WIDTH * DPI
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF-")
    assert b"/FontFile2" in content  # a TrueType font, embedded
    assert b"/Type3" not in content


def test_draw_areas_writes_losses_and_methods_but_does_not_name_films(
    drawn: tuple[Path, Path],
) -> None:
    texts = [text for _, text in written(drawn[1])]
    losses = sorted(text for text in texts if text.startswith("0."))
    assert losses == ["0.101", "0.151", "0.202", "0.212", "0.303", "0.333", "0.404", "0.404"]
    assert texts.count("neural") == 4  # two of them are followed by + sharpen on the next line
    assert {"left", "right", "(a)", "(b)"} <= set(texts)
    assert all(b"secret" not in path.read_bytes() for path in drawn)
    assert not any("secret" in text for text in texts)


def test_draw_areas_shows_the_lowest_loss_of_a_side_in_bold(drawn: tuple[Path, Path]) -> None:
    assert bold(drawn[1]) == ["0.101", "0.202", "0.303", "0.404", "0.404"]


def test_draw_areas_of_a_single_method_shows_no_loss_in_bold(
    runs: list[MethodRun], films: list[str], tmp_path: Path
) -> None:
    _, pdf = save_figure(draw_areas(runs[:1], films[:1]), tmp_path / "figure")
    assert bold(pdf) == []


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
