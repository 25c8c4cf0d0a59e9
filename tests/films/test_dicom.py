"""Every kind of DICOM film comes back with the pixels and the header that were written."""

import struct
import traceback
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom import Dataset
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEGLSLossless,
)

from kneematch.errors import FilmError, NotAnImage, NotARadiograph
from kneematch.films.discovery import in_series
from kneematch.films.read import is_dicom, read, read_header

Gradient = Callable[..., np.ndarray]
Save = Callable[..., Path]
Check = Callable[..., None]


def test_read_dicom_whatever_its_name(
    gradient: Gradient, save_film: Save, assert_reads: Check
) -> None:
    stored = gradient()
    for name in ("film", "film.dcm", "film.png", "1.2.840.113619"):
        path = save_film(stored, name=name)
        assert is_dicom(path)
        assert_reads(path, stored)


@pytest.mark.parametrize(
    "syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian]
)
def test_read_dicom_without_preamble_and_without_meta_group(
    gradient: Gradient, save_film: Save, assert_reads: Check, tmp_path: Path, syntax: UID
) -> None:
    order = "<" if syntax.is_little_endian else ">"
    stored = gradient()
    whole = save_film(stored.astype(f"{order}u2"), syntax=syntax).read_bytes()
    meta_length = 12 + struct.unpack_from("<I", whole, 140)[0]
    for start in (132, 132 + meta_length):
        path = tmp_path / f"from {start}"
        path.write_bytes(whole[start:])
        assert is_dicom(path)
        assert_reads(path, stored)


def test_read_dicom_deflated_without_preamble(
    gradient: Gradient, save_film: Save, assert_reads: Check
) -> None:
    path = save_film(gradient(), syntax=DeflatedExplicitVRLittleEndian)
    path.write_bytes(path.read_bytes()[132:])
    assert_reads(path, gradient())


def test_read_dicom_keeps_the_ends_of_wide_integers_and_floats(
    gradient: Gradient, save_film: Save, assert_reads: Check
) -> None:
    stored = gradient(16).astype(np.uint32) * 65537
    assert_reads(save_film(stored, 32, name="wide"), stored)
    values = gradient().astype(np.float32)
    path = save_film(values, drop=("PixelData",), FloatPixelData=values.tobytes())
    assert_reads(path, values)


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ExplicitVRBigEndian])
def test_read_dicom_applies_a_modality_lut_that_ends_flat(
    save_film: Save, assert_reads: Check, syntax: UID
) -> None:
    order = "<" if syntax.is_little_endian else ">"
    stored = np.array([[9, 10, 11], [12, 13, 200]], f"{order}u2")
    table = Dataset()
    table.LUTDescriptor = [4, 10, 12]
    table.add_new("LUTData", "OW", np.array([0, 1000, 1500, 4000], f"{order}u2").tobytes())
    path = save_film(stored, ModalityLUTSequence=[table], syntax=syntax)
    assert_reads(path, np.array([[0, 0, 0.25], [0.375, 1, 1]]))


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("limit", [None, 3000])
def test_read_dicom_makes_padding_the_darkest_and_leaves_the_range_alone(
    gradient: Gradient,
    in_unit_range: Gradient,
    save_film: Save,
    assert_reads: Check,
    inverted: bool,
    limit: int | None,
) -> None:
    stored = gradient(10)
    stored[:, :7] = 4000
    stored[:, 7:9] = 4000 if limit is None else limit
    header: dict[str, Any] = {"PixelPaddingValue": 4000}
    if limit is not None:
        header["PixelPaddingRangeLimit"] = limit
    if inverted:
        header["PhotometricInterpretation"] = "MONOCHROME1"
    path = save_film(stored, 12, **header)
    expected = np.zeros(stored.shape)
    expected[:, 9:] = in_unit_range(stored[:, 9:])
    if inverted:
        expected[:, 9:] = 1 - expected[:, 9:]
    assert_reads(path, expected)


def test_read_dicom_needs_no_more_memory_than_file_and_result(
    gradient: Gradient, save_film: Save
) -> None:
    path = save_film(gradient(12, 1000, 1000))
    read(path)  # so that imports are not counted
    tracemalloc.start()
    read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3.2 * 2_000_000  # bytes: 2 a pixel stored, 4 a pixel returned


@pytest.mark.parametrize(
    ("keyword", "scale"), [("FloatPixelData", 1e-42), ("DoubleFloatPixelData", 1e300)]
)
def test_read_dicom_refuses_a_range_that_float32_does_not_hold(
    gradient: Gradient, save_film: Save, assert_refused: Check, keyword: str, scale: float
) -> None:
    kind = np.float32 if keyword == "FloatPixelData" else np.float64
    with np.errstate(over="ignore", under="ignore"):
        values = ((gradient(12) / 4095 * 2 - 1) * scale).astype(kind)
    path = save_film(values, drop=("PixelData",), **{keyword: values.tobytes()})
    assert_refused(path, NotARadiograph, "32-bit floats|NaN or infinite|Every pixel")


