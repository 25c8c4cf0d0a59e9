"""Files that are made of films, where some of a kind cannot be."""

from pathlib import Path

import numpy as np
import pydicom

from kneematch.run.config import DetectConfig
from kneematch.run.pipeline import detect_folder

CONFIG = DetectConfig(method="neural", device="cpu", workers=0, export=("dicom",))


def test_make_files_keeps_the_objects_that_a_film_in_colours_can_have(
    films: Path, tmp_path: Path
) -> None:
    path, out = tmp_path / "film.dcm", tmp_path / "out"
    dataset = pydicom.dcmread(films / "phantom-00000.dcm")
    grey = (dataset.pixel_array >> (dataset.BitsStored - 8)).astype(np.uint8)
    dataset.set_pixel_data(np.stack([grey] * 3, axis=-1), "RGB", 8)
    dataset.save_as(path)
    result = detect_folder(path, out, CONFIG)
    assert "colours has no presentation state" in result.missing_reasons[0]
    objects = {file.name: file.read_bytes() for file in (out / "dicom-objects").iterdir()}
    assert objects.keys() == {"film-report.dcm", "film-picture.dcm"}
    assert detect_folder(path, out, CONFIG).missing == 0
    assert {file.name: file.read_bytes() for file in (out / "dicom-objects").iterdir()} == objects


def test_make_files_tries_again_where_no_file_was_made(films: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "film.dcm", tmp_path / "out"
    dataset = pydicom.dcmread(films / "phantom-00000.dcm")
    del dataset.StudyInstanceUID
    dataset.save_as(path)
    for _ in range(2):
        assert "lacks StudyInstanceUID" in detect_folder(path, out, CONFIG).missing_reasons[0]
