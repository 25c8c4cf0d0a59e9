"""Descriptions of films: how they are stored and where they are split."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kneematch.errors import NotARadiograph
from kneematch.films.radiograph import Radiograph
from kneematch.knee.describe import describe
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import split, split_lines
from kneephantoms import phantom
from kneephantoms.files import write_dicom, write_png16
from phantom_films import radiograph


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).random((60, 90), dtype=np.float32)


def test_bits_of_a_dicom_are_those_stored(tmp_path: Path, pixels: np.ndarray) -> None:
    write_dicom(tmp_path / "a", pixels, mm_per_px=None, laterality=None, bits=14)
    _, found = describe(tmp_path / "a")
    assert (found["kind"], found["stored"]) == ("DICOM", "14 of 16 bits")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_a_picture_is_known_by_its_content(tmp_path: Path, pixels: np.ndarray, kind: str) -> None:
    Image.fromarray((255 * pixels).astype(np.uint8)).save(tmp_path / "a.film", format=kind)
    _, found = describe(tmp_path / "a.film")
    assert (found["kind"], found["stored"]) == (kind, "8 bits")


def test_describe_is_silent_about_a_large_picture(
    tmp_path: Path,
    pixels: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    write_png16(tmp_path / "a.png", pixels)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels.size - 1)  # above which Pillow warns
    describe(tmp_path / "a.png")
    assert not recwarn.list


@pytest.mark.parametrize("seed", range(4))
def test_halves_are_those_that_split_cuts(seed: int) -> None:
    film = radiograph(phantom(seed, size=(200, 240)))
    # A film brightened by 1 is nowhere black, so what is black in a half is padding.
    bright = Radiograph(film.pixels + 1)
    axis, spans = split_lines(film_tensor(bright))
    halves = split(film_tensor(bright))
    width_px = float(halves.to_film[1, 0, 0]) * 2 / halves.size[1]  # film pixels, of a half's
    for side, (x0, x1) in enumerate(spans):
        columns = int((halves.pixels[side].amax(0) > 0.5).sum())
        assert columns * width_px == pytest.approx(x1 - x0, abs=2 * width_px)
        assert float(halves.to_film[side, 0, 2]) == pytest.approx((x0 + x1) / 2, abs=1)
    assert spans[1][0] < axis < spans[0][1]


def test_detail_lost_is_the_films_pixels_in_one_of_a_half(tmp_path: Path) -> None:
    pixels = np.zeros((1600, 800), np.float32)
    pixels[:, 200:600] = 1
    write_png16(tmp_path / "a.png", pixels)
    assert describe(tmp_path / "a.png")[1]["film_px_per_half_px"] == 2


def test_a_film_too_small_to_split_is_named(tmp_path: Path, pixels: np.ndarray) -> None:
    write_png16(tmp_path / "a.png", pixels[:20])
    with pytest.raises(NotARadiograph, match=r"a\.png: .*; expected .*; "):
        describe(tmp_path / "a.png")
