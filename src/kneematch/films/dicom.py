"""Read a radiograph from a DICOM file: its header, its pixels, and how their values are meant.

Elements of a header are read leniently: garbage counts as absent. JPEG, JPEG-LS, JPEG 2000 and
HTJ2K frames are decoded by imagecodecs, after their codestream was checked against the header;
pydicom decodes the other transfer syntaxes.
"""

import io
import math
import re
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom import Dataset, Sequence, uid
from pydicom.encaps import get_frame
from pydicom.errors import BytesLengthException
from pydicom.filereader import read_dataset, read_partial, read_preamble
from pydicom.multival import MultiValue
from pydicom.pixels.common import PhotometricInterpretation
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.utils import get_expected_length
from pydicom.tag import BaseTag

from kneematch.errors import MissingDecoder, NotAnImage, NotARadiograph
from kneematch.films.codestreams import (
    JPEG_2000_START,
    JPEG_START,
    check_codestream,
    codestream_shape,
    resolution_levels,
)
from kneematch.films.limits import memory_limit
from kneematch.films.radiograph import (
    BOTH_KNEES,
    LATERALITIES,
    ROWS_AT_ONCE,
    Radiograph,
    check_size,
    decoding,
    grey_of_colours,
    spare_reduction,
    unit_range,
)

PIXEL_DATA: Final = 0x7FE00010  # the last element of a film
PIXEL_GROUP: Final = 0x7FE0
PIXEL_KEYWORDS: Final = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
PHOTOMETRICS: Final = {kind.value for kind in PhotometricInterpretation}
YBR: Final = ("YBR_FULL", "YBR_FULL_422")
MAX_ELEMENT_BYTES: Final = 1 << 20  # beside the pixels; a lookup table has 128 kB

JPEG_SYNTAXES, JPEG_LS_SYNTAXES = uid.JPEGTransferSyntaxes, uid.JPEGLSTransferSyntaxes
HTJ2K_SYNTAXES: Final = (uid.HTJ2KLossless, uid.HTJ2KLosslessRPCL, uid.HTJ2K)
JPEG_2000_SYNTAXES: Final = (uid.JPEG2000Lossless, uid.JPEG2000, *HTJ2K_SYNTAXES)
CODESTREAM_SYNTAXES: Final = (*JPEG_SYNTAXES, *JPEG_LS_SYNTAXES, *JPEG_2000_SYNTAXES)
CODESTREAM_END: Final = b"\xff\xd9"
TAIL: Final = 64  # bytes in which the end must lie; what follows it is padding
# JPEG segments that say which colours are stored.
ADOBE: Final = b"\xff\xee\x00\x0eAdobe"
JFIF: Final = b"JFIF\0"

EXACT_VALUES: Final = ("PixelPaddingValue", "ModalityLUTSequence")  # which are not averaged

SQUARE_WITHIN: Final = 0.01  # the relative difference of the two spacings that is still rounding
ABSURD_MM: Final = (1e-6, 1e6)  # spacings beyond these are garbage; others may be flagged
SPACINGS: Final = (
    *("PixelSpacing", "ImagerPixelSpacing"),
    *("NominalScannedPixelSpacing", "PixelAspectRatio"),
)
# Elements that may say that a film shows both knees, and how they say it.
DESCRIPTIONS: Final = (
    *("SeriesDescription", "StudyDescription", "ProtocolName", "BodyPartExamined"),
    *("AcquisitionDeviceProcessingDescription", "ViewPosition"),
)
BOTH: Final = re.compile(r"bilat|both|knees|beid|amb[ao]s|entramb|\bb/l\b", re.IGNORECASE)
# The patient's left and feet: the axes of a frontal film as (left, feet).
AXES: Final = {"L": (1, 0), "R": (-1, 0), "F": (0, 1), "H": (0, -1)}
PATIENT_AND_STUDY: Final = (  # type 2: every object has them, if only empty
    *("PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID"),
    *("AccessionNumber", "ReferringPhysicianName"),
)
# What pydicom raises on an element whose bytes do not fit its value representation, or on
# sequences nested hundreds deep.
BAD_ELEMENT: Final = (
    *(ValueError, TypeError, LookupError, AttributeError, NotImplementedError),
    *(OverflowError, RecursionError, struct.error, BytesLengthException),
)


