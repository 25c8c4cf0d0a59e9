"""Every transfer syntax comes back with the pixels that were stored, or is refused in one line."""

import io
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path

import imagecodecs
import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.pixels.processing import convert_color_space
from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    MPEG2MPML,
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    HTJ2KLossless,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from dicom_films import assert_reads, assert_refused, encode, gradient
from kneematch.errors import FilmError, MissingDecoder, NotAnImage
from kneematch.films.read import read, read_isolated

SHIPPED = Path(pydicom.__file__).parent / "data" / "test_files"

Save = Callable[..., Path]


UNCOMPRESSED = ImplicitVRLittleEndian, ExplicitVRLittleEndian
LOSSLESS = RLELossless, JPEGLSLossless, JPEG2000Lossless, JPEGLosslessSV1


@pytest.mark.parametrize("syntax", [*UNCOMPRESSED, *LOSSLESS], ids=lambda syntax: syntax.name)
def test_read_is_exact_for_uncompressed_and_lossless_films(save_film: Save, syntax: UID) -> None:
    for bits in (8, 10, 12, 14, 16):
        assert_reads(save_film(gradient(bits), bits, syntax), gradient(bits))


def test_read_is_exact_for_every_lossless_jpeg(save_film: Save) -> None:
    stored, how = gradient(16), {"lossless": True, "bitspersample": 16}
    for predictor in range(1, 8):
        frame = imagecodecs.jpeg8_encode(stored, predictor=predictor, **how)
        assert_reads(save_film(stored, 16, JPEGLossless, frame=frame), stored)
    frame = imagecodecs.htj2k_encode(stored)
    assert_reads(save_film(stored, 16, HTJ2KLossless, frame=frame), stored)


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_read_isolated_reduces_jpeg_2000_to_copies_with_the_same_first_pixel(
    save_film: Save, bits: int
) -> None:
    y, x = np.mgrid[:1203, :1001]
    bell = np.exp(-((x - 600.25) ** 2 + (y - 400.75) ** 2) / (2 * 40**2))
    stored = np.rint(bell * (2**bits - 1)).astype(np.uint8 if bits == 8 else np.uint16)
    path = save_film(stored, bits, JPEG2000Lossless, PixelSpacing=[0.3, 0.3])
    film = read_isolated(path, reduced=True)
    assert (film.size, film.copy_of, film.reduction) == ((602, 501), (1203, 1001), 2)
    assert film.mm_per_px == 0.6
    rows, columns = np.mgrid[:602, :501]
    weight = film.pixels / film.pixels.sum()
    assert (2 * weight * columns).sum() == pytest.approx(600.25, abs=0.05)
    assert (2 * weight * rows).sum() == pytest.approx(400.75, abs=0.05)


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, JPEGLosslessSV1, JPEG2000Lossless])
@pytest.mark.parametrize("also_whole", [False, True])
def test_read_isolated_reduces_other_films_to_means_of_their_pixels(
    save_film: Save, syntax: UID, also_whole: bool
) -> None:
    stored = gradient(12, 1001, 1203)
    stored[:100] = 5
    path = save_film(stored, 12, syntax, PixelSpacing=[0.3, 0.3], PixelPaddingValue=5)
    film, whole = read_isolated(path, reduced=True, also_whole=also_whole), read_isolated(path)
    if also_whole:  # nothing is saved by reading less
        assert film.copy_of is None
        film = film.reduced()
    assert (film.size, film.copy_of, film.reduction) == ((500, 601), (1001, 1203), 2)
    assert (film.corner, film.mm_per_px) == (0.0, 0.6)
    means = whole.pixels[:1000, :1202].reshape(500, 2, 601, 2).mean((1, 3))
    assert film.pixels == pytest.approx(means, abs=1e-6)
    assert (film.pixels == whole.reduced().pixels).all()
    assert film.pixels[:50].max() == 0
    small = save_film(gradient(12, 959, 1000), 12, syntax)
    assert read_isolated(small, reduced=True).copy_of is None


