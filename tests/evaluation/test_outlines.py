"""A film with all methods' outlines."""

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from kneematch.detection.detection import Detection
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.outlines import AROUND, TALLEST, draw_outlines
from kneematch.evaluation.plot_style import COLOURS, DPI, FULL_WIDTH
from kneematch.io.write import write_png16
from kneematch.synthetic.phantom import phantom

SIZE = (160, 200)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("films") / "film.png"
    write_png16(path, phantom(0, size=SIZE).radiograph.pixels)
    return str(path)


def area(x: float, y: float, width: float = 50) -> Detection:
    corners = np.array([(x, y), (x + width, y), (x + width, y + width), (x, y + width)])
    centre = x + width / 2, y + width / 2
    side, laterality = ("left", "R") if centre[0] < SIZE[1] / 2 else ("right", "L")
    shape = (width, width, 0.0)
    return Detection(side, laterality, 0.25, 0.125, "positive", "any", corners, centre, *shape)


def pixels_of(picture: Path, colour: str) -> int:
    """How many pixels have nearly a colour."""
    with Image.open(picture) as opened:
        rgb = np.asarray(opened.convert("RGB")).astype(np.int16)
    wanted = np.rint(255 * np.array(to_rgb(colour))).astype(np.int16)
    return int((np.abs(rgb - wanted) < 8).all(-1).sum())


def test_every_method_is_drawn_in_a_colour_of_its_own(film: str, tmp_path: Path) -> None:
    trials = [
        Trial(f"method {k}", {film: (area(20 + 6 * k, 50), area(120 + 6 * k, 50))})
        for k in range(4)
    ]
    png, pdf = draw_outlines(trials, film, tmp_path / "outlines")
    for colour in COLOURS[:4]:
        assert pixels_of(png, colour) > 2000
    assert pixels_of(png, COLOURS[4]) == 0
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", content)) == 1
    assert b"/FontFile2" in content


def test_a_method_that_found_nothing_is_in_the_legend_alone(film: str, tmp_path: Path) -> None:
    trials = [Trial("one", {film: (area(20, 50),)}), Trial("two", {})]
    png, _ = draw_outlines(trials, film, tmp_path / "outlines")
    assert 0 < pixels_of(png, COLOURS[1]) < 0.2 * pixels_of(png, COLOURS[0])


def test_the_picture_shows_the_film_around_the_knees(film: str, tmp_path: Path) -> None:
    trials = [Trial("one", {film: (area(30, 60), area(120, 60))})]
    png, _ = draw_outlines(trials, film, tmp_path / "outlines")
    shown = (50 + 2 * AROUND * 50) / (140 + 2 * AROUND * 50)  # height over width
    with Image.open(png) as picture:
        width, height = picture.size
    assert width == FULL_WIDTH * DPI
    assert height / width == pytest.approx(shown, abs=0.06)  # and a legend


def test_a_film_without_knees_is_shown_whole_and_no_taller_than_a_page(tmp_path: Path) -> None:
    path = tmp_path / "tall.png"
    write_png16(path, phantom(0, size=(400, 160)).radiograph.pixels)
    png, _ = draw_outlines([Trial("one", {})], str(path), tmp_path / "outlines")
    with Image.open(png) as picture:
        assert TALLEST * DPI <= picture.size[1] <= (TALLEST + 0.5) * DPI