def read_dicom(
    file: BinaryIO, path: Path, *, reduced: bool = False, also_whole: bool = False
) -> Radiograph:
    """Read a DICOM file that is open at its beginning; the rest as in `read_isolated`."""
    dataset = parse_header(file, path, last=PIXEL_DATA)
    memory = _check_kind(dataset, path)
    mm_per_px, spacing_tag = spacing(dataset, path)
    factor = spare_reduction(_size(dataset)) if reduced else 1
    levels = _spare_levels(dataset, path, memory, factor)
    if levels or also_whole:
        factor = 2**levels
    # The first pixels of a JPEG 2000 frame and of its copy have the same centre.
    corner = (1 - factor) / 2 if levels else 0.0
    return Radiograph(
        _unit_pixels(dataset, path, memory, factor, levels),
        mm_per_px=None if mm_per_px is None else mm_per_px * factor,
        copy_of=_size(dataset) if factor > 1 else None,
        corner=corner,
        spacing_tag=spacing_tag,
        laterality=laterality(dataset),
        seen_from_front=seen_from_front(dataset),
        view=header_text(dataset, "ViewPosition"),
        series=header_text(dataset, "SeriesDescription"),
        polarity_tag=header_text(dataset, "PhotometricInterpretation"),
    )


def parse_header(file: BinaryIO, path: Path, last: int = (PIXEL_GROUP << 16) - 1) -> Dataset:
    """Parse a DICOM file up to the tag `last`, with or without preamble and meta group.

    What follows the pixels (signatures, padding, megabytes of zeros) is never read. Elements too
    long for a header are left out, as garbage is.
    """

    def beyond(tag: BaseTag, vr: str | None, length: int) -> bool:
        return tag > last or tag.group == 0

    with decoding(path, "DICOM"):
        read_preamble(file, force=True)
        meta = read_dataset(file, False, True, stop_when=lambda tag, vr, length: tag.group != 2)
        if meta.get("TransferSyntaxUID") == uid.DeflatedExplicitVRLittleEndian:
            # A small file can be inflated to any size, and is nearly never a film.
            raise MissingDecoder(f"{path}: The DICOM file is deflated. Export it uncompressed.")
        file.seek(0)
        dataset = read_partial(file, beyond, force=True)
        syntax = dataset.file_meta.get("TransferSyntaxUID")
        if not syntax:  # the parser has found out how the elements are encoded
            implicit, little_endian = dataset.original_encoding
            explicit = uid.ExplicitVRLittleEndian if little_endian else uid.ExplicitVRBigEndian
            syntax = uid.ImplicitVRLittleEndian if implicit else explicit
        dataset.file_meta.TransferSyntaxUID = uid.UID(syntax)
        for tag, element in list(dataset.items()):
            value = element.value if tag.group != PIXEL_GROUP else None
            if isinstance(value, bytes) and len(value) > MAX_ELEMENT_BYTES:
                del dataset[tag]
    return dataset


