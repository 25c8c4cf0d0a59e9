"""A film that is written reads back as it was, and says nothing false."""

from pathlib import Path

import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from kneematch.errors import SettingsError
from kneematch.films.pictures import check_picture_path, save_picture
from kneematch.films.read import read
from kneephantoms.files import write_dicom, write_png16

GRADIENT = np.linspace(0, 1, 50 * 70, dtype=np.float32).reshape(50, 70)
TYPE_1 = (
    "SOPClassUID SOPInstanceUID StudyInstanceUID SeriesInstanceUID Modality ImageType "
    "PresentationIntentType ImageLaterality ImagerPixelSpacing SamplesPerPixel Rows Columns "
    "PhotometricInterpretation BitsAllocated BitsStored HighBit PixelRepresentation PixelData "
    "PixelIntensityRelationship PixelIntensityRelationshipSign RescaleIntercept RescaleSlope "
    "RescaleType PresentationLUTShape LossyImageCompression BurnedInAnnotation WindowCenter "
    "WindowWidth PatientOrientation"
)
TYPE_2 = (
    "PatientName PatientID PatientBirthDate PatientSex StudyDate StudyTime StudyID "
    "AccessionNumber ReferringPhysicianName SeriesNumber InstanceNumber Manufacturer "
    "DetectorType AnatomicRegionSequence AcquisitionContextSequence"
)


@pytest.mark.parametrize("monochrome1", [False, True])
@pytest.mark.parametrize("bits", [8, 10, 12, 16])
def test_write_dicom_reads_back_within_half_a_level(
    tmp_path: Path, bits: int, monochrome1: bool
) -> None:
    path = tmp_path / "film.dcm"
    write_dicom(path, GRADIENT, mm_per_px=0.14, laterality="B", bits=bits, monochrome1=monochrome1)
    radiograph = read(path)
    assert np.abs(radiograph.pixels - GRADIENT).max() <= 0.51 / (2**bits - 1)
    assert radiograph.polarity_tag == ("MONOCHROME1" if monochrome1 else "MONOCHROME2")


@given(levels=arrays(np.uint16, (3, 5), elements=st.integers(0, 4095)))
@settings(max_examples=25, deadline=None)
def test_write_dicom_is_exact_for_levels_that_fill_the_range(
    tmp_path_factory: pytest.TempPathFactory, levels: np.ndarray
) -> None:
    levels[0, 0], levels[2, 4] = 0, 4095
    path = tmp_path_factory.mktemp("levels") / "film.dcm"
    pixels = levels.astype(np.float32) / np.float32(4095)
    write_dicom(path, pixels, mm_per_px=None, laterality=None)
    np.testing.assert_array_equal(read(path).pixels, pixels)


def test_write_dicom_header_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    write_dicom(path, GRADIENT, mm_per_px=1 / 7, laterality="R", view="AP", series="Knie, Köln")
    radiograph = read(path)
    assert radiograph.mm_per_px == pytest.approx(1 / 7, rel=1e-9)
    assert radiograph.spacing_tag == "ImagerPixelSpacing"
    assert radiograph.laterality == "R"
    assert radiograph.view == "AP"
    assert radiograph.series == "Knie, Köln"


