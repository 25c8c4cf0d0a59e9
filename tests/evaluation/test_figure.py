"""The paper's figure."""

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kneematch.detection.detection import Detection
from kneematch.evaluation.figure import Layout, choose_films, draw_figure
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.plot_style import DPI, FULL_WIDTH
from kneematch.io.write import write_png16
from kneematch.synthetic.phantom import phantom

Texts = list[tuple[str, str]]  # font, text


def knee_at(side: str, centre: tuple[float, float], loss: float, width: float = 60) -> Detection:
    """An area on the film, the template mirrored in the left half."""
    reach = width / 2 * (-1 if side == "left" else 1)
    offsets = np.array(
        [(-reach, -width / 2), (reach, -width / 2), (reach, width / 2), (-reach, width / 2)]
    )
    return Detection(
        side=side,
        laterality="R" if side == "left" else "L",
        energy=loss,
        loss=loss,
        polarity="positive",
        method="any",
        corners=np.array(centre) + offsets,
        centre=centre,
        width_px=width,
        height_px=width,
        rotation_deg=0.0,
    )


def trial(method: str, losses: dict[str, Sequence[float]]) -> Trial:
    """Areas of given losses on films, always at the same places."""
    places = {"left": (60.0, 80.0), "right": (140.0, 80.0)}
    return Trial(
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
        write_png16(path, phantom(seed, size=(160, 200)).radiograph.pixels)
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def trials(films: list[str]) -> list[Trial]:
    losses = [[(0.101, 0.212), (0.303, 0.404)], [(0.151, 0.202), (0.333, 0.404)]]
    names = ["neural", "neural+sharpen"]
    return [
        trial(name, dict(zip(films, rows, strict=True)))
        for name, rows in zip(names, losses, strict=True)
    ]


@pytest.fixture(scope="module")
def drawn(
    trials: list[Trial], films: list[str], tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    return draw_figure(trials, films, tmp_path_factory.mktemp("out") / "figure")


def test_a_png_and_a_pdf_of_the_same_size_are_written(drawn: list[Path]) -> None:
    png, pdf = drawn
    assert [png.name, pdf.name] == ["figure.png", "figure.pdf"]
    with Image.open(png) as picture:
        width, height = picture.size
        assert picture.info["dpi"] == pytest.approx((DPI, DPI), abs=1)
    assert width == pytest.approx(FULL_WIDTH * DPI, abs=1)
    assert height == pytest.approx(Layout(2, 2, 1.0).height * DPI, abs=1)
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", content)) == 1
    assert b"/FontFile2" in content  # a TrueType font, embedded
    assert b"/Type3" not in content


def test_all_losses_and_methods_are_written_below_and_above_the_areas(drawn: list[Path]) -> None:
    texts = [text for _, text in written(drawn[1])]
    losses = [text for text in texts if text.startswith("0.")]
    assert losses == ["0.101", "0.151", "0.212", "0.202", "0.303", "0.333", "0.404", "0.404"]
    assert texts.count("neural") == 4  # two of them are followed by + sharpen on the next line
    assert {"left", "right", "(a)", "(b)"} <= set(texts)


def test_the_lowest_loss_of_a_side_is_bold(drawn: list[Path]) -> None:
    texts = written(drawn[1])
    bold = next(font for font, text in texts if text == "left")
    shown = [text for font, text in texts if font == bold and text.startswith("0.")]
    assert shown == ["0.101", "0.202", "0.303", "0.404", "0.404"]


def test_nothing_is_bold_where_there_is_nothing_to_compare(
    trials: list[Trial], films: list[str], tmp_path: Path
) -> None:
    texts = written(draw_figure(trials[:1], films[:1], tmp_path / "figure")[1])
    bold = next(font for font, text in texts if text == "left")
    assert [text for font, text in texts if font == bold] == ["left", "right"]


def test_no_name_of_a_film_reaches_the_figure(drawn: list[Path]) -> None:
    assert not any("secret" in text for _, text in written(drawn[1]))
    assert all(b"secret" not in path.read_bytes() for path in drawn)


def test_areas_stand_where_the_picture_is_not_white(drawn: list[Path]) -> None:
    layout = Layout(2, 2, 1.0)
    with Image.open(drawn[0]) as picture:
        grey = np.asarray(picture.convert("L"))
    for row in range(2):
        for column in range(4):
            left, bottom, width, height = layout.place(row, column)
            rows = slice(
                round((1 - bottom - height) * grey.shape[0]) + 2,
                round((1 - bottom) * grey.shape[0]) - 2,
            )
            columns = slice(
                round(left * grey.shape[1]) + 2, round((left + width) * grey.shape[1]) - 2
            )
            assert grey[rows, columns].mean() < 200
            assert (grey[rows, columns.stop + 4] == 255).all()  # a gap to the next


def test_an_area_that_was_not_found_is_left_out(trials: list[Trial], tmp_path: Path) -> None:
    first, second = trials
    film = next(iter(first.found))
    found = {**second.found, film: second.found[film][:1]}
    _, pdf = draw_figure([first, replace(second, found=found)], [film], tmp_path / "figure")
    losses = [text for _, text in written(pdf) if text.startswith("0.")]
    assert losses == ["0.101", "0.151", "0.212"]


@pytest.mark.parametrize("methods", range(1, 7))
def test_areas_do_not_overlap_and_stay_on_the_page(methods: int) -> None:
    layout = Layout(methods, 8, 1.2)
    places = [layout.place(0, column) for column in range(2 * methods)]
    assert places[0][0] > 0
    assert places[-1][0] + places[-1][2] <= 1 + 1e-9
    for (x, _, width, _), (following, *_) in pairwise(places):
        assert x + width < following
    assert layout.place(7, 0)[1] > 0
    assert layout.place(0, 0)[3] * layout.height == pytest.approx(
        1.2 * layout.place(0, 0)[2] * FULL_WIDTH
    )


def test_chosen_films_are_spread_over_the_ranks_of_the_first_method() -> None:
    losses = {f"{k:02d}": (k / 100, k / 100) for k in range(40)}
    against = {film: (1 - a, 1 - b) for film, (a, b) in losses.items()}
    chosen = choose_films([trial("first", losses), trial("second", against)], 4)
    assert chosen == ["05", "15", "25", "35"]


def test_the_choice_does_not_depend_on_the_order_of_films() -> None:
    generator = np.random.default_rng(0)
    losses = {f"{k:02d}": tuple(generator.random(2)) for k in range(30)}
    shuffled = {film: losses[film] for film in generator.permutation(list(losses)).tolist()}
    assert choose_films([trial("a", losses)]) == choose_films([trial("a", shuffled)])
    assert len(set(choose_films([trial("a", losses)]))) == 8


def test_only_films_on_which_all_found_both_knees_are_chosen() -> None:
    first = trial("first", {"a": (0.1, 0.1), "b": (0.2,), "c": (0.3, 0.3), "d": (0.4, 0.4)})
    second = trial("second", {"a": (0.1, 0.1), "b": (0.2,), "c": (0.3,)})
    assert choose_films([first, second]) == ["a"]
    assert choose_films([trial("none", {})]) == []
