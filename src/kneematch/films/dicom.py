"""Read a radiograph from a DICOM file: its header, its pixels, and how their values are meant."""

import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset
from pydicom.datadict import tag_for_keyword
from pydicom.dataset import FileMetaDataset
from pydicom.filereader import read_dataset, read_partial, read_preamble
from pydicom.pixels.common import PhotometricInterpretation
from pydicom.tag import BaseTag
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)

from kneematch.errors import NotARadiograph
from kneematch.films.dicom_header import (
    header_number,
    header_text,
    header_value,
    laterality,
    lowest_is_white,
    seen_from_front,
    spacing,
    uid_name,
)
from kneematch.films.dicom_pixels import decode_pixels
from kneematch.films.limits import check_size, decoding, memory_budget
from kneematch.films.radiograph import ROWS_AT_ONCE, Radiograph, unit_range

PIXEL_DATA: Final = 0x7FE00010  # the last element of a film
PIXEL_GROUP: Final = 0x7FE0
PIXEL_KEYWORDS: Final = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
PHOTOMETRICS: Final = {kind.value for kind in PhotometricInterpretation}
MAX_ELEMENT_BYTES: Final = 1 << 20  # beside the pixels; a lookup table has 128 kB
MAX_READS: Final = 300_000  # of an inflated header, at least one per element
INFLATED_AT_ONCE: Final = 1 << 20  # bytes


def read_dicom(file: BinaryIO, path: Path) -> Radiograph:
    """Read a DICOM file that is open at its beginning."""
    dataset = _parse(file, path, last=PIXEL_DATA)
    _check_kind(dataset, path)
    mm_per_px, spacing_tag = spacing(dataset, path)
    return Radiograph(
        _unit_pixels(dataset, path),
        mm_per_px=mm_per_px,
        spacing_tag=spacing_tag,
        laterality=laterality(dataset),
        seen_from_front=seen_from_front(dataset),
        view=header_text(dataset, "ViewPosition"),
        series=header_text(dataset, "SeriesDescription"),
        polarity_tag=header_text(dataset, "PhotometricInterpretation"),
    )


def parse_header(file: BinaryIO, path: Path, keywords: tuple[str, ...]) -> Dataset:
    """Parse the elements up to the last of the keywords or, without any, up to the pixels."""
    tags = [tag_for_keyword(keyword) or 0 for keyword in keywords]
    return _parse(file, path, last=max(tags, default=(PIXEL_GROUP << 16) - 1))


def _parse(file: BinaryIO, path: Path, last: int) -> Dataset:
    """Parse a DICOM file up to the tag `last`, with or without preamble and meta group.

    What follows the pixels (signatures, padding, megabytes of zeros) is never read. Elements too
    long for a header are left out, as garbage is.
    """

    def beyond(tag: BaseTag, vr: str | None, length: int) -> bool:
        return tag > last or tag.group == 0

    with decoding(path, "DICOM"):
        read_preamble(file, force=True)
        meta = read_dataset(file, False, True, stop_when=lambda tag, vr, length: tag.group != 2)
        if meta.get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
            dataset = read_dataset(_inflate(file, path), False, True, stop_when=beyond)
            dataset.file_meta = FileMetaDataset(meta)
        else:
            file.seek(0)
            dataset = read_partial(file, beyond, force=True)
        stated = dataset.file_meta.get("TransferSyntaxUID")
        dataset.file_meta.TransferSyntaxUID = UID(stated or _native_syntax(dataset))
        for tag, element in list(dataset.items()):
            value = element.value if tag.group != PIXEL_GROUP else None
            if isinstance(value, bytes) and len(value) > MAX_ELEMENT_BYTES:
                del dataset[tag]
    return dataset


def _inflate(file: BinaryIO, path: Path) -> BinaryIO:
    """Inflate the rest of a file, within the memory that the file may take."""
    limit = memory_budget(path) // 3  # the inflated file, the pixels in it, and the film
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    inflated, waiting = _CountedReads(), file.read(INFLATED_AT_ONCE)
    inflated.path = path
    while waiting and not inflater.eof:
        inflated.write(inflater.decompress(waiting, INFLATED_AT_ONCE))
        if inflated.tell() > limit:
            raise NotARadiograph(
                f"{path}: a deflated DICOM of more than {limit} bytes; expected one film; "
                "check the file"
            )
        waiting = inflater.unconsumed_tail or file.read(INFLATED_AT_ONCE)
    if not inflater.eof:
        raise EOFError  # a cut file
    inflated.seek(0)
    return inflated


