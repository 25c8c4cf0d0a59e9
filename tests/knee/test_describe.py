"""Descriptions of films: how they are stored and where they are split."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kneematch.errors import NotARadiograph
from kneematch.knee.describe import describe
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import split
from kneephantoms.files import write_dicom, write_png16

PIXELS = np.random.default_rng(0).random((60, 90), dtype=np.float32)


def test_describe_states_the_bits_of_a_dicom(tmp_path: Path) -> None:
    write_dicom(tmp_path / "a", PIXELS, mm_per_px=None, laterality=None, bits=14)
    _, found = describe(tmp_path / "a")
    assert (found["kind"], found["stored"]) == ("DICOM", "14 of 16 bits")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_describe_knows_a_picture_by_its_content(tmp_path: Path, kind: str) -> None:
    Image.fromarray((255 * PIXELS).astype(np.uint8)).save(tmp_path / "a.film", format=kind)
    _, found = describe(tmp_path / "a.film")
    assert (found["kind"], found["stored"]) == (kind, "8 bits")


def test_describe_is_silent_about_a_large_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    write_png16(tmp_path / "a.png", PIXELS)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", PIXELS.size - 1)  # above which Pillow warns
    describe(tmp_path / "a.png")
    assert not recwarn.list


def test_describe_states_where_split_cuts(tmp_path: Path) -> None:
    pixels = np.zeros((1600, 800), np.float32)
    pixels[:, 200:600] = 1
    write_png16(tmp_path / "a.png", pixels)
    film, found = describe(tmp_path / "a.png")
    assert found["film_px_per_half_px"] == 2
    spans = found["left_half_x_px"], found["right_half_x_px"]
    assert spans[1][0] < found["axis_x_px"] < spans[0][1]
    centres = split(film_tensor(film)).to_film[:, 0, 2].tolist()
    assert centres == pytest.approx([sum(span) / 2 for span in spans], abs=1)


def test_describe_names_a_film_too_small_to_split(tmp_path: Path) -> None:
    write_png16(tmp_path / "a.png", PIXELS[:20])
    with pytest.raises(NotARadiograph, match=r"a\.png: The film has 20 x 90 pixels"):
        describe(tmp_path / "a.png")