@pytest.mark.parametrize("bits", [8, 12])
def test_read_is_close_for_lossy_films(save_film: Save, bits: int) -> None:
    stored = gradient(bits)
    j2k = {"bitspersample": bits, "reversible": False, "codecformat": "J2K"}
    frames = {
        JPEGExtended12Bit: imagecodecs.jpeg8_encode(stored, 97, bitspersample=bits),
        JPEG2000: imagecodecs.jpeg2k_encode(stored, 60, **j2k),
        HTJ2K: imagecodecs.htj2k_encode(stored, reversible=False),
    }
    if bits == 8:
        frames[JPEGBaseline8Bit] = imagecodecs.jpeg8_encode(stored, 97)
    for syntax, frame in frames.items():
        assert_reads(save_film(stored, bits, syntax, frame=frame), stored, within=0.01)


def test_read_keeps_the_order_of_signed_values(save_film: Save) -> None:
    plain = product([ExplicitVRLittleEndian], (8, 9, 16))
    for syntax, bits in [*plain, *product(LOSSLESS[:3], [12])]:
        stored = gradient(bits).astype(np.int32) - 2 ** (bits - 1)
        path = save_film(stored.astype(np.int8 if bits <= 8 else np.int16), bits, syntax)
        assert_reads(path, gradient(bits))
    stored = (gradient().astype(np.int32) - 2048).astype(np.int16)
    for syntax in (JPEGLosslessSV1, JPEG2000Lossless):  # without signs in the codestream
        frame = encode(stored.view(np.uint16) & 0xFFF, 12, syntax)
        assert_reads(save_film(stored, 12, syntax, frame=frame), gradient())


def test_read_drops_bits_above_the_stored_ones(save_film: Save) -> None:
    for kind, lowest in [(np.uint16, 0), (np.int16, -2048)]:
        overlaid = (gradient().astype(np.int32) + lowest).astype(kind)
        overlaid.view(np.uint16)[::2] |= 0x8000
        assert_reads(save_film(overlaid), gradient())
    assert_reads(save_film((gradient() << 4) | 5, HighBit=15), gradient())  # and below them


@pytest.mark.parametrize("bits", [8, 16])
def test_read_reads_grey_stored_as_rgb(save_film: Save, bits: int) -> None:
    stored = np.repeat(gradient(bits)[..., None], 3, axis=2)
    expected = gradient(bits)
    assert_reads(save_film(stored, bits), expected)
    frames = {
        JPEGLSLossless: imagecodecs.jpegls_encode(stored),
        JPEG2000Lossless: imagecodecs.jpeg2k_encode(stored, codecformat="J2K", mct=True),
        JPEGLosslessSV1: imagecodecs.jpeg8_encode(
            stored, lossless=True, colorspace="RGB", outcolorspace="RGB"
        ),
    }
    for syntax, frame in frames.items():
        photometric = "YBR_RCT" if syntax == JPEG2000Lossless else "RGB"
        path = save_film(stored, bits, syntax, frame=frame, PhotometricInterpretation=photometric)
        assert_reads(path, expected)


def test_read_converts_ybr_once(save_film: Save) -> None:
    grey = np.repeat(gradient(8)[..., None], 3, axis=2)
    expected = gradient(8)
    ybr = convert_color_space(grey, "RGB", "YBR_FULL")
    assert_reads(save_film(ybr, 8, PhotometricInterpretation="YBR_FULL"), expected)
    jfif, adobe = io.BytesIO(), io.BytesIO()
    Image.fromarray(grey).save(jfif, format="JPEG", quality=97)
    Image.fromarray(grey).save(adobe, format="JPEG", quality=97, keep_rgb=True)
    for frame, photometric in [
        (jfif.getvalue(), "YBR_FULL_422"),
        (jfif.getvalue(), "RGB"),  # contradicted by the JFIF segment
        (adobe.getvalue(), "RGB"),
    ]:
        path = save_film(
            grey, 8, JPEGBaseline8Bit, frame=frame, PhotometricInterpretation=photometric
        )
        assert_reads(path, expected, within=0.02)