class _CountedReads(io.BytesIO):
    """A buffer with a limit on reads: a parsed element takes up to 150 times its own bytes."""

    path: Path
    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        if self.reads > MAX_READS:
            raise NotARadiograph(
                f"{self.path}: a header of more than {MAX_READS // 3} elements; expected some "
                "hundred; check the file"
            )
        return super().read(size)


def _native_syntax(dataset: Dataset) -> UID:
    """Return the syntax that the parser found, for a file without the group that states it."""
    implicit, little_endian = dataset.original_encoding
    if implicit:
        return ImplicitVRLittleEndian
    return ExplicitVRLittleEndian if little_endian else ExplicitVRBigEndian


def _check_kind(dataset: Dataset, path: Path) -> None:
    """Refuse what is not a single frame of film, before anything is decoded."""
    if not any(keyword in dataset for keyword in PIXEL_KEYWORDS):
        kind = header_value(dataset, "SOPClassUID") or header_value(
            dataset.file_meta, "MediaStorageSOPClassUID"
        )
        raise NotARadiograph(
            f"{path}: a DICOM without pixels ({uid_name(kind) or 'of no known class'}); expected "
            "a film; leave it out, or copy it again if it is one"
        )
    samples, bits = _count(dataset, "SamplesPerPixel"), _count(dataset, "BitsAllocated")
    # At the peak: a decoder's 32-bit samples and two copies of the decoded ones, or the result.
    bytes_per_px = 4 + samples * (4 + bits // 4)
    check_size(path, _count(dataset, "Rows"), _count(dataset, "Columns"), bytes_per_px)
    if (header_number(dataset, "NumberOfFrames") or 1) > 1:
        raise NotARadiograph(
            f"{path}: more than one frame; expected one; save the film alone in a file"
        )
    photometric = header_text(dataset, "PhotometricInterpretation")
    if photometric == "PALETTE COLOR" or bits == 1:
        raise NotARadiograph(
            f"{path}: {'pixels of 1 bit' if bits == 1 else photometric}; "
            "expected grey levels of 8 to 16 bits; export it as greyscale"
        )
    if photometric not in PHOTOMETRICS:
        raise NotARadiograph(
            f"{path}: no known PhotometricInterpretation; expected MONOCHROME1 or MONOCHROME2; "
            "correct the header or export it again"
        )


def _count(dataset: Dataset, keyword: str) -> int:
    return int(header_number(dataset, keyword) or 0)


def _unit_pixels(dataset: Dataset, path: Path) -> NDArray[np.float32]:
    """Return the frame (H, W) in [0, 1], by way of the modality LUT where there is one."""
    pixels = decode_pixels(dataset, path)
    if _count(dataset, "SamplesPerPixel") > 1:
        return unit_range(path, pixels)
    padding = _padding(dataset, pixels)
    # Only the sign of the slope matters, since the values are mapped to [0, 1] afterwards.
    negative = (header_number(dataset, "RescaleSlope") or 1) < 0
    table = header_value(dataset, "ModalityLUTSequence")
    if table:
        negative = False
        with decoding(path, "DICOM with a modality LUT"):
            pixels = _apply_lut(pixels, table[0], "<" if dataset.original_encoding[1] else ">")
    inverted = negative != lowest_is_white(dataset)
    return unit_range(path, pixels, inverted=inverted, padding=padding)


def _padding(dataset: Dataset, pixels: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Return where (H, W) stored values pad the film to a rectangle; None if nowhere."""
    value = header_number(dataset, "PixelPaddingValue")
    if value is None:
        return None
    limit = header_number(dataset, "PixelPaddingRangeLimit")
    low, high = sorted((value, value if limit is None else limit))
    mask: NDArray[np.bool_] = pixels >= low
    mask &= pixels <= high
    return mask if mask.any() and not mask.all() else None


def _apply_lut(pixels: NDArray[Any], table: Dataset, order: str) -> NDArray[np.float32]:
    """Apply a modality LUT; values beyond its ends take its first and last entry."""
    entries, first, _ = table.LUTDescriptor
    entries = entries or 1 << 16
    data = table.LUTData
    if isinstance(data, bytes):
        data = np.frombuffer(data, f"{order}u2" if len(data) >= 2 * entries else "u1")
    lut = np.asarray(data, np.float32)[:entries]
    output = np.empty(pixels.shape, np.float32)
    for start in range(0, len(pixels), ROWS_AT_ONCE):  # the indices take 8 bytes per pixel
        rows = slice(start, start + ROWS_AT_ONCE)
        np.take(lut, pixels[rows].astype(np.int64) - first, mode="clip", out=output[rows])
    return output
