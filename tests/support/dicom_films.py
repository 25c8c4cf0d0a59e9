"""DICOM films of any transfer syntax, and what to assert about films that are read."""

from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    UID,
    DigitalXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from kneematch.errors import LONGEST, SHOWN_START, FilmError
from kneematch.films.read import read


def gradient(bits: int = 12, height: int = 60, width: int = 81) -> np.ndarray:
    """Both ends of the range and, row by row, something smooth between them."""
    values = np.linspace(0, 2**bits - 1, height * width).reshape(height, width)
    return np.rint(values).astype(np.uint8 if bits <= 8 else np.uint16)


def in_unit_range(stored: np.ndarray) -> np.ndarray:
    stored = stored.astype(np.float64)
    return (stored - stored.min()) / (stored.max() - stored.min())


def encode(stored: np.ndarray, bits: int, syntax: UID) -> bytes:
    """One losslessly compressed frame."""
    if syntax == JPEGLSLossless:  # knows no signs
        return bytes(imagecodecs.jpegls_encode(stored.view(f"u{stored.itemsize}")))
    if syntax == JPEG2000Lossless:
        return bytes(imagecodecs.jpeg2k_encode(stored, bitspersample=bits, codecformat="J2K"))
    assert syntax == JPEGLosslessSV1
    return bytes(imagecodecs.jpeg8_encode(stored, lossless=True, bitspersample=bits))


def save_film(
    path: Path,
    stored: np.ndarray,
    bits: int = 12,
    syntax: UID = ExplicitVRLittleEndian,
    *,
    frame: bytes | None = None,
    drop: tuple[str, ...] = (),
    **header: Any,
) -> Path:
    """Write a film with these stored values, (H, W) or (H, W, 3); `frame` replaces them."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = DigitalXRayImageStorageForPresentation
    dataset.SOPInstanceUID = "1.2.3.4"
    dataset.PatientName = "Doe^Jane"
    dataset.PatientID = "4711"
    dataset.SamplesPerPixel = 1 if stored.ndim == 2 else 3
    dataset.PhotometricInterpretation = "MONOCHROME2" if stored.ndim == 2 else "RGB"
    if stored.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.Rows, dataset.Columns = stored.shape[:2]
    dataset.BitsAllocated = 8 * stored.itemsize
    dataset.BitsStored = bits
    dataset.HighBit = bits - 1
    dataset.PixelRepresentation = int(stored.dtype.kind == "i")
    data = stored.tobytes()
    data += b"\0" * (len(data) % 2)
    dataset.add_new("PixelData", "OB" if stored.itemsize == 1 else "OW", data)
    if syntax == RLELossless:
        dataset.compress(syntax, encoding_plugin="pydicom")
    elif syntax.is_encapsulated:
        dataset.PixelData = encapsulate([frame or encode(stored, bits, syntax)])
    for keyword, value in header.items():
        setattr(dataset, keyword, value)
    for keyword in drop:
        del dataset[keyword]
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(path, enforce_file_format=True)
    return path


def assert_reads(path: Path, stored: np.ndarray, within: float = 1e-7) -> None:
    """Assert that a film is read as these values, mapped to [0, 1]."""
    pixels = read(path).pixels
    assert pixels.dtype == np.float32
    assert pixels.flags.c_contiguous
    np.testing.assert_allclose(pixels, in_unit_range(stored), rtol=0, atol=within)
    assert pixels.min() == 0
    assert pixels.max() == 1


def assert_refused(path: Path, kind: type[FilmError], found: str) -> None:
    with pytest.raises(kind, match=found) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: "[:SHOWN_START])
    assert len(message) <= LONGEST
    assert "\n" not in message
    cause = caught.value.__cause__
    assert cause is None or isinstance(cause, OSError | ValueError)
