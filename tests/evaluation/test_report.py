"""Tables as text, and the page and figure of an evaluation."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from detections import make_detection
from kneematch.evaluation.report import (
    DPI,
    PAGE_WIDTH,
    STYLE,
    EvaluateResult,
    choose_films,
    draw_areas,
    remove_evaluation,
    to_markdown,
    write_figure,
    write_report,
)
from kneematch.evaluation.scores import MethodRun, Table
from kneephantoms import phantom
from kneephantoms.files import write_png16
from tables import read_table

PLACES = {"left": (60.0, 80.0), "right": (140.0, 80.0)}
ROWS = (("=neural", 0.12345678, 0.00001), ("a|b", None, 0.25), (None, 1.0, None))
TABLE = Table("losses", "A caption.", {"method": None, "loss": 3, "p": 3}, ROWS)


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


def test_to_markdown_has_as_many_cells_in_every_row() -> None:
    assert to_markdown(TABLE).splitlines() == [
        "| method | loss | p |",
        "| --- | ---: | ---: |",
        "| =neural | 0.123 | < 0.001 |",
        r"| a\|b | - | 0.250 |",
        "|  | 1.000 | - |",
    ]


def test_write_report_writes_all_digits_no_formulas_and_names_that_are_not_utf8(
    tmp_path: Path,
) -> None:
    odd = Table("failures", "", {"film": None, "loss": 2}, (("\udcff.dcm", 0.5),))
    write_report(EvaluateResult(tmp_path, tables=(TABLE, odd), note="A note."), "3 films", "cpu")
    rows = read_table(tmp_path / "losses.csv")
    assert [row["loss"] for row in rows] == ["0.12345678", "", "1.0"]
    assert rows[0]["method"] == "'=neural"
    assert b"\xff.dcm" in (tmp_path / "failures.csv").read_bytes()
    page = (tmp_path / "evaluation.md").read_bytes()
    assert b"| \xff.dcm | 0.50 |" in page
    assert b"\n3 films; kneematch " in page
    assert b"\n\nA note.\n\n## Losses\n" in page


def test_remove_evaluation_removes_its_own_files_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "losses.csv").touch()
    remove_evaluation(tmp_path)
    assert (tmp_path / "losses.csv").exists()  # without a page, somebody else's
    for name in ("figure.png", "evaluation.md", "notes.csv"):
        (tmp_path / name).touch()
    remove_evaluation(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.csv"]


def test_draw_areas_writes_losses_the_lowest_of_a_knee_in_bold_and_names_no_films(
    runs: list[MethodRun], films: list[str]
) -> None:
    figure = draw_areas(runs, films)
    assert losses(figure, weight="normal") == ["0.151", "0.212", "0.333"]
    assert losses(figure, weight="bold") == ["0.101", "0.202", "0.303", "0.404", "0.404"]
    assert losses(draw_areas(runs[:1], films[:1]), weight="bold") == []
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    names = "neural", "neural\n+ sharpen"
    assert titles == [f"{side}\n{name}" for side in PLACES for name in names]
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == ["(a)", "(b)"]


@pytest.mark.parametrize("methods", [1, 6])
def test_draw_areas_keeps_areas_square_apart_and_on_the_page(
    methods: int, runs: list[MethodRun], films: list[str]
) -> None:
    with mpl.rc_context(STYLE):
        figure = draw_areas([runs[0]] * methods, films)
        figure.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in figure.axes if axes.images]
    assert len(boxes) == 2 * 2 * methods
    for k, box in enumerate(boxes):
        assert box.width == pytest.approx(box.height, rel=0.02)
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[:k])


def test_write_figure_writes_the_same_png_and_pdf_whatever_the_users_style(
    runs: list[MethodRun], films: list[str], tmp_path: Path
) -> None:
    contents = []
    for size in (10.0, 33.0):
        with mpl.rc_context({"font.size": size}):
            write_figure(runs[:1], films[:1], tmp_path)
            assert mpl.rcParams["font.size"] == size
        contents.append([(tmp_path / f"figure.{kind}").read_bytes() for kind in ("png", "pdf")])
    assert contents[0] == contents[1]
    with Image.open(tmp_path / "figure.png") as picture:
        assert picture.info["dpi"] == pytest.approx((DPI, DPI), abs=1)
        assert picture.size[0] <= PAGE_WIDTH * DPI
    _, pdf = contents[0]
    assert b"/FontFile2" in pdf  # a TrueType font, embedded
    assert all(b"secret" not in content for content in contents[0])


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
    assert choose_films([run("none", {})]) == choose_films([]) == []
