"""Every kind of DICOM film comes back with the pixels and the header that were written."""

import struct
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom import Dataset
from pydicom.uid import (
    UID,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEGLSLossless,
)

from dicom_films import assert_reads, assert_refused, gradient, in_unit_range
from kneematch.errors import FilmError, NotARadiograph
from kneematch.films.read import is_dicom, read, read_header

Save = Callable[..., Path]


@pytest.mark.parametrize(
    "syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian]
)
def test_read_dicom_without_preamble_and_without_meta_group(
    save_film: Save, tmp_path: Path, syntax: UID
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


def test_read_dicom_keeps_the_ends_of_wide_integers_and_floats(save_film: Save) -> None:
    stored = gradient(16).astype(np.uint32) * 65537
    assert_reads(save_film(stored, 32, name="wide"), stored)
    values = gradient().astype(np.float32)
    path = save_film(values, drop=("PixelData",), FloatPixelData=values.tobytes())
    assert_reads(path, values)


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ExplicitVRBigEndian])
def test_read_dicom_applies_a_modality_lut_that_ends_flat(save_film: Save, syntax: UID) -> None:
    order = "<" if syntax.is_little_endian else ">"
    stored = np.array([[9, 10, 11], [12, 13, 200]], f"{order}u2")
    table = Dataset()
    table.LUTDescriptor = [4, 10, 12]
    table.add_new("LUTData", "OW", np.array([0, 1000, 1500, 4000], f"{order}u2").tobytes())
    path = save_film(stored, ModalityLUTSequence=[table], syntax=syntax)
    assert_reads(path, np.array([[0, 0, 0.25], [0.375, 1, 1]]))


@pytest.mark.parametrize(("inverted", "limit"), [(False, None), (False, 3000), (True, 3000)])
def test_read_dicom_makes_padding_the_darkest_and_leaves_the_range_alone(
    save_film: Save, inverted: bool, limit: int | None
) -> None:
    stored = gradient(10)
    stored[:, :7] = 4000
    stored[:, 7:9] = 4000 if limit is None else limit
    header: dict[str, Any] = {} if limit is None else {"PixelPaddingRangeLimit": limit}
    header["PhotometricInterpretation"] = "MONOCHROME1" if inverted else "MONOCHROME2"
    shown = in_unit_range(stored[:, 9:])
    expected = np.zeros(stored.shape)
    expected[:, 9:] = 1 - shown if inverted else shown
    assert_reads(save_film(stored, 12, PixelPaddingValue=4000, **header), expected)


@pytest.mark.parametrize(
    ("keyword", "scale"), [("FloatPixelData", 1e-42), ("DoubleFloatPixelData", 1e300)]
)
def test_read_dicom_refuses_a_range_that_float32_does_not_hold(
    save_film: Save, keyword: str, scale: float
) -> None:
    kind = np.float32 if keyword == "FloatPixelData" else np.float64
    with np.errstate(over="ignore", under="ignore"):
        values = ((gradient(12) / 4095 * 2 - 1) * scale).astype(kind)
    path = save_film(values, drop=("PixelData",), **{keyword: values.tobytes()})
    assert_refused(path, NotARadiograph, "32-bit floats|NaN or infinite|Every pixel")


SECRET = b"ZZPATIENTZZ"


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, JPEGLSLossless])
def test_read_dicom_never_quotes_the_header(save_film: Save, syntax: UID) -> None:
    """Every element's bytes become a recognisable text, in each way that a header is broken."""
    path = save_film(gradient(), syntax=syntax)
    whole = path.read_bytes()
    dataset, seen = pydicom.dcmread(path), 0
    for tag in (*dataset.keys(), *dataset.file_meta.keys()):
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


def test_read_header_stops_before_the_pixels(tmp_path: Path, save_film: Save) -> None:
    path = save_film(gradient(), EncapsulatedDocument=bytes(3 << 20), ViewPosition="AP")
    header = read_header(path)
    assert header is not None
    assert (header.ViewPosition, header.Rows) == ("AP", 60)
    assert "PixelData" not in header
    assert "EncapsulatedDocument" not in header  # too long for a header
    (tmp_path / "text").write_text("not a film")
    assert read_header(tmp_path / "text") is None


@pytest.mark.parametrize(
    ("header", "inverted"),
    [
        ({}, False),
        ({"PhotometricInterpretation": "MONOCHROME1"}, True),
        ({"PresentationLUTShape": "INVERSE"}, True),
        ({"PhotometricInterpretation": "MONOCHROME1", "PresentationLUTShape": "IDENTITY"}, True),
        ({"RescaleSlope": "2.5", "RescaleIntercept": "-1024"}, False),
        ({"WindowCenter": "2000", "WindowWidth": "10"}, False),
        ({"RescaleSlope": "-1", "RescaleIntercept": "4095"}, True),
        ({"RescaleSlope": "-1", "PhotometricInterpretation": "MONOCHROME1"}, False),
    ],
)
def test_read_dicom_makes_bones_bright_as_the_header_says(
    save_film: Save, header: dict[str, str], inverted: bool
) -> None:
    path = save_film(gradient(), **header)
    assert_reads(path, 4095 - gradient() if inverted else gradient())
    tag = header.get("PhotometricInterpretation", "MONOCHROME2")
    assert read(path).polarity_tag == tag


