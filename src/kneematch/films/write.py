"""Write films as DICOM (Digital X-Ray Image, For Presentation), films and pictures as PNG."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid
from pydicom.valuerep import DSfloat

from kneematch.errors import SettingsError
from kneematch.films.dicom_header import PATIENT_AND_STUDY
from kneematch.films.files import atomic_write, check_suffix

PNG: Final = ".png"
PNG_LEVEL: Final = 2  # of compression: files a tenth larger, written three times as fast
SOFTWARE: Final = "kneematch"  # in the pictures that it has drawn

KNEE = ("72696002", "Knee")  # SNOMED CT, as DICOM's context group 4009 has it
VIEWS = {"AP": ("399348003", "antero-posterior"), "PA": ("272479007", "postero-anterior")}  # 4010
EMPTY = (  # required by the standard, and unknown for a phantom
    *PATIENT_AND_STUDY,
    "SeriesNumber",
    "InstanceNumber",
    "Manufacturer",
    "DetectorType",
    "AcquisitionContextSequence",
)


def write_dicom(
    path: str | os.PathLike[str],
    pixels: NDArray[np.float32],
    *,
    mm_per_px: float | None,
    laterality: str | None,
    view: str | None = "PA",
    series: str | None = None,
    orientation: tuple[str, str] = ("L", "F"),
    bits: int = 12,
    monochrome1: bool = False,
    entropy: str | None = None,
) -> None:
    """Write a synthetic film, uncompressed.

    Args:
        path: the file; an existing one is replaced.
        pixels: (H, W) in [0, 1], bones bright.
        mm_per_px: the spacing at the detector (ImagerPixelSpacing), or None to leave it out,
            although the standard requires it.
        laterality: "L", "R" or "B"; None is written as "U", unpaired.
        view: "PA", "AP" or another value of ViewPosition.
        series: the series' description.
        orientation: the patient's directions along the rows and down the columns
            (PatientOrientation); by default the patient's right is at the picture's left.
        bits: bits stored per pixel, 8 to 16, in two bytes.
        monochrome1: store the negative, as MONOCHROME1.
        entropy: the text that the UIDs are derived from; random UIDs if None.
    """
    dataset = _identity(entropy)
    _describe(dataset, laterality, view, series)
    dataset.PatientOrientation = list(orientation)
    if mm_per_px is not None:
        dataset.ImagerPixelSpacing = [DSfloat(mm_per_px, auto_format=True)] * 2
    _store(dataset, pixels, bits, monochrome1)
    with atomic_write(path) as temp:
        dataset.save_as(temp, enforce_file_format=True)


def write_png16(path: str | os.PathLike[str], pixels: NDArray[np.float32]) -> None:
    """Write pixels (H, W) in [0, 1] as a grey PNG of 16 bits."""
    with atomic_write(path) as temp:
        Image.fromarray(_levels(pixels, 16)).save(temp, format="PNG")


def save_picture(picture: Image.Image, path: str | os.PathLike[str]) -> None:
    """Write a picture that was drawn as PNG, marked as made by kneematch."""
    about = PngInfo()
    about.add_text("Software", SOFTWARE)
    with atomic_write(path) as temp:
        picture.save(temp, format="PNG", compress_level=PNG_LEVEL, pnginfo=about)


def check_picture_path(
    path: Path, films: Iterable[str | os.PathLike[str]] = (), *, out: Path | None = None
) -> None:
    """Raise SettingsError unless a picture may be written to a path.

    Args:
        path: its name ends in .png; a file that is there must be a picture that kneematch drew.
        films: files that are read, and so must not be replaced.
        out: a folder that will be made before the picture.
    """
    check_suffix(path, PNG, "a picture")
    if not path.parent.is_dir() and (out is None or path.parent.absolute() != out.absolute()):
        raise SettingsError(f"{path}: Its folder does not exist.")
    if not os.path.lexists(path):
        return
    if not is_own_picture(path) or any(
        path.samefile(film) for film in films if Path(film).exists()
    ):
        raise SettingsError(f"{path}: This file was not drawn by kneematch. Choose another name.")


def is_own_picture(path: Path) -> bool:
    """Return whether a file is a picture that kneematch drew."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            return picture.info.get("Software") == SOFTWARE
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError):
        return False


