"""Decode the frame of a DICOM film, after its codestream was checked against the header.

JPEG, JPEG-LS, JPEG 2000 and HTJ2K frames are decoded by imagecodecs, as a plug-in of pydicom.
"""

import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset
from pydicom.encaps import encapsulate, get_frame
from pydicom.pixels.common import PhotometricInterpretation
from pydicom.pixels.decoders.base import Decoder, DecodeRunner, get_decoder
from pydicom.pixels.processing import convert_color_space
from pydicom.pixels.utils import get_expected_length
from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    UID,
    HTJ2KLossless,
    HTJ2KLosslessRPCL,
    JPEG2000Lossless,
    JPEGLSTransferSyntaxes,
    JPEGTransferSyntaxes,
)

from kneematch.errors import MissingDecoder, NotAnImage
from kneematch.films.dicom_header import uid_name
from kneematch.films.limits import decoding
from kneematch.films.radiograph import ROWS_AT_ONCE, grey_from_rgb

PLUGIN: Final = "kneematch"
JPEG_2000_SYNTAXES: Final = (JPEG2000Lossless, JPEG2000, HTJ2KLossless, HTJ2KLosslessRPCL, HTJ2K)
CODESTREAM_SYNTAXES: Final = (*JPEGTransferSyntaxes, *JPEGLSTransferSyntaxes, *JPEG_2000_SYNTAXES)
# pydicom asks a plug-in for this name, and for `is_available`.
DECODER_DEPENDENCIES: Final = dict.fromkeys(CODESTREAM_SYNTAXES, ("imagecodecs",))
ADOBE: Final = b"\xff\xee\x00\x0eAdobe"  # the JPEG segment that says which colours are stored
YBR: Final = ("YBR_FULL", "YBR_FULL_422")
END: Final = b"\xff\xd9"  # of a JPEG, JPEG-LS or JPEG 2000 codestream
TAIL: Final = 64  # bytes in which the end must lie; what follows it is padding
JPEG_START: Final = b"\xff\xd8"  # SOI, of JPEG-LS, too
JPEG_2000_START: Final = b"\xff\x4f\xff\x51"  # SOC and SIZ
JPEG_FRAMES: Final = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}  # SOF markers


def decode_pixels(dataset: Dataset, path: Path) -> NDArray[Any]:
    """Return the stored grey values (H, W): a read-only view where nothing is compressed.

    Raises:
        NotARadiograph: the pixels are in colour.
        MissingDecoder: the transfer syntax cannot be decoded.
    """
    syntax: UID = dataset.file_meta.TransferSyntaxUID
    with decoding(path, f"DICOM ({uid_name(syntax) or 'unknown transfer syntax'})"):
        decoder = _decoder(syntax, path)
        if syntax in CODESTREAM_SYNTAXES:
            _check_codestream(dataset, path)
        elif not syntax.is_encapsulated and "PixelData" in dataset:
            _check_uncompressed(dataset, path)
        options: dict[str, Any] = {
            "raw": True,  # colours are converted below, a few rows at a time
            "view_only": True,
            "correct_unused_bits": False,  # would copy every 12-bit film; see _drop_unused_bits
            "decoding_plugin": PLUGIN if syntax in CODESTREAM_SYNTAXES else "",
        }
        pixels, layout = decoder.as_array(dataset, index=0, **options)
        if pixels.ndim == 2:
            return _drop_unused_bits(pixels, dataset)
        ybr = layout["photometric_interpretation"] in YBR
        return grey_from_rgb(path, _rgb_bands(pixels, ybr), 2**dataset.BitsStored - 1)


def _rgb_bands(pixels: NDArray[Any], ybr: bool) -> Iterator[NDArray[Any]]:
    for start in range(0, len(pixels), ROWS_AT_ONCE):
        band = pixels[start : start + ROWS_AT_ONCE]
        yield convert_color_space(band, "YBR_FULL", "RGB") if ybr else band


def _decoder(syntax: UID, path: Path) -> Decoder:
    name = uid_name(syntax) or "that is not registered"
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise MissingDecoder(
            f"{path}: transfer syntax {name}, which pydicom does not decode; "
            "expected one of the still images' syntaxes; export it uncompressed"
        ) from None
    if syntax in CODESTREAM_SYNTAXES and PLUGIN not in decoder.available_plugins:
        raise MissingDecoder(
            f"{path}: transfer syntax {name}, for which no decoder is installed; expected "
            "imagecodecs; reinstall kneematch with its dependencies"
        )
    return decoder


def _check_uncompressed(dataset: Dataset, path: Path) -> None:
    """Refuse pixels that are compressed, which would read as noise, or cut."""
    if dataset["PixelData"].is_undefined_length:
        raise NotAnImage(
            f"{path}: compressed pixels and a header that does not say how; expected a "
            "transfer syntax; export it again"
        )
    found, stated = len(dataset.PixelData), get_expected_length(dataset)
    if found < stated:
        raise NotAnImage(
            f"{path}: {found} bytes of pixels; expected {stated}, as the header says; "
            "copy or export it again"
        )


