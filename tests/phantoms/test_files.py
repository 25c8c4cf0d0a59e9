"""A phantom that is written reads back as it was; tests of DICOM exports validate its header."""

from pathlib import Path

import numpy as np
import pydicom
import pytest

from kneematch.films.read import read
from kneephantoms.files import write_dicom, write_png16

GRADIENT = np.linspace(0, 1, 50 * 70, dtype=np.float32).reshape(50, 70)


@pytest.mark.parametrize(("bits", "monochrome1"), [(8, False), (10, True), (12, True), (16, False)])
def test_write_dicom_reads_back_within_half_a_level(
    tmp_path: Path, bits: int, monochrome1: bool
) -> None:
    path = tmp_path / "film.dcm"
    known = {"laterality": "R", "view": "AP", "series": "Knie, Köln"}
    write_dicom(path, GRADIENT, mm_per_px=1 / 7, bits=bits, monochrome1=monochrome1, **known)  # type: ignore[arg-type]
    film, dataset = read(path), pydicom.dcmread(path)
    assert np.abs(film.pixels - GRADIENT).max() <= 0.51 / (2**bits - 1)
    assert film.polarity_tag == ("MONOCHROME1" if monochrome1 else "MONOCHROME2")
    assert dataset.PresentationLUTShape == ("INVERSE" if monochrome1 else "IDENTITY")
    assert dataset.PixelIntensityRelationshipSign == (1 if monochrome1 else -1)
    assert film.mm_per_px == pytest.approx(1 / 7, rel=1e-9)
    assert {name: getattr(film, name) for name in known} == known
    assert str(dataset.PatientName) == "Phantom^Synthetic"


def test_write_refuses_pixels_outside_the_unit_range_and_odd_depths(tmp_path: Path) -> None:
    for pixels in (GRADIENT + 0.1, GRADIENT - 0.1, GRADIENT[:0], GRADIENT[None]):
        with pytest.raises(ValueError, match="pixels"):
            write_png16(tmp_path / "film.png", pixels)
        with pytest.raises(ValueError, match="pixels"):
            write_dicom(tmp_path / "film.dcm", pixels, mm_per_px=0.1, laterality="B")
    for bits in (7, 17):
        with pytest.raises(ValueError, match="8 to 16 bits"):
            write_dicom(tmp_path / "film", GRADIENT, mm_per_px=0.1, laterality="B", bits=bits)
    assert list(tmp_path.iterdir()) == []
