"""Write films as DICOM (Digital X-Ray Image, For Presentation) or PNG, and any file atomically."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid
from pydicom.valuerep import DSfloat

VIEWS: Final = {  # SNOMED CT, context group 4010
    "AP": ("399348003", "antero-posterior"),
    "PA": ("272479007", "postero-anterior"),
}
EMPTY: Final = (  # required by the standard, and unknown for a phantom
    *("PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID"),
    *("AccessionNumber", "ReferringPhysicianName", "SeriesNumber", "InstanceNumber"),
    *("Manufacturer", "DetectorType", "AcquisitionContextSequence"),
)
ALIKE: Final = {  # the same in all films
    "SpecificCharacterSet": "ISO_IR 192",
    "SOPClassUID": DigitalXRayImageStorageForPresentation,
    "PatientName": "Phantom^Synthetic",
    "Modality": "DX",
    "PositionerType": "NONE",
    "PresentationIntentType": "FOR PRESENTATION",
    "ImageType": ["DERIVED", "PRIMARY", ""],
    "BodyPartExamined": "KNEE",
    "SamplesPerPixel": 1,
    "PixelIntensityRelationship": "LOG",
    "BitsAllocated": 16,
    "PixelRepresentation": 0,
    "RescaleIntercept": 0,
    "RescaleSlope": 1,
    "RescaleType": "US",
    "LossyImageCompression": "00",
    "BurnedInAnnotation": "NO",
}


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; the file written there becomes `path` at the end.

    After an exception, what was at `path` before is unchanged. Errors name `path`.
    """
    target = Path(path)
    temp = target.with_name(f".phantom-{secrets.token_hex(8)}{target.suffix}")
    try:
        temp.touch(0o600, exist_ok=False)
        yield temp
        temp.replace(target)
    except OSError as error:
        if error.filename in (None, temp, str(temp)):
            error.filename = str(target)
        raise
    finally:
        temp.unlink(missing_ok=True)


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
    """Write a synthetic film, uncompressed: pixels (H, W) in [0, 1], bones bright.

    `mm_per_px` is the spacing at the detector; None leaves it out, although the standard requires
    it. `laterality` is "L", "R", "B", or None for unpaired; `orientation` has the patient's
    directions along the rows and down the columns, by default those of a film seen from the front.
    `bits`, 8 to 16, are stored in two bytes. `monochrome1` stores the negative. The UIDs are
    derived from `entropy`, or random if it is None.
    """
    dataset = Dataset()
    for keyword, value in {**dict.fromkeys(EMPTY), **ALIKE}.items():
        setattr(dataset, keyword, value)
    for keyword, level in (("SOP", "instance"), ("Study", "study"), ("Series", "series")):
        source = None if entropy is None else [entropy, level]
        setattr(dataset, f"{keyword}InstanceUID", generate_uid(entropy_srcs=source))
    dataset.AnatomicRegionSequence = [_code("72696002", "Knee")]  # context group 4009
    dataset.ImageLaterality = laterality or "U"
    if view is not None:
        dataset.ViewPosition = view
    if view in VIEWS:
        dataset.ViewCodeSequence = [_code(*VIEWS[view])]
    if series is not None:
        dataset.SeriesDescription = series
    dataset.PatientOrientation = list(orientation)
    if mm_per_px is not None:
        dataset.ImagerPixelSpacing = [DSfloat(mm_per_px, auto_format=True)] * 2
    _store(dataset, pixels, bits, monochrome1)
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    with replace_file(path) as temp:
        dataset.save_as(temp, enforce_file_format=True)


def write_png16(path: str | os.PathLike[str], pixels: NDArray[np.float32]) -> None:
    """Write pixels (H, W) in [0, 1] as a grey PNG of 16 bits."""
    with replace_file(path) as temp:
        Image.fromarray(_levels(pixels, 16)).save(temp, format="PNG")


def _levels(pixels: NDArray[np.float32], bits: int) -> NDArray[np.uint16]:
    """Round pixels (H, W) in [0, 1] to 2 ** bits levels."""
    if pixels.ndim != 2 or pixels.size == 0:
        raise ValueError(f"The pixels must have the shape (H, W), not {pixels.shape}.")
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # false for NaN, too
        raise ValueError(f"The pixels must be in [0, 1], not {pixels.min()} to {pixels.max()}.")
    levels: NDArray[np.uint16] = np.rint(pixels * np.float32(2**bits - 1)).astype(np.uint16)
    return levels


def _code(value: str, meaning: str) -> Dataset:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, "SCT", meaning
    return item


def _store(dataset: Dataset, pixels: NDArray[np.float32], bits: int, monochrome1: bool) -> None:
    """Add the pixels and the elements that describe their values."""
    if not 8 <= bits <= 16:
        raise ValueError(f"A pixel must have 8 to 16 bits, not {bits}.")
    levels = _levels(pixels, bits)
    if monochrome1:
        np.subtract(2**bits - 1, levels, out=levels)
    dataset.PhotometricInterpretation = "MONOCHROME1" if monochrome1 else "MONOCHROME2"
    dataset.PresentationLUTShape = "INVERSE" if monochrome1 else "IDENTITY"
    dataset.PixelIntensityRelationshipSign = 1 if monochrome1 else -1  # bone lets less through
    dataset.Rows, dataset.Columns = levels.shape
    dataset.BitsStored, dataset.HighBit = bits, bits - 1
    dataset.WindowCenter, dataset.WindowWidth = 2 ** (bits - 1), 2**bits
    dataset.add_new("PixelData", "OW", levels.astype("<u2", copy=False).tobytes())
