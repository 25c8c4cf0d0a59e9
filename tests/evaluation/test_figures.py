"""Figures: areas side by side, outlines, and their style."""

import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from detections import make_detection
from kneematch.evaluation.figures import (
    AROUND,
    CAPTION,
    COLOURS,
    DPI,
    FULL_WIDTH,
    HEADINGS,
    TALLEST,
    choose_films,
    draw_areas,
    draw_outlines,
    journal_style,
    save_figure,
)
from kneematch.evaluation.method_run import MethodRun
from kneematch.evaluation.scores import KneeScore
from kneematch.knee.detection import Detection
from kneephantoms import phantom
from kneephantoms.files import write_png16

Texts = list[tuple[str, str]]  # font, text


def knee_at(side: str, centre: tuple[float, float], loss: float, width: float = 60) -> Detection:
    """An area on the film, the template mirrored in the left half."""
    return make_detection(side, centre, (width, width), loss=loss)


def run(method: str, losses: dict[str, Sequence[float]]) -> MethodRun:
    """Areas of given losses on films, always at the same places."""
    places = {"left": (60.0, 80.0), "right": (140.0, 80.0)}
    return MethodRun(
        method,
        {
            film: tuple(
                knee_at(side, places[side], loss)
                for side, loss in zip(places, values, strict=False)
            )
            for film, values in losses.items()
        },
    )


def written(pdf: Path) -> Texts:
    """The font and the signs of every piece of text on a page."""
    pages = []
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf.read_bytes(), re.S):
        try:
            content = zlib.decompress(stream)
        except zlib.error:
            continue
        if b"BT" in content:
            pages.append(content)
    (page,) = pages
    texts = []
    for block in re.findall(rb"\bBT\b(.*?)\bET\b", page, re.S):
        font = re.search(rb"/(\S+) [\d.]+ Tf", block)
        assert font is not None
        signs = b"".join(re.findall(rb"\(((?:\\.|[^\\)])*)\)", block, re.S))
        plain = re.sub(rb"\\(.)", rb"\1", signs).replace(b"\0", b"")
        texts.append((font[1].decode(), plain.decode("latin-1")))
    return texts


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("films")
    paths = [folder / f"secret-name-{seed}.png" for seed in range(2)]
    for seed, path in enumerate(paths):
        write_png16(path, phantom(seed, size=(160, 200)).pixels)
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def runs(films: list[str]) -> list[MethodRun]:
    losses = [[(0.101, 0.212), (0.303, 0.404)], [(0.151, 0.202), (0.333, 0.404)]]
    names = ["neural", "neural+sharpen"]
    return [
        run(name, dict(zip(films, rows, strict=True)))
        for name, rows in zip(names, losses, strict=True)
    ]


def saved(figure: Figure, folder: Path) -> tuple[Path, Path]:
    png, pdf = save_figure(figure, folder / "figure")
    return png, pdf


@pytest.fixture(scope="module", autouse=True)
def style() -> Iterator[None]:
    with journal_style():
        yield


@pytest.fixture(scope="module")
def figure(style: None, runs: list[MethodRun], films: list[str]) -> Figure:
    return draw_areas(runs, films)


@pytest.fixture(scope="module")
def drawn(figure: Figure, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return saved(figure, tmp_path_factory.mktemp("out"))


def test_draw_areas_gives_a_png_and_a_pdf_of_the_same_size(drawn: tuple[Path, Path]) -> None:
    png, pdf = drawn
    with Image.open(png) as picture:
        width, height = picture.size
        assert picture.info["dpi"] == pytest.approx((DPI, DPI), abs=1)
    assert width == pytest.approx(FULL_WIDTH * DPI, abs=1)
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF-")
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+)", content)
    assert box is not None
    assert float(box[2]) / float(box[1]) == pytest.approx(height / width, abs=0.002)
    assert len(re.findall(rb"/Type /Page\b", content)) == 1
    assert b"/FontFile2" in content  # a TrueType font, embedded
    assert b"/Type3" not in content


