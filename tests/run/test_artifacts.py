"""Files that are made of films, where some of a kind cannot be."""

from pathlib import Path

import numpy as np
import pydicom

from kneematch.run.config import DetectConfig
from kneematch.run.pipeline import detect_folder

CONFIG = DetectConfig(method="neural", device="cpu", workers=0, export=("dicom",))


def test_make_files_makes_all_objects_of_a_film_in_colours(films: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "film.dcm", tmp_path / "out"
    dataset = pydicom.dcmread(films / "phantom-00000.dcm")
    grey = (dataset.pixel_array >> (dataset.BitsStored - 8)).astype(np.uint8)
    dataset.set_pixel_data(np.stack([grey] * 3, axis=-1), "RGB", 8)
    dataset.save_as(path)
    assert detect_folder(path, out, CONFIG).missing == 0
    names = {file.name for file in (out / "dicom-objects").iterdir()}
    assert names == {"film-report.dcm", "film-picture.dcm"}


def test_make_files_tries_again_where_no_file_was_made(films: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "film.dcm", tmp_path / "out"
    dataset = pydicom.dcmread(films / "phantom-00000.dcm")
    del dataset.StudyInstanceUID
    dataset.save_as(path)
    for _ in range(2):
        assert "lacks StudyInstanceUID" in detect_folder(path, out, CONFIG).missing_reasons[0]
