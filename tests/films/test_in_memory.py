"""Films from arrays and datasets in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest

from kneematch.errors import FilmError, NotARadiograph, SettingsError
from kneematch.films.read import is_dataset, radiograph_from_array, radiograph_from_dataset, read
from kneephantoms.files import write_dicom

GRADIENT = np.linspace(0, 1, 4096, dtype=np.float32).reshape(64, 64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_dicom(tmp_path / "a.dcm", GRADIENT, mm_per_px=0.14, laterality="B", monochrome1=True)
    return tmp_path / "a.dcm"


@pytest.mark.parametrize("dtype", ["uint8", "int16", ">u2", "float64"])
def test_radiograph_from_array_maps_any_range_to_the_unit_interval(dtype: str) -> None:
    levels = np.arange(12).reshape(3, 4).astype(dtype)
    film = radiograph_from_array(levels[:, ::-1], mm_per_px=0.2, laterality="L")
    np.testing.assert_allclose(film.pixels, np.arange(12).reshape(3, 4)[:, ::-1] / 11, atol=1e-6)
    assert film.pixels.flags.c_contiguous
    assert (film.mm_per_px, film.laterality, film.seen_from_front) == (0.2, "L", None)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4, 3)),
        np.zeros(5),
        np.zeros((0, 4)),
        np.array([["a", "b"]]),
        np.zeros((4, 4)),  # a single grey
        np.full((4, 4), np.nan),
    ],
)
def test_radiograph_from_array_refuses_what_is_no_film(array: Any) -> None:
    with pytest.raises(NotARadiograph, match=r"; expected .*; "):
        radiograph_from_array(array)


def test_radiograph_from_array_refuses_impossible_facts() -> None:
    for wrong in ({"mm_per_px": 0.0}, {"mm_per_px": float("nan")}, {"laterality": "left"}):
        with pytest.raises(SettingsError, match="correct it"):
            radiograph_from_array(GRADIENT, **wrong)


@pytest.mark.parametrize("meta", [True, False])
def test_radiograph_from_dataset_is_the_film_of_its_file(path: Path, meta: bool) -> None:
    dataset = pydicom.dcmread(path)
    if not meta:
        del dataset.file_meta
    film, expected = radiograph_from_dataset(dataset), read(path)
    assert np.array_equal(film.pixels, expected.pixels)
    assert film.mm_per_px == expected.mm_per_px
    assert film.seen_from_front is True
    assert is_dataset(dataset)
    assert not is_dataset(path)


def test_radiograph_from_dataset_refuses_one_without_pixels(path: Path) -> None:
    dataset = pydicom.dcmread(path)
    del dataset.PixelData
    with pytest.raises(FilmError, match="without pixels"):
        radiograph_from_dataset(dataset)
