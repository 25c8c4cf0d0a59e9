"""Read a film: a DICOM, PNG, JPEG or TIFF file, a NumPy array, or a pydicom Dataset."""

import io
import multiprocessing
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import FilmError, NotAnImage, NotARadiograph, SettingsError, Unreadable
from kneematch.films.limits import IN_MEMORY, MAX_BYTES, decoding, silent
from kneematch.films.radiograph import BOTH_KNEES, LATERALITIES, Radiograph, unit_range
from kneematch.parallel import WorkerDied, call_in_child

if TYPE_CHECKING:
    from pydicom import Dataset
    from typing_extensions import TypeIs

HEAD_BYTES: Final = 132  # a DICOM preamble and its magic word
FIRST_GROUPS: Final = (0x0002, 0x0008)  # where a DICOM without preamble begins
FIRST_LENGTH: Final = 256  # bytes; its first elements are short
ARRAY: Final = Path("<array>")  # in place of a file's path, in messages


def read(path: str | os.PathLike[str]) -> Radiograph:
    """Read one film, recognised by its content, whatever its name.

    Bones are bright in the result where the header says how the values are meant. Spacing,
    laterality, view and series description are kept; nothing that identifies a patient is.

    Raises:
        FilmError: one of its kinds (see `kneematch.errors`), naming the file.
    """
    where = Path(path)
    with _opened(where) as file:
        if _at_dicom(file):
            from kneematch.films.dicom import read_dicom

            return read_dicom(file, where)
        from kneematch.films.images import read_image

        return read_image(file, where)


def read_isolated(path: str | os.PathLike[str]) -> Radiograph:
    """Read a film like `read`; a native crash of its decoder becomes a FilmError.

    Compressed films are decoded in another process, unless this is a worker process already.

    Raises:
        FilmError: the film cannot be used.
    """
    if multiprocessing.parent_process() is not None or is_uncompressed(path):
        return read(path)
    result = call_in_child(_read_or_error, os.fspath(path))
    if isinstance(result, WorkerDied):
        raise NotAnImage(f"{os.fspath(path)}: {result}")
    if isinstance(result, FilmError):
        raise result
    return result


def _read_or_error(path: str) -> Radiograph | FilmError:
    """Read a film; errors are returned, since an exception would end the process."""
    try:
        return read(path)
    except Exception as error:  # noqa: BLE001 - the caller cannot see what this process raises
        return to_film_error(path, error)


def to_film_error(path: str, error: Exception) -> FilmError:
    """Return why a film cannot be used: an error of the film, or that it met a bug.

    A bug's own text is left out, since it may quote the film's header.
    """
    if isinstance(error, FilmError):
        return error
    return FilmError(
        f"{path}: {type(error).__name__}; expected a film or a known fault; report this as a bug "
        "of kneematch"
    )


def is_dataset(film: object) -> "TypeIs[Dataset]":
    """Return whether a film is a pydicom Dataset; pydicom is not imported for it."""
    pydicom = sys.modules.get("pydicom")
    return pydicom is not None and isinstance(film, pydicom.Dataset)


def radiograph_from_array(
    pixels: NDArray[Any], *, mm_per_px: float | None = None, laterality: str | None = None
) -> Radiograph:
    """Return the film in an array of grey levels, bones bright.

    Args:
        pixels: (H, W), integers or floats of any range.
        mm_per_px: the pixel spacing.
        laterality: the patient's side, "R" or "L", of a film of one knee, or "B" for both.

    Raises:
        NotARadiograph: the array is not one frame of grey levels that differ.
        SettingsError: spacing or laterality make no sense.
    """
    if pixels.ndim != 2 or pixels.size == 0 or pixels.dtype.kind not in "uif":
        raise NotARadiograph(
            f"an array of shape {pixels.shape} and type {pixels.dtype}; expected numbers of shape "
            "(height, width); give one grey film"
        )
    if mm_per_px is not None and not 0 < mm_per_px < float("inf"):
        raise SettingsError(f"mm_per_px {mm_per_px}; expected more than 0; correct it")
    if laterality not in (None, *LATERALITIES, BOTH_KNEES):
        raise SettingsError(f"laterality {laterality!r}; expected 'R', 'L' or 'B'; correct it")
    grey = unit_range(ARRAY, pixels)
    return Radiograph(np.ascontiguousarray(grey), mm_per_px=mm_per_px, laterality=laterality)


def radiograph_from_dataset(dataset: "Dataset") -> Radiograph:
    """Return the film in a pydicom Dataset, by way of the bytes that its file would have.

    Raises:
        FilmError: as for a file.
    """
    from kneematch.films.dicom import read_dicom

    file = io.BytesIO()
    with silent():
        with decoding(IN_MEMORY, "DICOM dataset"):
            if getattr(dataset, "file_meta", None):
                dataset.save_as(file)
            else:
                dataset.save_as(file, implicit_vr=False, little_endian=True)
        file.seek(0)
        return read_dicom(file, IN_MEMORY)


def read_header(path: str | os.PathLike[str], *keywords: str) -> "Dataset | None":
    """Read the header of a DICOM file within the limits that `read` has; None for other files.

    Args:
        path: the file.
        keywords: the elements needed, such as "SeriesDescription"; reading stops behind the last
            of them. Without any, all elements before the pixels are read.

    Raises:
        FilmError: as `read`.
    """
    where = Path(path)
    with _opened(where) as file:
        if not _at_dicom(file):
            return None
        from kneematch.films.dicom import parse_header

        return parse_header(file, where, keywords)


def is_dicom(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's content, whatever its name, is DICOM."""
    with _opened(Path(path)) as file:
        return _at_dicom(file)


def is_uncompressed(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is DICOM with plain pixels, which need no decoder."""
    try:
        if not is_dicom(path):
            return False
        from pydicom.filereader import read_file_meta_info
        from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

        plain = (ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian)
        with silent():
            return read_file_meta_info(path).get("TransferSyntaxUID") in plain
    except Exception:  # noqa: BLE001 - pydicom raises nearly everything on broken headers
        return False


def _at_dicom(file: BinaryIO) -> bool:
    """Return whether a file begins with DICOM's magic word or, without it, a first data element."""
    head = file.read(HEAD_BYTES)
    file.seek(0)
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
    """Open a regular file of sensible size; raise Unreadable where the system refuses."""
    try:
        _check_regular(path)
        with path.open("rb") as file, silent():
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise NotAnImage(f"{path}: an empty file; expected a film; copy or export it again")
            if size > MAX_BYTES:
                raise NotARadiograph(
                    f"{path}: {size} bytes; expected a single film of at most {MAX_BYTES}; check "
                    "the file"
                )
            yield file
    except OSError as error:
        raise Unreadable(
            f"{path}: {error.strerror or error}; expected a readable file; "
            "check the path and its permissions"
        ) from error
    except MemoryError as error:
        raise Unreadable(
            f"{path}: not enough memory to read it; expected some hundred MB; "
            "free memory or use fewer workers"
        ) from error


def _check_regular(path: Path) -> None:
    """Refuse pipes, which would block, and devices, which would never end."""
    try:
        mode = path.stat().st_mode
    except ValueError as error:  # a null character or a lone surrogate
        raise Unreadable(
            f"{path}: a name that the system cannot have; expected a path; check the name"
        ) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise Unreadable(f"{path}: {kind}; expected one film; name a film's file")