def _check_codestream(dataset: Dataset, path: Path) -> None:
    """Refuse a codestream that is cut, which codecs fill up, or not of the header's size."""
    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    if END not in frame[-TAIL:]:
        raise NotAnImage(
            f"{path}: compressed pixels without an end; expected a whole file; "
            "copy or export it again"
        )
    start = 0 if frame.startswith(JPEG_START) else frame.find(JPEG_2000_START)
    if start > 0:  # the boxes of a JP2 file, which DICOM does not allow; pydicom hangs on odd ones
        frame = frame[start:]
        dataset.PixelData = encapsulate([frame])
    found = _codestream_shape(frame)
    stated = (dataset.Rows, dataset.Columns, dataset.SamplesPerPixel)
    if found is None or found[:2] != stated[:2]:
        size = "no known kind" if found is None else f"{found[0]} x {found[1]} pixels"
        raise NotAnImage(
            f"{path}: compressed pixels of {size}; expected {stated[0]} x {stated[1]} pixels, as "
            "the header says; export it again"
        )
    if found[2] != stated[2]:
        raise NotAnImage(
            f"{path}: compressed pixels of {found[2]} samples each; expected {stated[2]}, as the "
            "header says; export it again"
        )


def _codestream_shape(frame: bytes) -> tuple[int, int, int] | None:
    """Return (height, width, samples) as the codestream itself states them, or None."""
    if frame.startswith(JPEG_2000_START):
        right, bottom, left, top = struct.unpack_from(">4I", frame, 8)
        (samples,) = struct.unpack_from(">H", frame, 40)
        return bottom - top, right - left, samples
    at = 2  # behind the start of the image
    while at + 10 <= len(frame) and frame[at] == 0xFF:
        marker, length = frame[at + 1], int.from_bytes(frame[at + 2 : at + 4])
        if marker in JPEG_FRAMES:
            height, width, samples = struct.unpack_from(">2HB", frame, at + 5)
            return height, width, samples
        at += 1 if marker == 0xFF else 2 + length  # a marker may have fill bytes before it
    return None


def _drop_unused_bits(pixels: NDArray[Any], dataset: Dataset) -> NDArray[Any]:
    """Clear bits outside the stored ones, such as an overlay; copies only if any is set."""
    if pixels.dtype.kind == "f":
        return pixels
    allocated, stored = 8 * pixels.dtype.itemsize, int(dataset.BitsStored)
    signed = pixels.dtype.kind == "i"
    low, high = (-(1 << stored - 1), (1 << stored - 1) - 1) if signed else (0, (1 << stored) - 1)
    if pixels.max() <= high and (not signed or low <= pixels.min()):
        return pixels
    above = allocated - 1 - int(dataset.get("HighBit", stored - 1))
    used: NDArray[Any] = np.left_shift(pixels, max(above, 0))
    np.right_shift(used, allocated - stored, out=used)
    return used


def is_available(syntax: UID) -> bool:
    """Return whether the plug-in decodes a transfer syntax; pydicom calls it."""
    return syntax in CODESTREAM_SYNTAXES and find_spec("imagecodecs") is not None


def decode_frame(frame: bytes, runner: DecodeRunner) -> bytes:
    """Decode one frame and tell the runner how its samples are laid out.

    Colours are returned as they are stored, and pydicom converts YBR to RGB. The exceptions are
    JPEG 2000's own colour transforms and a JPEG with an Adobe segment, which are undone here.
    """
    import imagecodecs  # loaded when the first compressed film is read

    syntax = runner.transfer_syntax
    if syntax in JPEGTransferSyntaxes:
        as_stored = runner.samples_per_pixel > 1 and ADOBE not in frame
        space = "RGB" if as_stored else None  # equal spaces: no conversion
        # Not `jpeg_decode`: on broken frames that one tries another codec, which may not return.
        pixels = imagecodecs.jpeg8_decode(frame, colorspace=space, outcolorspace=space)
    elif syntax in JPEGLSTransferSyntaxes:
        pixels = imagecodecs.jpegls_decode(frame)
    else:
        pixels = imagecodecs.jpeg2k_decode(frame)
        if runner.photometric_interpretation in ("YBR_ICT", "YBR_RCT"):
            runner.set_option("photometric_interpretation", PhotometricInterpretation.RGB)
    runner.set_option("bits_allocated", 8 * pixels.itemsize)
    if pixels.ndim == 3:
        runner.set_option("planar_configuration", 0)  # (H, W, samples)
    return cast(bytes, np.ascontiguousarray(pixels).data)  # any buffer will do


for _syntax in CODESTREAM_SYNTAXES:
    get_decoder(_syntax).add_plugin(PLUGIN, (__name__, decode_frame.__name__))