def test_draw_areas_writes_losses_below_and_methods_above(drawn: tuple[Path, Path]) -> None:
    texts = [text for _, text in written(drawn[1])]
    losses = sorted(text for text in texts if text.startswith("0."))
    assert losses == ["0.101", "0.151", "0.202", "0.212", "0.303", "0.333", "0.404", "0.404"]
    assert texts.count("neural") == 4  # two of them are followed by + sharpen on the next line
    assert {"left", "right", "(a)", "(b)"} <= set(texts)


def test_draw_areas_shows_the_lowest_loss_of_a_side_in_bold(drawn: tuple[Path, Path]) -> None:
    texts = written(drawn[1])
    bold = next(font for font, text in texts if text == "left")
    shown = sorted(text for font, text in texts if font == bold and text.startswith("0."))
    assert shown == ["0.101", "0.202", "0.303", "0.404", "0.404"]


def test_draw_areas_shows_the_area_closest_to_its_label_in_bold(
    runs: list[MethodRun], films: list[str], tmp_path: Path
) -> None:
    scores = {
        run.method: [KneeScore(films[0], "left", "any", missed=False, margin_percent=percent)]
        for run, percent in zip(runs, (3.0, 2.0), strict=True)
    }
    texts = written(saved(draw_areas(runs, films[:1], scores), tmp_path)[1])
    bold = next(font for font, text in texts if text == "left")
    shown = sorted(text for font, text in texts if font == bold and text.startswith("0."))
    assert shown == ["0.151", "0.202"]  # by its label on the left, by the loss on the right


def test_draw_areas_of_a_single_method_shows_no_loss_in_bold(
    runs: list[MethodRun], films: list[str], tmp_path: Path
) -> None:
    texts = written(saved(draw_areas(runs[:1], films[:1]), tmp_path)[1])
    bold = next(font for font, text in texts if text == "left")
    assert [text for font, text in texts if font == bold] == ["left", "right"]


def test_draw_areas_does_not_name_films(drawn: tuple[Path, Path]) -> None:
    assert not any("secret" in text for _, text in written(drawn[1]))
    assert all(b"secret" not in path.read_bytes() for path in drawn)


def test_draw_areas_puts_areas_with_gaps_between(figure: Figure, drawn: tuple[Path, Path]) -> None:
    with Image.open(drawn[0]) as picture:
        grey = np.asarray(picture.convert("L"))
    assert len(figure.axes) == 2 * 2 * 2
    for axes in figure.axes:
        box = axes.get_position()
        rows = slice(
            round((1 - box.y1) * grey.shape[0]) + 2, round((1 - box.y0) * grey.shape[0]) - 2
        )
        columns = slice(round(box.x0 * grey.shape[1]) + 2, round(box.x1 * grey.shape[1]) - 2)
        assert grey[rows, columns].mean() < 200
        if columns.stop + 4 < grey.shape[1]:
            assert (grey[rows, columns.stop + 4] == 255).all()


@pytest.mark.parametrize("methods", range(1, 7))
def test_draw_areas_keeps_areas_apart_square_and_on_the_page(
    methods: int, runs: list[MethodRun], films: list[str]
) -> None:
    figure = draw_areas([runs[0]] * methods, films)
    boxes = [axes.get_position() for axes in figure.axes]
    top = sorted((box for box in boxes if box.y1 > 0.5), key=lambda box: float(box.x0))
    assert len(top) == 2 * methods
    assert top[0].x0 > 0
    assert top[-1].x1 <= 1 + 1e-9
    for box, following in pairwise(top):
        assert box.x1 < following.x0
    page = figure.get_figheight()
    assert min(box.y0 for box in boxes) * page == pytest.approx(CAPTION)
    assert page == pytest.approx(HEADINGS + 2 * (top[0].height * page + CAPTION))
    assert top[0].height * page == pytest.approx(top[0].width * FULL_WIDTH)


