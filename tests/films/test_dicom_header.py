"""What a DICOM header says of polarity, spacing, side and view is kept, and no patient data is."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest

from kneematch.films.read import read
from kneephantoms.files import write_dicom

GRADIENT = np.linspace(0, 1, 4096, dtype=np.float32).reshape(64, 64)


def film(folder: Path, **header: Any) -> Path:
    """A film with these elements, beside what every film has."""
    path = folder / "film"
    write_dicom(path, GRADIENT, mm_per_px=None, laterality=None, view=None)
    dataset = pydicom.dcmread(path)
    dataset.PatientName = "Doe^Jane"
    dataset.PatientID = "4711"
    for keyword, value in header.items():
        setattr(dataset, keyword, value)
    dataset.save_as(path)
    return path


def assert_same(path: Path, expected: np.ndarray) -> None:
    np.testing.assert_allclose(read(path).pixels, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("header", "inverted"),
    [
        ({}, False),
        ({"PhotometricInterpretation": "MONOCHROME1"}, True),
        ({"PresentationLUTShape": "IDENTITY"}, False),
        ({"PresentationLUTShape": "INVERSE"}, True),
        ({"PhotometricInterpretation": "MONOCHROME1", "PresentationLUTShape": "INVERSE"}, True),
        ({"PhotometricInterpretation": "MONOCHROME1", "PresentationLUTShape": "IDENTITY"}, True),
        ({"RescaleSlope": "2.5", "RescaleIntercept": "-1024"}, False),
        ({"RescaleSlope": "-1", "RescaleIntercept": "4095"}, True),
        ({"RescaleSlope": "-1", "PhotometricInterpretation": "MONOCHROME1"}, False),
    ],
)
def test_read_dicom_makes_bones_bright_as_the_header_says(
    tmp_path: Path, header: dict[str, str], inverted: bool
) -> None:
    bright = GRADIENT
    path = film(tmp_path, **header)
    assert_same(path, 1 - bright if inverted else bright)
    tag = header.get("PhotometricInterpretation", "MONOCHROME2")
    assert read(path).polarity_tag == tag


def test_read_dicom_does_not_apply_display_windows(tmp_path: Path) -> None:
    path = film(tmp_path, WindowCenter="2000", WindowWidth="10")
    assert_same(path, GRADIENT)


@pytest.mark.parametrize(
    ("header", "mm_per_px", "tag"),
    [
        ({}, None, None),
        ({"ImagerPixelSpacing": [0.14, 0.14]}, 0.14, "ImagerPixelSpacing"),
        ({"PixelSpacing": [0.13, 0.13]}, 0.13, "PixelSpacing"),
        ({"NominalScannedPixelSpacing": [0.1, 0.1]}, 0.1, "NominalScannedPixelSpacing"),
        ({"ImagerPixelSpacing": [0.14] * 2, "PixelSpacing": [0.13] * 2}, 0.13, "PixelSpacing"),
        ({"ImagerPixelSpacing": [0.1] * 2, "PixelSpacing": [0.1] * 2}, 0.1, "ImagerPixelSpacing"),
        ({"PixelSpacing": [0, 0], "ImagerPixelSpacing": [0.14] * 2}, 0.14, "ImagerPixelSpacing"),
        (
            {"ImagerPixelSpacing": [0.2] * 2, "EstimatedRadiographicMagnificationFactor": 1.1},
            0.2,
            "ImagerPixelSpacing",
        ),
        ({"PixelSpacing": [0.1, 0.1005]}, 0.1005, "PixelSpacing"),
        ({"PixelAspectRatio": [1, 1]}, None, None),
    ],
)
def test_spacing_comes_with_its_keyword(
    tmp_path: Path, header: dict[str, Any], mm_per_px: float | None, tag: str | None
) -> None:
    radiograph = read(film(tmp_path, **header))
    assert radiograph.mm_per_px == mm_per_px
    assert radiograph.spacing_tag == tag


@pytest.mark.parametrize(
    ("header", "side"),
    [
        ({}, None),
        ({"ImageLaterality": "B"}, "B"),
        ({"Laterality": "R"}, "R"),
        ({"ImageLaterality": "L", "Laterality": "R"}, "L"),
        ({"ImageLaterality": "U", "Laterality": "R"}, "R"),
        ({"ImageLaterality": "U"}, None),
        ({"Laterality": "R", "SeriesDescription": "Bilateral PA Fixed Flexion"}, "B"),
        ({"Laterality": "L", "ProtocolName": "both knees standing"}, "B"),
        ({"Laterality": "L", "BodyPartExamined": "KNEES"}, "B"),
        ({"Laterality": "R", "ViewPosition": "AP BEIDSEITS"}, "B"),
        ({"Laterality": "R", "SeriesDescription": "Knee R, lateral"}, "R"),
        ({"ImageLaterality": "R", "SeriesDescription": "Bilateral knees"}, "R"),
    ],
)
def test_laterality_is_the_images_or_else_the_series(
    tmp_path: Path, header: dict[str, str], side: str | None
) -> None:
    assert read(film(tmp_path, **header)).laterality == side


@pytest.mark.parametrize(
    ("orientation", "from_front"),
    [
        (["L", "F"], True),
        (["R", "F"], False),  # mirrored
        (["L", "H"], False),
        (["R", "H"], True),  # upside down
        (["F", "R"], True),  # turned by 90 degrees
        (["F", "L"], False),
        (["LA", "FP"], True),
        (["A", "F"], None),  # seen from the side
        (["L", "L"], None),
        (["L"], None),
        (["left", "foot"], None),
        ("", None),
    ],
)
def test_seen_from_front_is_the_sense_of_patient_orientation(
    tmp_path: Path, orientation: Any, from_front: bool | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom's, of values that are none
        path = film(tmp_path, PatientOrientation=orientation)
    assert read(path).seen_from_front is from_front


def test_read_dicom_keeps_view_and_series_but_not_the_patient(tmp_path: Path) -> None:
    header = {"ViewPosition": "PA", "SeriesDescription": " Bilateral PA\r\nfixed flexion "}
    radiograph = read(film(tmp_path, **header))
    assert radiograph.view == "PA"
    assert radiograph.series == "Bilateral PA fixed flexion"
    assert "Doe" not in repr(radiograph)
    assert "4711" not in repr(radiograph)


def test_read_dicom_takes_garbage_in_the_header_for_absent(tmp_path: Path) -> None:
    keywords = ("ImageLaterality", "ViewPosition", "PixelSpacing", "RescaleSlope")
    path = film(tmp_path, SpecificCharacterSet="ISO_IR 192", **dict.fromkeys(keywords, "77"))
    # No number, and no text in any alphabet.
    garbage = path.read_bytes().replace(b"\x02\x0077", b"\x02\x00\xfe\xff")
    path.write_bytes(garbage.replace(b"ISO_IR 192", b"\xfeSO_IR 192"))
    assert garbage.count(b"\x02\x00\xfe\xff") == len(keywords)
    radiograph = read(path)
    assert (radiograph.mm_per_px, radiograph.spacing_tag) == (None, None)
    assert radiograph.laterality is None
    assert_same(path, GRADIENT)
