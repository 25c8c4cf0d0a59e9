"""The decoded frame of a DICOM film, its codestream checked before a codec sees it."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom import FileDataset
from pydicom.encaps import get_frame
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.utils import pixel_array
from pydicom.uid import (
    UID,
    JPEG2000TransferSyntaxes,
    JPEGExtended12Bit,
    JPEGLosslessSV1,
    JPEGLSTransferSyntaxes,
    JPEGTransferSyntaxes,
)

from kneematch.errors import MissingDecoder, NotAnImage
from kneematch.io.dicom_header import one_line
from kneematch.io.intensity import decoding

CODESTREAMS = (*JPEGTransferSyntaxes, *JPEGLSTransferSyntaxes, *JPEG2000TransferSyntaxes)
# GDCM, which pydicom would ask first, hands its pixels over as text: slower and five times the
# memory. It remains for what it alone decodes, JPEG lossless and 12-bit JPEG.
PLUGINS = ("pylibjpeg", "pyjpegls", "pillow", "gdcm")

END = b"\xff\xd9"  # of a JPEG, JPEG-LS or JPEG 2000 codestream
TAIL = 64  # bytes in which the end must lie; what follows it is padding
JPEG_2000_START = b"\xff\x4f\xff\x51"  # SOC and SIZ, also inside a JP2 file
JPEG_FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF, 0xF7}


def decoded(dataset: FileDataset, path: Path) -> NDArray[Any]:
    """(H, W), or (H, W, 3) in RGB; a read-only view of the dataset where nothing is compressed."""
    syntax: UID = dataset.file_meta.TransferSyntaxUID
    with decoding(path, f"DICOM ({one_line(syntax.name)})"):
        if syntax in CODESTREAMS:
            _check_codestream(dataset, path)
        elif not syntax.is_encapsulated and "PixelData" in dataset:
            _check_uncompressed(dataset, path)
        if syntax == JPEGExtended12Bit and dataset.BitsStored > 8:
            # GDCM goes by the codestream and decodes these, but pydicom 3.0 does not ask it to.
            syntax = dataset.file_meta.TransferSyntaxUID = JPEGLosslessSV1
        pixels = pixel_array(
            dataset,
            index=0,
            decoding_plugin=_plugin(syntax, path),
            view_only=True,
            correct_unused_bits=False,  # that would copy every 12-bit film; see _used_bits
        )
        return _used_bits(pixels, dataset)


def _plugin(syntax: UID, path: Path) -> str:
    """The codec to use; none by name where pydicom itself decodes."""
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError as error:
        raise MissingDecoder(
            f"{path}: transfer syntax {one_line(syntax.name)}, which pydicom does not decode; "
            "expected one of the still images' syntaxes; export it uncompressed"
        ) from error
    if not decoder.is_available:
        raise MissingDecoder(
            f"{path}: transfer syntax {syntax.name}, for which no decoder is installed; expected "
            f"one of: {', '.join(decoder.missing_dependencies)}; reinstall kneematch with its "
            "dependencies"
        )
    return next((name for name in PLUGINS if name in decoder.available_plugins), "")


def _check_codestream(dataset: FileDataset, path: Path) -> None:
    """Refuse a cut codestream, over which codecs hang or guess, and one larger than its header."""
    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    if END not in frame[-TAIL:]:
        raise NotAnImage(
            f"{path}: compressed pixels without an end; expected a whole file; "
            "copy or export it again"
        )
    found, stated = _codestream_size(frame), (dataset.Rows, dataset.Columns)
    if found != stated:
        raise NotAnImage(
            f"{path}: compressed pixels of {_text(found)}; expected {_text(stated)}, as the "
            "header says; export it again"
        )


def _check_uncompressed(dataset: FileDataset, path: Path) -> None:
    """Refuse compressed pixels that the header passes off as plain, lest they be shown as noise."""
    if dataset["PixelData"].is_undefined_length:
        raise NotAnImage(
            f"{path}: compressed pixels and a header that does not say how; expected a transfer "
            "syntax; export it again"
        )


def _text(size: tuple[int, int] | None) -> str:
    return "no known kind" if size is None else f"{size[0]} x {size[1]} pixels"


def _codestream_size(frame: bytes) -> tuple[int, int] | None:
    """(height, width) as the codestream itself says it, or None."""
    start = frame.find(JPEG_2000_START)
    if start >= 0:
        right, bottom, left, top = struct.unpack_from(">4I", frame, start + 8)
        return bottom - top, right - left
    at = 2  # behind the start of the image
    while at + 9 <= len(frame) and frame[at] == 0xFF:
        marker, length = frame[at + 1], int.from_bytes(frame[at + 2 : at + 4])
        if marker in JPEG_FRAMES:
            height, width = struct.unpack_from(">2H", frame, at + 5)
            return height, width
        at += 1 if marker == 0xFF else 2 + length  # a marker may have fill bytes before it
    return None


def _used_bits(pixels: NDArray[Any], dataset: FileDataset) -> NDArray[Any]:
    """Drop what lies outside the bits stored, such as an overlay, and only if something does."""
    if pixels.dtype.kind == "f" or pixels.ndim == 3:
        return pixels
    allocated, stored = 8 * pixels.dtype.itemsize, int(dataset.BitsStored)
    signed = pixels.dtype.kind == "i"
    low, high = (-(1 << stored - 1), (1 << stored - 1) - 1) if signed else (0, (1 << stored) - 1)
    if low <= pixels.min() and pixels.max() <= high:
        return pixels
    above = allocated - 1 - int(dataset.get("HighBit", stored - 1))
    used: NDArray[Any] = np.left_shift(pixels, max(above, 0))
    np.right_shift(used, allocated - stored, out=used)
    return used