def test_write_dicom_leaves_unknown_elements_out(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    write_dicom(path, GRADIENT, mm_per_px=None, laterality=None, view=None)
    radiograph = read(path)
    assert radiograph.mm_per_px is None
    assert radiograph.laterality is None
    assert radiograph.view is None
    assert radiograph.series is None


def test_write_dicom_has_what_the_standard_requires(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    write_dicom(path, GRADIENT, mm_per_px=0.1, laterality="B")
    dataset = pydicom.dcmread(path)  # warnings are errors, so each value fits its kind
    assert dataset.SOPClassUID.name == "Digital X-Ray Image Storage - For Presentation"
    assert dataset.file_meta.TransferSyntaxUID.name == "Explicit VR Little Endian"
    for keyword in TYPE_1.split():
        assert dataset.get(keyword) not in (None, ""), keyword
    for keyword in TYPE_2.split():
        assert keyword in dataset, keyword
    assert str(dataset.PatientName) == "Phantom^Synthetic"
    assert dataset.PositionerType == "NONE"


@pytest.mark.parametrize(
    ("monochrome1", "shape", "sign"), [(False, "IDENTITY", -1), (True, "INVERSE", 1)]
)
def test_write_dicom_states_the_polarity(
    tmp_path: Path, monochrome1: bool, shape: str, sign: int
) -> None:
    path = tmp_path / "film.dcm"
    write_dicom(path, GRADIENT, mm_per_px=0.1, laterality="B", monochrome1=monochrome1)
    dataset = pydicom.dcmread(path)
    assert dataset.PresentationLUTShape == shape
    assert dataset.PixelIntensityRelationshipSign == sign


def test_write_dicom_is_reproducible_with_entropy(tmp_path: Path) -> None:
    contents = {}
    for name, entropy in {"a": "seed 1", "b": "seed 1", "c": "seed 2", "d": None}.items():
        write_dicom(tmp_path / name, GRADIENT, mm_per_px=0.1, laterality="B", entropy=entropy)
        contents[name] = (tmp_path / name).read_bytes()
    assert contents["a"] == contents["b"]
    assert len(set(contents.values())) == 3
    dataset = pydicom.dcmread(tmp_path / "a")
    uids = {dataset.SOPInstanceUID, dataset.SeriesInstanceUID, dataset.StudyInstanceUID}
    assert len(uids) == 3


def test_write_png16_reads_back_within_half_a_level(tmp_path: Path) -> None:
    path = tmp_path / "film.png"
    write_png16(path, GRADIENT)
    with Image.open(path) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "I;16", (70, 50))
    assert np.abs(read(path).pixels - GRADIENT).max() <= 0.51 / 65535


@pytest.mark.parametrize(
    "pixels",
    [
        GRADIENT + 0.1,
        GRADIENT - 0.1,
        np.full((4, 4), np.nan, np.float32),
        np.zeros((0, 4), np.float32),
        np.zeros((4, 4, 3), np.float32),
    ],
)
def test_write_refuses_pixels_outside_the_unit_range(tmp_path: Path, pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="pixels"):
        write_png16(tmp_path / "film.png", pixels)
    with pytest.raises(ValueError, match="pixels"):
        write_dicom(tmp_path / "film.dcm", pixels, mm_per_px=0.1, laterality="B")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bits", [7, 17])
def test_write_dicom_refuses_depths_that_no_film_has(tmp_path: Path, bits: int) -> None:
    with pytest.raises(ValueError, match=f"{bits} bits"):
        write_dicom(tmp_path / "film", GRADIENT, mm_per_px=0.1, laterality="B", bits=bits)


def test_check_picture_path_takes_new_names_and_own_pictures(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    check_picture_path(path)
    save_picture(Image.new("RGB", (4, 4)), path)
    check_picture_path(path)
    check_picture_path(tmp_path / "out" / "a.png", out=tmp_path / "out")


def test_check_picture_path_refuses_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="folder does not exist"):
        check_picture_path(tmp_path / "gone" / "a.png", out=tmp_path / "out")


@pytest.mark.parametrize(
    "name", ["film.dcm", "film.png", "mine.png", "broken.png", "link.png", "a"]
)
def test_check_picture_path_refuses_what_is_not_ours(tmp_path: Path, name: str) -> None:
    write_png16(tmp_path / "film.dcm", np.eye(8, dtype=np.float32))
    save_picture(Image.new("L", (4, 4)), tmp_path / "film.png")
    Image.new("L", (4, 4)).save(tmp_path / "mine.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    (tmp_path / "link.png").symlink_to("missing")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(SettingsError, match=f"{name}: "):
        check_picture_path(tmp_path / name, [tmp_path / "film.png"])
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
