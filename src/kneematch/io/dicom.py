"""DICOM films, through pydicom and decoders under permissive licences."""

import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, FileDataset
from pydicom.filereader import read_dataset, read_partial, read_preamble
from pydicom.tag import BaseTag
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)

from kneematch.errors import NotARadiograph
from kneematch.io.dicom_header import (
    header_number,
    header_text,
    header_value,
    laterality,
    one_line,
    spacing,
)
from kneematch.io.dicom_pixels import decoded
from kneematch.io.intensity import (
    MAX_BYTES,
    ROWS_AT_ONCE,
    Stored,
    check_size,
    decoding,
    grey_channel,
    unit_range,
)
from kneematch.io.radiograph import Radiograph

PIXEL_DATA = 0x7FE00010  # the last element of a film
PIXEL_KEYWORDS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
CHUNK = 1 << 20  # bytes inflated at once


def read_dicom(file: BinaryIO, path: Path) -> Radiograph:
    """Read a DICOM that is open at its beginning."""
    dataset = _dataset(file, path)
    _check_kind(dataset, path)
    mm_per_px, spacing_tag = spacing(dataset, path)
    stored = _stored(dataset, path)
    return Radiograph(
        unit_range(path, stored),
        mm_per_px=mm_per_px,
        spacing_tag=spacing_tag,
        laterality=laterality(dataset),
        view=header_text(dataset, "ViewPosition"),
        series=header_text(dataset, "SeriesDescription"),
        polarity_tag=header_text(dataset, "PhotometricInterpretation"),
    )


def _dataset(file: BinaryIO, path: Path) -> FileDataset:
    with decoding(path, "DICOM"):
        _check_inflated(file, path)
        dataset = read_partial(file, _no_more_film, force=True)  # the preamble may be missing
        stated = dataset.file_meta.get("TransferSyntaxUID")
        dataset.file_meta.TransferSyntaxUID = UID(stated or _native_syntax(dataset))
    return dataset


def _no_more_film(tag: BaseTag, vr: str | None, length: int) -> bool:
    """Whether what follows is behind the pixels: signatures, padding, or megabytes of zeros."""
    return tag > PIXEL_DATA or tag.group == 0


def _check_inflated(file: BinaryIO, path: Path) -> None:
    """Refuse a deflated bomb: pydicom inflates the whole of such a file at once."""
    read_preamble(file, force=True)
    meta = read_dataset(file, False, True, stop_when=lambda tag, vr, length: tag.group != 2)
    if meta.get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        size, waiting = 0, file.read(CHUNK)
        while waiting and not inflater.eof:
            size += len(inflater.decompress(waiting, CHUNK))
            if size > MAX_BYTES:
                raise NotARadiograph(
                    f"{path}: a deflated DICOM of more than {MAX_BYTES} bytes; expected one film; "
                    "check the file"
                )
            waiting = inflater.unconsumed_tail or file.read(CHUNK)
    file.seek(0)


def _native_syntax(dataset: FileDataset) -> UID:
    """What the reader found, for a file without the group that says it."""
    implicit, little_endian = dataset.original_encoding
    if implicit:
        return ImplicitVRLittleEndian
    return ExplicitVRLittleEndian if little_endian else ExplicitVRBigEndian


def _check_kind(dataset: FileDataset, path: Path) -> None:
    """Refuse what is no single frame of film, before anything is decoded."""
    if not any(keyword in dataset for keyword in PIXEL_KEYWORDS):
        raise NotARadiograph(
            f"{path}: a DICOM without pixels ({_class_name(dataset)}); expected a film; "
            "leave it out, or copy it again if it is one"
        )
    check_size(path, _count(dataset, "Rows"), _count(dataset, "Columns"))
    frames = header_number(dataset, "NumberOfFrames") or 1
    if frames > 1:
        raise NotARadiograph(
            f"{path}: {frames:g} frames; expected one; save the film alone in a file"
        )
    photometric = header_text(dataset, "PhotometricInterpretation")
    if photometric == "PALETTE COLOR" or header_value(dataset, "BitsAllocated") == 1:
        raise NotARadiograph(
            f"{path}: {photometric} of {header_value(dataset, 'BitsAllocated')} bits; "
            "expected grey levels of 8 to 16 bits; export it as greyscale"
        )


def _class_name(dataset: FileDataset) -> str:
    kind = header_value(dataset, "SOPClassUID") or header_value(
        dataset.file_meta, "MediaStorageSOPClassUID"
    )
    return one_line(kind.name) if isinstance(kind, UID) else "of no stated class"


def _count(dataset: Dataset, keyword: str) -> int:
    return int(header_number(dataset, keyword) or 0)


def _stored(dataset: FileDataset, path: Path) -> Stored:
    """The frame in stored values, or after the modality LUT where there is one."""
    pixels = decoded(dataset, path)
    if pixels.ndim == 3:
        full_scale = 2 ** _count(dataset, "BitsStored") - 1
        return Stored(grey_channel(path, pixels, full_scale))
    padding = _padding(dataset, pixels)
    # The rescaled values are mapped to [0, 1] anyway, so of slope and intercept the sign remains.
    negative = (header_number(dataset, "RescaleSlope") or 1) < 0
    table = header_value(dataset, "ModalityLUTSequence")
    if table:
        negative = False
        with decoding(path, "DICOM with a modality LUT"):
            pixels = _looked_up(pixels, table[0], "<" if dataset.original_encoding[1] else ">")
    return Stored(pixels, inverted=negative != _lowest_is_white(dataset), padding=padding)


def _lowest_is_white(dataset: Dataset) -> bool:
    """MONOCHROME1 and the shape INVERSE say one thing twice (PS3.3, C.7.6.1): inverted once."""
    return (
        header_text(dataset, "PhotometricInterpretation") == "MONOCHROME1"
        or header_text(dataset, "PresentationLUTShape") == "INVERSE"
    )


def _padding(dataset: Dataset, pixels: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Where the stored values are those that pad the film to a rectangle."""
    value = header_number(dataset, "PixelPaddingValue")
    if value is None:
        return None
    limit = header_number(dataset, "PixelPaddingRangeLimit")
    low, high = sorted((value, value if limit is None else limit))
    mask: NDArray[np.bool_] = pixels >= low
    mask &= pixels <= high
    # A film of nothing but padding is judged by its values.
    return mask if mask.any() and not mask.all() else None


def _looked_up(pixels: NDArray[Any], table: Dataset, order: str) -> NDArray[np.float32]:
    """The modality LUT's output; values beyond its ends take its first and last entry."""
    entries, first, _ = table.LUTDescriptor
    entries = entries or 1 << 16
    data = table.LUTData
    if isinstance(data, bytes):
        data = np.frombuffer(data, f"{order}u2" if len(data) >= 2 * entries else "u1")
    lut = np.asarray(data, np.float32)[:entries]
    output = np.empty(pixels.shape, np.float32)
    for start in range(0, len(pixels), ROWS_AT_ONCE):  # the indices take 8 bytes a pixel
        rows = slice(start, start + ROWS_AT_ONCE)
        np.take(lut, pixels[rows].astype(np.int64) - first, mode="clip", out=output[rows])
    return output