def _check_kind(dataset: Dataset, path: Path) -> int:
    """Refuse what is not a single frame of film; return the memory that decoding it may take."""
    if not any(keyword in dataset for keyword in PIXEL_KEYWORDS):
        stated = dataset.file_meta, "MediaStorageSOPClassUID"
        name = uid_name(header_value(dataset, "SOPClassUID") or header_value(*stated))
        raise NotARadiograph(f"{path}: The DICOM file has no pixels ({name or 'unknown class'}).")
    samples, bits = (header_count(dataset, name) for name in ("SamplesPerPixel", "BitsAllocated"))
    # At the peak: a decoder's 32-bit samples and two copies of the decoded ones, or the result.
    bytes_per_px = 4 + samples * (4 + bits // 4)
    memory = check_size(path, *_size(dataset), bytes_per_px)
    if (header_number(dataset, "NumberOfFrames") or 1) > 1:
        raise NotARadiograph(f"{path}: The file has more than one frame. Save the film alone.")
    photometric = header_text(dataset, "PhotometricInterpretation")
    if photometric == "PALETTE COLOR" or bits == 1:
        kind = "1 bit per pixel" if bits == 1 else "a colour palette"
        raise NotARadiograph(f"{path}: The picture has {kind}. Export it as greyscale.")
    if photometric not in PHOTOMETRICS:
        raise NotARadiograph(
            f"{path}: The PhotometricInterpretation is unknown. Export the film as MONOCHROME2."
        )
    return memory


def _unit_pixels(
    dataset: Dataset, path: Path, memory: int, factor: int, levels: int
) -> NDArray[np.float32]:
    """Return the frame (H, W) in [0, 1], by way of the modality LUT where there is one.

    It is reduced by a factor; `levels` says how often a JPEG 2000 decoder halves its size for that.
    """
    factor = 1 if levels else factor
    is_plain = dataset.file_meta.TransferSyntaxUID in uid.UncompressedTransferSyntaxes
    with nullcontext() if is_plain else memory_limit(path, memory):
        pixels = (
            _reduced_values(dataset, path, memory, levels)
            if levels
            else _stored_values(dataset, path, memory)
        )
    if header_count(dataset, "SamplesPerPixel") > 1:
        return unit_range(path, pixels, reduction=factor)
    padding = _padding(dataset, pixels)
    # Only the sign of the slope matters, since the values are mapped to [0, 1] afterwards.
    negative = (header_number(dataset, "RescaleSlope") or 1) < 0
    table = header_value(dataset, "ModalityLUTSequence")
    if table:
        negative = False
        with decoding(path, "DICOM with a modality LUT"):
            pixels = _apply_lut(pixels, table[0], "<" if dataset.original_encoding[1] else ">")
    inverted = negative != lowest_is_white(dataset)
    return unit_range(path, pixels, inverted=inverted, padding=padding, reduction=factor)


def _spare_levels(dataset: Dataset, path: Path, memory: int, factor: int) -> int:
    """Return how often a JPEG 2000 film may be halved in size; 0 for unusual and other films."""
    values = header_count(dataset, "SamplesPerPixel"), header_count(dataset, "PixelRepresentation")
    is_usual = values == (1, 0) and not any(name in dataset for name in EXACT_VALUES)
    is_2000 = dataset.file_meta.TransferSyntaxUID in (uid.JPEG2000Lossless, uid.JPEG2000)
    if factor == 1 or not is_usual or not is_2000:
        return 0
    with decoding(path, "JPEG 2000"):
        levels = resolution_levels(_checked_frame(dataset, path, memory))
    return min(int(math.log2(factor)), levels)


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


def _stored_values(dataset: Dataset, path: Path, memory: int) -> NDArray[Any]:
    """Return the stored grey values (H, W): a read-only view where nothing is compressed."""
    syntax: uid.UID = dataset.file_meta.TransferSyntaxUID
    name = uid_name(syntax) or "unknown transfer syntax"
    with decoding(path, f"DICOM ({name})"):
        if syntax in CODESTREAM_SYNTAXES:
            pixels, is_ybr = _decode_codestream(dataset, path, memory)
        else:
            try:
                decoder = get_decoder(syntax)
            except NotImplementedError:
                raise MissingDecoder(
                    f"{path}: No decoder is known for this DICOM ({name}). Export it uncompressed."
                ) from None
            if not syntax.is_encapsulated and "PixelData" in dataset:
                _check_uncompressed(dataset, path)
            # pydicom's correction of unused bits would copy every film of 12 bits.
            how: dict[str, Any] = {"raw": True, "view_only": True, "correct_unused_bits": False}
            pixels, layout = decoder.as_array(dataset, index=0, **how)
            is_ybr = layout["photometric_interpretation"] in YBR
        if pixels.ndim == 2:
            return _drop_unused_bits(pixels, dataset)
        return grey_of_colours(path, pixels, 2**dataset.BitsStored - 1, is_ybr=is_ybr)


def _reduced_values(dataset: Dataset, path: Path, memory: int, levels: int) -> NDArray[Any]:
    """Return a JPEG 2000 frame without its finest levels, at a scale of its own.

    Pixel (i, j) has the centre of the frame's pixel (i, j) * 2^levels.
    """
    with decoding(path, "JPEG 2000"):
        frame = _checked_frame(dataset, path, memory)
        image: Any = Image.open(io.BytesIO(frame), formats=["JPEG2000"])
        image.reduce = levels  # Pillow's decoder goes by it
        image.load()
        return np.asarray(image)


def _check_uncompressed(dataset: Dataset, path: Path) -> None:
    """Refuse pixels that are compressed, which would read as noise, or cut."""
    if dataset["PixelData"].is_undefined_length:
        raise NotAnImage(
            f"{path}: The pixels are compressed, but the header does not say how. Export it again."
        )
    found, stated = len(dataset.PixelData), get_expected_length(dataset)
    if found < stated:
        cut = f"{found} of {stated} bytes of pixels"
        raise NotAnImage(f"{path}: The file is cut off: {cut}. Copy it again.")


def _decode_codestream(dataset: Dataset, path: Path, memory: int) -> tuple[NDArray[Any], bool]:
    """Decode a compressed frame; return (H, W) or (H, W, samples), and whether it is YBR.

    Colours are returned as they are stored, except for JPEG 2000's own colour transforms and for a
    JPEG with an Adobe segment, which its codec undoes.
    """
    frame = _checked_frame(dataset, path, memory)
    syntax, photometric = dataset.file_meta.TransferSyntaxUID, dataset.PhotometricInterpretation
    is_ybr = photometric in YBR
    if syntax in JPEG_SYNTAXES:
        has_jfif = JFIF in frame[:TAIL]  # it comes first, and its colours are always YBR
        is_ybr = is_ybr or (has_jfif and photometric == "RGB")
        as_stored = header_count(dataset, "SamplesPerPixel") > 1 and ADOBE not in frame
        space = "RGB" if as_stored else None  # equal spaces: no conversion
        # Not `jpeg_decode`: on broken frames that one tries another codec, which may not return.
        pixels = imagecodecs.jpeg8_decode(frame, colorspace=space, outcolorspace=space)
    elif syntax in JPEG_LS_SYNTAXES:
        pixels = imagecodecs.jpegls_decode(frame)
    else:
        pixels = imagecodecs.jpeg2k_decode(frame)
    sign = "i" if header_count(dataset, "PixelRepresentation") else "u"
    return pixels.view(f"{sign}{pixels.itemsize}"), is_ybr


def _checked_frame(dataset: Dataset, path: Path, memory: int) -> bytes:
    """Return the frame; refuse one that is cut, which codecs fill up, or of another size."""
    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    if CODESTREAM_END not in frame[-TAIL:]:
        raise NotAnImage(f"{path}: The compressed pixels are cut off. Copy or export it again.")
    if not frame.startswith(JPEG_START):  # the boxes of a JP2 file, which DICOM does not allow
        frame = frame[max(frame.find(JPEG_2000_START), 0) :]
    found = codestream_shape(frame)
    stated = tuple(header_count(dataset, name) for name in ("Rows", "Columns", "SamplesPerPixel"))
    if found != stated:
        kind = "of an unknown kind" if found is None else "{} x {} x {} samples".format(*found)
        raise NotAnImage(
            f"{path}: The compressed pixels are {kind}, but the header disagrees. Export it again."
        )
    check_codestream(path, frame, memory)
    return frame


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


def header_value(dataset: Dataset, keyword: str) -> Any:
    """Return an element's value, or None where it is absent, empty or garbage."""
    try:
        value = dataset.get(keyword)
    except BAD_ELEMENT:
        return None
    return None if value in (None, "") else value


def header_text(dataset: Dataset, keyword: str) -> str | None:
    """Return an element as one printable line, or None."""
    value = header_value(dataset, keyword)
    text = "" if value is None or isinstance(value, Sequence) else str(value)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split()) or None