def test_read_reads_12_bit_jpeg() -> None:
    for name in ("JPEG-lossy.dcm", "JPGExtended.dcm"):
        pixels = read(SHIPPED / name).pixels
        # The values that pydicom's own tests expect, of a film from 0 to 264.
        found = pixels[420, 140], pixels[230, 120]
        np.testing.assert_allclose(found, (244 / 264, 95 / 264), atol=1e-6)


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, *LOSSLESS])
def test_read_never_takes_a_cut_file_for_whole(save_film: Save, syntax: UID) -> None:
    path = save_film(gradient(), 12, syntax)
    whole = path.read_bytes()
    for length in np.linspace(140, len(whole) - 16, 25).astype(int):
        path.write_bytes(whole[:length])
        assert_refused(path, FilmError, "DICOM|cut off|no pixels|header")
    if syntax == ExplicitVRLittleEndian:
        path.write_bytes(whole[:-100])
        stated = 2 * gradient().size
        assert_refused(path, NotAnImage, f"{stated - 100} of {stated} bytes")
    if syntax in LOSSLESS[1:]:  # the end of the codestream is missing, not that of its sequence
        frame = encode(gradient(), 12, syntax)
        path = save_film(gradient(), 12, syntax, frame=frame[: len(frame) // 2])
        assert_refused(path, NotAnImage, "cut off")


def test_read_survives_jpeg_lossless_with_one_wrong_byte(save_film: Save) -> None:
    frame = encode(gradient(), 12, JPEGLosslessSV1)
    for segment, offset, value in [
        (b"\xff\xc3", 4, 126),  # the precision: a segmentation fault in other decoders
        (b"\xff\xc4", 0, 0),  # the marker of a table: an abort
    ]:
        spoilt = bytearray(frame)
        spoilt[frame.index(segment) + offset] = value
        path = save_film(gradient(), 12, JPEGLosslessSV1, frame=bytes(spoilt))
        assert_refused(path, NotAnImage, "cannot be decoded")


def test_read_does_not_wait_for_the_end_of_a_jp2_box(save_film: Save) -> None:
    stored = gradient(12)
    frame = bytearray(imagecodecs.jpeg2k_encode(stored, bitspersample=12, codecformat="JP2"))
    box = frame.index(b"ftyp") - 4
    frame[box : box + 4] = bytes(4)
    path = save_film(stored, 12, JPEG2000Lossless, frame=bytes(frame))
    assert_reads(path, stored)


def test_read_refuses_a_codestream_of_another_size_than_its_header(save_film: Save) -> None:
    for form, at, value, message in [
        (">2I", 8, (60000, 60000), "60000 x 60000 x 1 samples, but the header disagrees"),
        (">H", 40, (16000,), "60 x 81 x 16000 samples"),
    ]:
        frame = bytearray(encode(gradient(), 12, JPEG2000Lossless))
        struct.pack_into(form, frame, at, *value)
        path = save_film(gradient(), 12, JPEG2000Lossless, frame=bytes(frame))
        assert_refused(path, NotAnImage, message)
    for unknown in (b"\xff\xd8" + bytes(20) + b"\xff\xd9", b"\0" * 20 + b"\xff\xd9"):
        path = save_film(gradient(), 12, JPEGLosslessSV1, frame=unknown)
        assert_refused(path, NotAnImage, "unknown kind")


def test_read_refuses_pixels_that_it_cannot_decode(save_film: Save) -> None:
    path = save_film(gradient(), 12, MPEG2MPML, frame=b"\0\0\1\xb3" + bytes(100))
    assert_refused(path, MissingDecoder, "MPEG2")
    path = save_film(gradient(), 12, DeflatedExplicitVRLittleEndian)
    assert_refused(path, MissingDecoder, "deflated")
    path = save_film(gradient(), 12, RLELossless)
    whole = path.read_bytes()
    meta_length = 12 + struct.unpack_from("<I", whole, 140)[0]
    path.write_bytes(whole[132 + meta_length :])
    assert_refused(path, NotAnImage, "does not say how")