SECRET = b"ZZPATIENTZZ"


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, JPEGLSLossless])
def test_read_dicom_never_quotes_the_header(
    gradient: Gradient, save_film: Save, syntax: UID
) -> None:
    """Every element's bytes become a recognisable text, in each way that a header is broken."""
    path = save_film(gradient(), syntax=syntax)
    whole = path.read_bytes()
    elements = [e.tag for e in pydicom.dcmread(path)] + [
        e.tag for e in pydicom.dcmread(path).file_meta
    ]
    seen = 0
    for tag in elements:
        at = whole.index(struct.pack("<HH", tag.group, tag.element))
        long = whole[at + 4 : at + 6] in (b"OB", b"OW", b"UN")
        start = at + (12 if long else 8)
        form = "<I" if long else "<H"
        (length,) = struct.unpack_from(form, whole, start - struct.calcsize(form))
        for vr in (whole[at + 4 : at + 6], b"FD", b"UI", b"DS", b"CS", b"US"):
            if (vr in (b"OB", b"OW", b"UN")) != long:
                continue
            size = struct.pack(form, len(SECRET))
            head = whole[: at + 4] + vr + whole[at + 6 : start - len(size)] + size
            path.write_bytes(head + SECRET + whole[start + length :])
            try:
                read(path)
            except FilmError as error:
                seen += 1
                told = "".join(traceback.format_exception(error))
                assert "ZZPATIENT" not in told, (tag, vr)
    assert seen > 30


def deflated(path: Path, save_film: Save, stored: np.ndarray, addition: bytes) -> None:
    """Write a deflated film with something before its first element."""
    whole = save_film(stored, syntax=DeflatedExplicitVRLittleEndian).read_bytes()
    start = 144 + struct.unpack_from("<I", whole, 140)[0]
    content = addition + zlib.decompress(whole[start:], -zlib.MAX_WBITS)
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    path.write_bytes(whole[:start] + packer.compress(content) + packer.flush())


def test_read_dicom_refuses_a_deflated_header_of_endless_items(
    tmp_path: Path, gradient: Gradient, save_film: Save, assert_refused: Check
) -> None:
    sequence = struct.pack("<HH2sHI", 8, 6, b"SQ", 0, 0xFFFFFFFF)
    items = struct.pack("<HHI", 0xFFFE, 0xE000, 0) * 500_000
    deflated(tmp_path / "film.dcm", save_film, gradient(), sequence + items)
    assert (tmp_path / "film.dcm").stat().st_size < 50_000
    assert_refused(tmp_path / "film.dcm", NotAnImage, "cannot be decoded")


def test_read_header_obeys_the_limits_of_read(
    tmp_path: Path, gradient: Gradient, save_film: Save
) -> None:
    path = tmp_path / "film.dcm"
    blob = struct.pack("<HH2sHI", 8, 6, b"OB", 0, 300 << 20) + bytes(300 << 20)
    deflated(path, save_film, gradient(), blob)
    assert path.stat().st_size < 1 << 20
    for keywords in ((), ("SeriesDescription",)):
        with pytest.raises(NotARadiograph, match="deflated DICOM has more than"):
            read_header(path, *keywords)
    assert list(in_series([str(path)], "")) == []


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, DeflatedExplicitVRLittleEndian])
def test_read_header_stops_behind_the_last_keyword(
    tmp_path: Path, gradient: Gradient, save_film: Save, syntax: UID
) -> None:
    path = save_film(gradient(), syntax=syntax, SeriesDescription="PA", ViewPosition="AP")
    header = read_header(path, "SeriesDescription")
    assert header is not None
    assert header.SeriesDescription == "PA"
    assert "ViewPosition" not in header
    whole = read_header(path)
    assert whole is not None
    assert whole.ViewPosition == "AP"
    assert whole.Rows == 60
    assert "PixelData" not in whole
    (tmp_path / "text").write_text("not a film")
    assert read_header(tmp_path / "text") is None


def test_read_dicom_leaves_out_elements_too_long_for_a_header(
    gradient: Gradient, save_film: Save, assert_reads: Check
) -> None:
    path = save_film(gradient(), EncapsulatedDocument=bytes(3 << 20), ViewPosition="AP")
    assert_reads(path, gradient())
    header = read_header(path)
    assert header is not None
    assert header.ViewPosition == "AP"
    assert "EncapsulatedDocument" not in header


@pytest.mark.parametrize("depth", [1, 400])
def test_read_dicom_takes_a_sequence_in_place_of_a_text_for_garbage(
    gradient: Gradient, save_film: Save, assert_reads: Check, depth: int
) -> None:
    path = save_film(gradient(), SeriesDescription="PA")
    plain, nested = b"\x08\0\x3e\x10LO\2\0PA", b""
    for _ in range(depth):
        item = struct.pack("<HHI", 0xFFFE, 0xE000, len(nested)) + nested
        nested = struct.pack("<HH2sHI", 0x0008, 0x103E, b"SQ", 0, len(item)) + item
    content = path.read_bytes()
    assert plain in content
    path.write_bytes(content.replace(plain, nested))
    assert_reads(path, gradient())
    assert read(path).series is None