@pytest.mark.parametrize(
    ("header", "mm_per_px", "tag"),
    [
        ({}, None, None),
        ({"NominalScannedPixelSpacing": [0.1, 0.1]}, 0.1, "NominalScannedPixelSpacing"),
        ({"ImagerPixelSpacing": [0.14] * 2, "PixelSpacing": [0.13] * 2}, 0.13, "PixelSpacing"),
        ({"ImagerPixelSpacing": [0.1] * 2, "PixelSpacing": [0.1] * 2}, 0.1, "ImagerPixelSpacing"),
        ({"PixelSpacing": [0, 0], "ImagerPixelSpacing": [0.14] * 2}, 0.14, "ImagerPixelSpacing"),
        ({"PixelSpacing": ["1e-320"] * 2, "ImagerPixelSpacing": ["1e300"] * 2}, None, None),
        ({"PixelSpacing": [0.1, 0.1005]}, 0.1005, "PixelSpacing"),
        ({"PixelAspectRatio": [1, 1]}, None, None),
    ],
)
def test_spacing_comes_with_its_keyword(
    save_film: Save, header: Any, mm_per_px: float | None, tag: str | None
) -> None:
    radiograph = read(save_film(gradient(), **header))
    assert (radiograph.mm_per_px, radiograph.spacing_tag) == (mm_per_px, tag)


@pytest.mark.parametrize(
    ("header", "side"),
    [
        ({}, None),
        ({"ImageLaterality": "L", "Laterality": "R"}, "L"),
        ({"ImageLaterality": "U", "Laterality": "R"}, "R"),
        ({"Laterality": "R", "SeriesDescription": "Bilateral PA Fixed Flexion"}, "B"),
        ({"Laterality": "L", "ProtocolName": "both knees standing"}, "B"),
        ({"Laterality": "R", "ViewPosition": "AP BEIDSEITS"}, "B"),
        ({"Laterality": "R", "SeriesDescription": "Knee R, lateral"}, "R"),
        ({"ImageLaterality": "R", "SeriesDescription": "Bilateral knees"}, "R"),
    ],
)
def test_laterality_is_the_images_or_else_the_series(
    save_film: Save, header: dict[str, str], side: str | None
) -> None:
    assert read(save_film(gradient(), **header)).laterality == side


@pytest.mark.parametrize(
    ("orientation", "from_front"),
    [
        (["L", "F"], True),
        (["R", "F"], False),  # mirrored
        (["R", "H"], True),  # upside down
        (["F", "R"], True),  # turned by 90 degrees
        (["LA", "FP"], True),
        (["A", "F"], None),  # seen from the side
        (["L"], None),
        (["left", "foot"], None),
        ("", None),
    ],
)
def test_seen_from_front_is_the_sense_of_patient_orientation(
    save_film: Save, orientation: Any, from_front: bool | None
) -> None:
    with warnings.catch_warnings(action="ignore"):  # pydicom's, of values that are none
        path = save_film(gradient(), PatientOrientation=orientation)
    assert read(path).seen_from_front is from_front


def test_read_dicom_keeps_view_and_series_but_not_the_patient(save_film: Save) -> None:
    header = {"ViewPosition": "PA", "SeriesDescription": " Bilateral PA\r\nfixed flexion "}
    radiograph = read(save_film(gradient(), **header))
    assert radiograph.view == "PA"
    assert radiograph.series == "Bilateral PA fixed flexion"
    assert "Doe" not in repr(radiograph)
    assert "4711" not in repr(radiograph)


def test_read_dicom_takes_garbage_in_the_header_for_absent(save_film: Save) -> None:
    keywords = ("ImageLaterality", "ViewPosition", "PixelSpacing", "RescaleSlope")
    garbled = {"SpecificCharacterSet": "ISO_IR 192", **dict.fromkeys(keywords, "77")}
    path = save_film(gradient(), **garbled)
    # No number, and no text in any alphabet.
    garbage = path.read_bytes().replace(b"\x02\x0077", b"\x02\x00\xfe\xff")
    path.write_bytes(garbage.replace(b"ISO_IR 192", b"\xfeSO_IR 192"))
    assert garbage.count(b"\x02\x00\xfe\xff") == len(keywords)
    radiograph = read(path)
    assert (radiograph.mm_per_px, radiograph.spacing_tag) == (None, None)
    assert radiograph.laterality is None
    assert_reads(path, gradient())