def header_number(dataset: Dataset, keyword: str) -> float | None:
    """Return an element as one finite number, or None."""
    numbers = _numbers(header_value(dataset, keyword))
    return numbers[0] if len(numbers) == 1 else None


def header_count(dataset: Dataset, keyword: str) -> int:
    """Return an element as a whole number, 0 where it is absent."""
    return int(header_number(dataset, keyword) or 0)


def _size(dataset: Dataset) -> tuple[int, int]:
    return header_count(dataset, "Rows"), header_count(dataset, "Columns")


def uid_name(value: Any) -> str | None:
    """Return the name of a registered UID; None for others, whose text may say anything."""
    name = uid.UID(value).name if isinstance(value, str) else value
    return None if name == value else name


def laterality(dataset: Dataset) -> str | None:
    """Return the patient's side, "L", "R" or "B", of the image or else of its series.

    A series tagged L or R shows both knees, "B", where a description says so: the tag then only
    tells which knee the examination was for.
    """
    side = header_text(dataset, "ImageLaterality")
    if side in (*LATERALITIES, BOTH_KNEES):
        return side
    if any(BOTH.search(header_text(dataset, keyword) or "") for keyword in DESCRIPTIONS):
        return BOTH_KNEES
    side = header_text(dataset, "Laterality")
    return side if side in (*LATERALITIES, BOTH_KNEES) else None