def test_choose_films_spreads_them_over_the_ranks_of_the_first_method() -> None:
    losses = {f"{k:02d}": (k / 100, k / 100) for k in range(40)}
    against = {film: (1 - a, 1 - b) for film, (a, b) in losses.items()}
    chosen = choose_films([run("first", losses), run("second", against)], 4)
    assert chosen == ["05", "15", "25", "35"]


def test_choose_films_does_not_depend_on_their_order() -> None:
    generator = np.random.default_rng(0)
    losses = {f"{k:02d}": tuple(generator.random(2)) for k in range(30)}
    shuffled = {film: losses[film] for film in generator.permutation(list(losses)).tolist()}
    assert choose_films([run("a", losses)]) == choose_films([run("a", shuffled)])
    assert len(set(choose_films([run("a", losses)]))) == 8


def test_choose_films_takes_only_those_on_which_all_methods_found_both_knees() -> None:
    first = run("first", {"a": (0.1, 0.1), "b": (0.2,), "c": (0.3, 0.3), "d": (0.4, 0.4)})
    second = run("second", {"a": (0.1, 0.1), "b": (0.2,), "c": (0.3,)})
    assert choose_films([first, second]) == ["a"]
    assert choose_films([run("none", {})]) == []


SIZE = (160, 200)


@pytest.fixture(scope="module")
def outlined(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("films") / "film.png"
    write_png16(path, phantom(0, size=SIZE).pixels)
    return str(path)


def area(x: float, y: float, width: float = 50) -> Detection:
    centre = x + width / 2, y + width / 2
    side = "left" if centre[0] < SIZE[1] / 2 else "right"
    return make_detection(side, centre, (width, width), loss=0.125)


def pixels_of(picture: Path, colour: str) -> int:
    """How many pixels have nearly a colour."""
    with Image.open(picture) as opened:
        rgb = np.asarray(opened.convert("RGB")).astype(np.int16)
    wanted = np.rint(255 * np.array(to_rgb(colour))).astype(np.int16)
    return int((np.abs(rgb - wanted) < 8).all(-1).sum())


def test_draw_outlines_gives_every_method_its_own_colour(outlined: str, tmp_path: Path) -> None:
    runs = [
        MethodRun(f"method {k}", {outlined: (area(20 + 6 * k, 50), area(120 + 6 * k, 50))})
        for k in range(4)
    ]
    png, pdf = saved(draw_outlines(runs, outlined), tmp_path)
    for colour in COLOURS[:4]:
        assert pixels_of(png, colour) > 2000
    assert pixels_of(png, COLOURS[4]) == 0
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", content)) == 1
    assert b"/FontFile2" in content


def test_draw_outlines_shows_the_film_around_the_knees(outlined: str, tmp_path: Path) -> None:
    runs = [MethodRun("one", {outlined: (area(30, 60), area(120, 60))})]
    png, _ = saved(draw_outlines(runs, outlined), tmp_path)
    shown = (50 + 2 * AROUND * 50) / (140 + 2 * AROUND * 50)  # height over width
    with Image.open(png) as picture:
        width, height = picture.size
    assert width == FULL_WIDTH * DPI
    assert height / width == pytest.approx(shown, abs=0.06)  # and a legend


def test_draw_outlines_makes_a_figure_no_taller_than_a_page(tmp_path: Path) -> None:
    path = tmp_path / "tall.png"
    write_png16(path, phantom(0, size=(400, 160)).pixels)
    found = area(30, 10), area(90, 340)
    png, _ = saved(draw_outlines([MethodRun("one", {str(path): found})], str(path)), tmp_path)
    with Image.open(png) as picture:
        assert TALLEST * DPI <= picture.size[1] <= (TALLEST + 0.5) * DPI


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