def _levels(pixels: NDArray[np.float32], bits: int) -> NDArray[np.uint16]:
    """Round pixels (H, W) in [0, 1] to 2 ** bits levels."""
    if pixels.ndim != 2 or pixels.size == 0:
        raise ValueError(f"pixels of shape {pixels.shape}; expected (H, W)")
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # false for NaN, too
        raise ValueError(f"pixels from {pixels.min()} to {pixels.max()}; expected 0 to 1")
    levels: NDArray[np.uint16] = np.rint(pixels * np.float32(2**bits - 1)).astype(np.uint16)
    return levels


def _identity(entropy: str | None) -> Dataset:
    """Return a dataset with the patient, study, series and instance of a phantom."""

    def uid(level: str) -> str:
        return generate_uid(entropy_srcs=None if entropy is None else [entropy, level])

    dataset = Dataset()
    dataset.SpecificCharacterSet = "ISO_IR 192"
    dataset.SOPClassUID = DigitalXRayImageStorageForPresentation
    dataset.SOPInstanceUID = uid("instance")
    dataset.StudyInstanceUID = uid("study")
    dataset.SeriesInstanceUID = uid("series")
    for keyword in EMPTY:
        setattr(dataset, keyword, None)
    dataset.PatientName = "Phantom^Synthetic"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    return dataset


def _describe(
    dataset: Dataset, laterality: str | None, view: str | None, series: str | None
) -> None:
    """Add the body part, laterality, view and series description."""
    dataset.Modality = "DX"
    dataset.PositionerType = "NONE"
    dataset.PresentationIntentType = "FOR PRESENTATION"
    dataset.ImageType = ["DERIVED", "PRIMARY", ""]
    dataset.BodyPartExamined = "KNEE"
    dataset.AnatomicRegionSequence = [_code(*KNEE)]
    dataset.ImageLaterality = laterality or "U"
    if view is not None:
        dataset.ViewPosition = view
        if view in VIEWS:
            dataset.ViewCodeSequence = [_code(*VIEWS[view])]
    if series is not None:
        dataset.SeriesDescription = series


def _code(value: str, meaning: str) -> Dataset:
    item = Dataset()
    item.CodeValue = value
    item.CodingSchemeDesignator = "SCT"
    item.CodeMeaning = meaning
    return item


def _store(dataset: Dataset, pixels: NDArray[np.float32], bits: int, monochrome1: bool) -> None:
    """Add the pixels and the elements that describe their values."""
    if not 8 <= bits <= 16:
        raise ValueError(f"{bits} bits; expected 8 to 16")
    levels = _levels(pixels, bits)
    if monochrome1:
        np.subtract(2**bits - 1, levels, out=levels)
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME1" if monochrome1 else "MONOCHROME2"
    dataset.PresentationLUTShape = "INVERSE" if monochrome1 else "IDENTITY"
    dataset.PixelIntensityRelationship = "LOG"
    dataset.PixelIntensityRelationshipSign = 1 if monochrome1 else -1  # bone lets less through
    dataset.Rows, dataset.Columns = levels.shape
    dataset.BitsAllocated = 16
    dataset.BitsStored = bits
    dataset.HighBit = bits - 1
    dataset.PixelRepresentation = 0
    dataset.RescaleIntercept = 0
    dataset.RescaleSlope = 1
    dataset.RescaleType = "US"
    dataset.WindowCenter = 2 ** (bits - 1)
    dataset.WindowWidth = 2**bits
    dataset.LossyImageCompression = "00"
    dataset.BurnedInAnnotation = "NO"
    dataset.add_new("PixelData", "OW", levels.astype("<u2", copy=False).tobytes())
