"""Every kind of DICOM film comes back with the pixels and the header that were written."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gdcm
import numpy as np
import pydicom
import pytest
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    DigitalXRayImageStorageForPresentation,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    HTJ2KLossless,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
)

from kneematch.io.read import is_dicom, read

GDCM = gdcm.TransferSyntax


def gradient(bits: int = 12, height: int = 60, width: int = 81) -> np.ndarray:
    """Both ends of the range and, row by row, something smooth between them."""
    values = np.linspace(0, 2**bits - 1, height * width).reshape(height, width)
    return np.rint(values).astype(np.uint8 if bits <= 8 else np.uint16)


def in_unit_range(stored: np.ndarray) -> np.ndarray:
    stored = stored.astype(np.float64)
    return (stored - stored.min()) / (stored.max() - stored.min())


def film(stored: np.ndarray, bits: int = 12, **header: Any) -> Dataset:
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = DigitalXRayImageStorageForPresentation
    dataset.SOPInstanceUID = "1.2.3.4"
    dataset.PatientName = "Doe^Jane"
    dataset.PatientID = "4711"
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.Rows, dataset.Columns = stored.shape[:2]
    dataset.BitsAllocated = 8 * stored.itemsize
    dataset.BitsStored = bits
    dataset.HighBit = bits - 1
    dataset.PixelRepresentation = int(stored.dtype.kind == "i")
    dataset.add_new("PixelData", "OB" if stored.itemsize == 1 else "OW", _padded(stored))
    for keyword, value in header.items():
        setattr(dataset, keyword, value)
    return dataset


def _padded(stored: np.ndarray) -> bytes:
    data = stored.tobytes()
    return data + b"\0" * (len(data) % 2)


def save(dataset: Dataset, path: Path, syntax: UID = ExplicitVRLittleEndian) -> Path:
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(path, enforce_file_format=True)
    return path


def recompress(source: Path, syntax: int) -> Path:
    """The same film as GDCM encodes it."""
    reader = gdcm.ImageReader()
    reader.SetFileName(str(source))
    assert reader.Read()
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(syntax))
    change.SetInput(reader.GetImage())
    assert change.Change()
    target = source.with_suffix(".compressed")
    writer = gdcm.ImageWriter()
    writer.SetFileName(str(target))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()
    return target


def assert_same(path: Path, expected: np.ndarray, within: float = 1e-7) -> None:
    pixels = read(path).pixels
    assert pixels.dtype == np.float32
    assert pixels.flags.c_contiguous
    np.testing.assert_allclose(pixels, expected, rtol=0, atol=within)
    assert pixels.min() == 0
    assert pixels.max() == 1


@pytest.mark.parametrize(
    "syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian, DeflatedExplicitVRLittleEndian]
)
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_uncompressed_pixels_come_back_exactly(tmp_path: Path, syntax: UID, bits: int) -> None:
    stored = gradient(bits)
    assert_same(save(film(stored, bits), tmp_path / "film", syntax), in_unit_range(stored))


@pytest.mark.parametrize("bits", [12, 16])
def test_big_endian_pixels_come_back_exactly(tmp_path: Path, bits: int) -> None:
    stored = gradient(bits)
    path = save(film(stored.astype(">u2"), bits), tmp_path / "film", ExplicitVRBigEndian)
    assert_same(path, in_unit_range(stored))


@pytest.mark.parametrize("syntax", [RLELossless, JPEGLSLossless, JPEG2000Lossless])
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_losslessly_compressed_pixels_come_back_exactly(
    tmp_path: Path, syntax: UID, bits: int
) -> None:
    stored = gradient(bits)
    dataset = film(stored, bits)
    dataset.compress(syntax)
    assert_same(save(dataset, tmp_path / "film", syntax), in_unit_range(stored))


@pytest.mark.parametrize("syntax", [GDCM.JPEGLosslessProcess14, GDCM.JPEGLosslessProcess14_1])
@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_jpeg_lossless_pixels_come_back_exactly(tmp_path: Path, syntax: int, bits: int) -> None:
    stored = gradient(bits)
    path = recompress(save(film(stored, bits), tmp_path / "film"), syntax)
    assert_same(path, in_unit_range(stored))


@pytest.mark.parametrize(
    ("syntax", "bits"),
    [
        (GDCM.JPEGBaselineProcess1, 8),
        (GDCM.JPEGExtendedProcess2_4, 8),
        (GDCM.JPEGExtendedProcess2_4, 12),
        (GDCM.JPEG2000, 12),
        (GDCM.JPEGLSNearLossless, 12),
    ],
)
def test_lossily_compressed_pixels_come_back_closely(
    tmp_path: Path, syntax: int, bits: int
) -> None:
    stored = gradient(bits)
    path = recompress(save(film(stored, bits), tmp_path / "film"), syntax)
    assert_same(path, in_unit_range(stored), within=0.01)


def htj2k() -> bytes:
    """A 2 x 2 codestream of one HT code-block, composed by hand after ISO/IEC 15444-15.

    Without a wavelet, samples are coded as they are, less 128. The block has one quad: a MEL bit 0
    for "not empty", the VLC word 01110 for "the two samples of the upper row, each of magnitude
    1", and their signs, minus and plus, in the first byte. So the rows are 127, 129 and 128, 128.
    """
    block = bytes([0b1111_0101, 0b0011_1111, 0, 0b1110_0000 | 4, 0])  # 4: bytes of the suffix
    # One packet: not empty, block included, 8 empty bit planes, one pass, no longer Lblock, length.
    packet = int("1100000000100101", 2).to_bytes(2) + block
    segments = {
        0xFF51: struct.pack(">H8IH3B", 0x4000, 2, 2, 0, 0, 2, 2, 0, 0, 1, 7, 1, 1),  # SIZ
        0xFF50: struct.pack(">IH", 1 << 17, 0),  # CAP: Part 15
        0xFF52: struct.pack(">BBHB5B", 0, 0, 1, 0, 0, 2, 2, 0x40, 1),  # COD: HT blocks, reversible
        0xFF5C: bytes([2 << 5, 8 << 3]),  # QCD: no quantisation, 2 guard bits
        0xFF90: struct.pack(">HIBB", 0, 14 + len(packet), 0, 1),  # SOT
    }
    heads = [struct.pack(">HH", mark, len(body) + 2) + body for mark, body in segments.items()]
    return b"\xff\x4f" + b"".join(heads) + b"\xff\x93" + packet + b"\xff\xd9"


def test_high_throughput_jpeg_2000_comes_back_exactly(tmp_path: Path) -> None:
    dataset = film(np.zeros((2, 2), np.uint8), 8)
    dataset.PixelData = encapsulate([htj2k()])
    path = save(dataset, tmp_path / "film", HTJ2KLossless)
    assert_same(path, np.array([[0, 1], [0.5, 0.5]]))


def test_the_name_of_a_dicom_does_not_matter(tmp_path: Path) -> None:
    stored = gradient()
    for name in ("film", "film.dcm", "film.png", "1.2.840.113619"):
        path = save(film(stored), tmp_path / name)
        assert is_dicom(path)
        assert_same(path, in_unit_range(stored))


@pytest.mark.parametrize(
    "syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian]
)
def test_a_dicom_is_read_without_preamble_and_without_meta_group(
    tmp_path: Path, syntax: UID
) -> None:
    order = "<" if syntax.is_little_endian else ">"
    stored = gradient()
    whole = save(film(stored.astype(f"{order}u2")), tmp_path / "film", syntax).read_bytes()
    meta_length = 12 + struct.unpack_from("<I", whole, 140)[0]
    for start in (132, 132 + meta_length):
        path = tmp_path / f"from {start}"
        path.write_bytes(whole[start:])
        assert is_dicom(path)
        assert_same(path, in_unit_range(stored))


def test_deflated_dicom_is_read_without_preamble(tmp_path: Path) -> None:
    path = save(film(gradient()), tmp_path / "film", DeflatedExplicitVRLittleEndian)
    path.write_bytes(path.read_bytes()[132:])
    assert_same(path, in_unit_range(gradient()))


@pytest.mark.parametrize("bits", [8, 9, 12, 16])
def test_signed_pixels_keep_their_order(tmp_path: Path, bits: int) -> None:
    stored = gradient(bits).astype(np.int32) - 2 ** (bits - 1)
    signed = stored.astype(np.int8 if bits <= 8 else np.int16)
    path = save(film(signed, bits), tmp_path / "film")
    assert_same(path, in_unit_range(gradient(bits)))


@pytest.mark.parametrize("syntax", [RLELossless, JPEGLSLossless, JPEG2000Lossless])
def test_compressed_signed_pixels_keep_their_order(tmp_path: Path, syntax: UID) -> None:
    dataset = film((gradient().astype(np.int32) - 2048).astype(np.int16))
    dataset.compress(syntax)
    assert_same(save(dataset, tmp_path / "film", syntax), in_unit_range(gradient()))


def test_wide_integers_and_floats_keep_their_ends(tmp_path: Path) -> None:
    stored = gradient(16).astype(np.uint32) * 65537
    assert_same(save(film(stored, 32), tmp_path / "wide"), in_unit_range(stored))
    dataset = film(gradient(), 12)
    del dataset.PixelData
    dataset.BitsAllocated = 32
    dataset.FloatPixelData = gradient().astype(np.float32).tobytes()
    assert_same(save(dataset, tmp_path / "float"), in_unit_range(gradient()))


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ExplicitVRBigEndian])
def test_a_modality_lut_is_applied_and_ends_flat(tmp_path: Path, syntax: UID) -> None:
    order = "<" if syntax.is_little_endian else ">"
    stored = np.array([[9, 10, 11], [12, 13, 200]], f"{order}u2")
    table = Dataset()
    table.LUTDescriptor = [4, 10, 12]
    table.add_new("LUTData", "OW", np.array([0, 1000, 1500, 4000], f"{order}u2").tobytes())
    path = save(film(stored, ModalityLUTSequence=[table]), tmp_path / "film", syntax)
    assert_same(path, np.array([[0, 0, 0.25], [0.375, 1, 1]]))


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("limit", [None, 3000])
def test_padding_becomes_the_darkest_and_leaves_the_range_alone(
    tmp_path: Path, inverted: bool, limit: int | None
) -> None:
    stored = gradient(10)
    stored[:, :7] = 4000
    stored[:, 7:9] = 4000 if limit is None else limit
    header: dict[str, Any] = {"PixelPaddingValue": 4000}
    if limit is not None:
        header["PixelPaddingRangeLimit"] = limit
    if inverted:
        header["PhotometricInterpretation"] = "MONOCHROME1"
    path = save(film(stored, 12, **header), tmp_path / "film")
    expected = np.zeros(stored.shape)
    expected[:, 9:] = in_unit_range(stored[:, 9:])
    if inverted:
        expected[:, 9:] = 1 - expected[:, 9:]
    assert_same(path, expected)


def test_negative_padding_is_recognised(tmp_path: Path) -> None:
    stored = gradient(10).astype(np.int16)
    stored[0] = -2000
    expected = np.zeros(stored.shape)
    expected[1:] = in_unit_range(stored[1:])
    assert_same(save(film(stored, 16, PixelPaddingValue=-2000), tmp_path / "film"), expected)


def test_bits_above_the_stored_ones_are_dropped(tmp_path: Path) -> None:
    overlaid = gradient()
    overlaid[::2] |= 0x8000
    assert_same(save(film(overlaid), tmp_path / "film"), in_unit_range(gradient()))


def test_bits_at_the_upper_end_are_taken_from_there(tmp_path: Path) -> None:
    shifted = (gradient() << 4) | 5
    path = save(film(shifted, HighBit=15), tmp_path / "film")
    assert_same(path, in_unit_range(gradient()))


def test_one_frame_of_a_multi_frame_class_is_a_film(tmp_path: Path) -> None:
    path = save(film(gradient(), NumberOfFrames=1), tmp_path / "film")
    assert_same(path, in_unit_range(gradient()))


@pytest.mark.parametrize("bits", [8, 16])
def test_a_grey_film_stored_as_rgb_is_read(tmp_path: Path, bits: int) -> None:
    stored = np.repeat(gradient(bits)[..., None], 3, axis=2)
    header = {
        "SamplesPerPixel": 3,
        "PhotometricInterpretation": "RGB",
        "PlanarConfiguration": 0,
    }
    path = save(film(stored, bits, **header), tmp_path / "film")
    assert_same(path, in_unit_range(gradient(bits)))


def test_the_12_bit_jpegs_that_pydicom_ships_are_read() -> None:
    folder = Path(pydicom.__file__).parent / "data" / "test_files"
    pixels = read(folder / "JPEG-lossy.dcm").pixels
    # The values that pydicom's own tests expect, of a film from 0 to 264.
    np.testing.assert_allclose(pixels[420, 140], 244 / 264, atol=1e-6)
    np.testing.assert_allclose(pixels[230, 120], 95 / 264, atol=1e-6)


def test_reading_needs_no_more_than_the_file_and_the_result(tmp_path: Path) -> None:
    path = save(film(gradient(12, 1000, 1000)), tmp_path / "film")
    read(path)  # so that imports are not counted
    tracemalloc.start()
    read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3.2 * 2_000_000  # bytes: 2 a pixel stored, 4 a pixel returned