def lowest_is_white(dataset: Dataset) -> bool:
    """Return whether to invert, once: MONOCHROME1 and INVERSE say the same (PS3.3, C.7.6.1)."""
    return (
        header_text(dataset, "PhotometricInterpretation") == "MONOCHROME1"
        or header_text(dataset, "PresentationLUTShape") == "INVERSE"
    )


def seen_from_front(dataset: Dataset) -> bool | None:
    """Return whether a frontal film shows the patient from the front; None if it is not said.

    PatientOrientation has the patient's directions along the rows and down the columns of the
    pixels as stored (PS3.3, C.7.6.1.1.1), so a flip on the way from the detector
    (FieldOfViewHorizontalFlip) is included. The directions of a turned picture have the same sense
    of rotation; those of a mirrored one have the opposite one.
    """
    value = header_value(dataset, "PatientOrientation")
    names = [str(name)[:1] for name in value] if isinstance(value, MultiValue | list) else []
    if len(names) != 2 or not set(names) <= set(AXES):
        return None
    (a, b), (c, d) = (AXES[name] for name in names)
    sense = a * d - b * c
    return sense > 0 if sense else None


def spacing(dataset: Dataset, path: Path) -> tuple[float | None, str | None]:
    """Return the millimetres per pixel and the keyword of the element that states them.

    PixelSpacing comes first, since it may be calibrated (DICOM PS3.3, 10.7); where it equals
    ImagerPixelSpacing, it is the spacing at the detector and is reported as that. Neither is
    divided by EstimatedRadiographicMagnificationFactor, the enlargement of the knee, which is
    nearer to the tube than the detector is: the keyword lets the reader decide.
    """
    pairs = {keyword: _numbers(header_value(dataset, keyword)) for keyword in SPACINGS}
    if pairs["PixelSpacing"] == pairs["ImagerPixelSpacing"]:
        del pairs["PixelSpacing"]
    for keyword, pair in pairs.items():  # the distances of rows and of columns
        if len(pair) != 2 or not ABSURD_MM[0] < min(pair) <= max(pair) < ABSURD_MM[1]:
            continue
        if abs(pair[0] - pair[1]) > SQUARE_WITHIN * max(pair):
            raise NotARadiograph(
                f"{path}: {keyword} says that pixels are {pair[0] / pair[1]:.3g} times as high as "
                "wide. Resample the film to square pixels or correct its header."
            )
        return (None, None) if keyword == "PixelAspectRatio" else (pair[1], keyword)
    return None, None


def _numbers(value: Any) -> list[float]:
    """Return an element's numbers, or an empty list if any of them is not finite."""
    values = [value] if isinstance(value, (str, int, float)) else value or []
    try:
        numbers = [float(v) for v in values]
    except (TypeError, ValueError):
        return []
    return numbers if all(map(math.isfinite, numbers)) else []
