"""Content items of structured reports (PS3.3, C.17.3), encoded as explicit VR, little endian.

highdicom makes an object of every code, and pydicom encodes each element by itself: the 500 items
and codes of a film with two measured knees take 75 ms. Most codes return in every item, so here
each is encoded once.
"""

import struct
from functools import cache
from typing import Final

import numpy as np
from highdicom import UID
from numpy.typing import NDArray
from pydicom import Dataset
from pydicom.charset import convert_encodings
from pydicom.dataelem import RawDataElement
from pydicom.filebase import DicomBytesIO
from pydicom.filewriter import write_dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.tag import Tag

CHARSET: Final = "ISO_IR 192"  # UTF-8
CONTENT: Final = 0x0040A730
LONG: Final = ("SQ", "UT")  # VRs with lengths of 32 bits

CONTAINS: Final = "CONTAINS"
HAS_CONTEXT: Final = "HAS OBS CONTEXT"
HAS_MODIFIER: Final = "HAS CONCEPT MOD"
HAS_PROPERTIES: Final = "HAS PROPERTIES"
INFERRED_FROM: Final = "INFERRED FROM"
SELECTED_FROM: Final = "SELECTED FROM"
SOURCE: Final = Code("260753009", "SCT", "Source")


def number(
    name: Code, value: float, unit: Code, *content: bytes, relationship: str = CONTAINS
) -> bytes:
    """Return a measured value, rounded to 16 characters, with content items that belong to it."""
    measured = _code_element(0x004008EA, unit)
    measured += _element(0x0040A161, "FD", struct.pack("<d", value))
    measured += _element(0x0040A30A, "DS", f"{value:.10g}".encode("ascii"))
    return _item("NUM", name, relationship, _sequence(0x0040A300, measured), content)


def code(name: Code, value: Code, *content: bytes, relationship: str = CONTAINS) -> bytes:
    """Return a coded value, with content items that belong to it."""
    return _item("CODE", name, relationship, _code_element(0x0040A168, value), content)


def text(name: Code, value: str, *content: bytes, relationship: str = CONTAINS) -> bytes:
    """Return a text, with content items that belong to it."""
    element = _element(0x0040A160, "UT", value.encode("utf-8"))
    return _item("TEXT", name, relationship, element, content)


def new_uid(name: Code) -> bytes:
    """Return a new identifier of what is reported."""
    return _item("UIDREF", name, HAS_CONTEXT, _element(0x0040A124, "UI", UID().encode("ascii")))


def group(name: Code, template: str, *content: bytes) -> bytes:
    """Return a container of content items, as a template of PS3.16 says."""
    whole = _element(0x0040A050, "CS", b"CONTINUOUS")
    by = _element(0x00080105, "CS", b"DCMR") + _element(0x0040DB00, "CS", template.encode("ascii"))
    return _item("CONTAINER", name, CONTAINS, whole + _sequence(0x0040A504, by), content)


def region(
    points: NDArray[np.float64], header: Dataset, *, relationship: str = INFERRED_FROM
) -> bytes:
    """Return a point (1, 2) or a line (K, 2) of the film with this header."""
    film = _element(0x00081150, "UI", header.SOPClassUID.encode("ascii"))
    film += _element(0x00081155, "UI", header.SOPInstanceUID.encode("ascii"))
    source = _sequence(0x00081199, film) + _item("IMAGE", SOURCE, SELECTED_FROM)
    graphic = _element(0x00700022, "FL", points.astype("<f4").tobytes())
    graphic += _element(0x00700023, "CS", b"POINT" if len(points) == 1 else b"POLYLINE")
    place = _item("SCOORD", codes.DCM.ImageRegion, relationship, content=(source,))
    return place + graphic


def encoded(item: Dataset) -> bytes:
    """Return a content item of pydicom or highdicom, encoded."""
    file = DicomBytesIO()
    file.is_implicit_VR, file.is_little_endian = False, True
    write_dataset(file, item, CHARSET)
    return file.getvalue()


def container(item: Dataset, *content: bytes) -> bytes:
    """Return a container, encoded, with other content."""
    del item[CONTENT]
    return encoded(item) + _sequence(CONTENT, *content)


def set_content(report: Dataset, *content: bytes) -> None:
    """Replace the content of a report, whose character set is CHARSET."""
    items = b"".join(map(_framed, content))
    report[CONTENT] = RawDataElement(Tag(CONTENT), "SQ", len(items), items, 0, False, True)
    # Or pydicom would parse the content to encode it again.
    report.set_original_encoding(False, True, convert_encodings(CHARSET))


def _item(
    kind: str, name: Code, relationship: str, value: bytes = b"", content: tuple[bytes, ...] = ()
) -> bytes:
    children = _sequence(CONTENT, *content) if content else b""
    return _beginning(kind, name, relationship) + value + children


@cache
def _beginning(kind: str, name: Code, relationship: str) -> bytes:
    """Return the elements that content items of a kind and name begin with."""
    return (
        _element(0x0040A010, "CS", relationship.encode("ascii"))
        + _element(0x0040A040, "CS", kind.encode("ascii"))
        + _code_element(0x0040A043, name)
    )


@cache
def _code_element(tag: int, value: Code) -> bytes:
    parts = {0x00080100: value.value, 0x00080102: value.scheme_designator}
    item = b"".join(_element(part, "SH", text.encode("ascii")) for part, text in parts.items())
    return _sequence(tag, item + _element(0x00080104, "LO", value.meaning.encode("ascii")))


def _sequence(tag: int, *items: bytes) -> bytes:
    return _element(tag, "SQ", b"".join(map(_framed, items)))


def _framed(item: bytes) -> bytes:
    """Return an item with its tag and length."""
    return struct.pack("<HHL", 0xFFFE, 0xE000, len(item)) + item


def _element(tag: int, vr: str, value: bytes) -> bytes:
    if len(value) % 2:
        value += b"\0" if vr == "UI" else b" "
    length = struct.pack("<HL" if vr in LONG else "<H", *((0,) if vr in LONG else ()), len(value))
    return struct.pack("<HH2s", tag >> 16, tag & 0xFFFF, vr.encode("ascii")) + length + value
