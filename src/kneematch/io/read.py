"""A film's file, DICOM, PNG, JPEG or TIFF, becomes a Radiograph."""

import os
import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kneematch.errors import NotAnImage, NotARadiograph, Unreadable
from kneematch.io.intensity import MAX_BYTES
from kneematch.io.radiograph import Radiograph

HEAD_BYTES = 132  # a DICOM preamble and its magic word
FIRST_GROUPS = (0x0002, 0x0008)  # where a DICOM without preamble begins
FIRST_LENGTH = 256  # bytes; its first elements are short


def read(path: str | os.PathLike[str]) -> Radiograph:
    """Read one film, recognised by its content, whatever its name.

    Bones end up bright where the header says how the values are meant. Spacing, laterality, view
    and series description are kept; nothing that identifies a patient is.

    Raises:
        FilmError: one of its kinds (see `kneematch.errors`), naming the file.
    """
    where = Path(path)
    with _opened(where) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom's and Pillow's remarks on odd headers
        head = file.read(HEAD_BYTES)
        file.seek(0)
        if _begins_dicom(head):
            from kneematch.io.dicom import read_dicom

            return read_dicom(file, where)
        from kneematch.io.images import read_image

        return read_image(file, where)


def is_dicom(path: str | os.PathLike[str]) -> bool:
    """Whether the content, not the name, is DICOM's."""
    with _opened(Path(path)) as file:
        return _begins_dicom(file.read(HEAD_BYTES))


def is_uncompressed(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is DICOM with plain pixels, which need no decoder."""
    from pydicom.filereader import read_file_meta_info
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    plain = (ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian)
    try:
        return is_dicom(path) and read_file_meta_info(path).get("TransferSyntaxUID") in plain
    except Exception:  # noqa: BLE001 - pydicom raises nearly everything on broken headers
        return False


def _begins_dicom(head: bytes) -> bool:
    """Whether a file begins with DICOM's magic word or, lacking it, with a first data element."""
    if head[128:132] == b"DICM":
        return True
    if len(head) < 8:
        return False
    for order in "<>":
        group, element, vr = struct.unpack(f"{order}HH2s", head[:6])
        (length,) = struct.unpack(f"{order}I", head[4:8])
        explicit = vr.isalpha() and vr.isupper()
        implicit = order == "<" and length <= FIRST_LENGTH
        if group in FIRST_GROUPS and element <= 0x0100 and (explicit or implicit):
            return True
    return False


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file of sensible size, open for reading; the system's refusals are Unreadable."""
    try:
        # A pipe would block and a device would never end, so neither is opened at all.
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise Unreadable(f"{path}: {kind}; expected one film; name a film's file")
        with path.open("rb") as file:
            _check_bytes(path, os.fstat(file.fileno()).st_size)
            yield file
    except OSError as error:
        raise Unreadable(
            f"{path}: {error.strerror or error}; expected a readable file; "
            "check the path and its permissions"
        ) from error


def _check_bytes(path: Path, size: int) -> None:
    if size == 0:
        raise NotAnImage(f"{path}: an empty file; expected a film; copy or export it again")
    if size > MAX_BYTES:
        raise NotARadiograph(
            f"{path}: {size} bytes; expected a single film of at most {MAX_BYTES}; check the file"
        )
