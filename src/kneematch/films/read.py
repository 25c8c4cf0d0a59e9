"""Read a film: DICOM, a picture (PNG, JPEG, TIFF, ...), or what Python holds one in."""

import io
import multiprocessing
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Union

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from kneematch.errors import (
    SHOWN_START,
    FilmError,
    NotAnImage,
    NotARadiograph,
    SettingsError,
    Unreadable,
    is_memory_full,
)
from kneematch.films.codestreams import check_codestream
from kneematch.films.files import open_regular
from kneematch.films.limits import cpu_limit, memory_limit
from kneematch.films.radiograph import (
    BOTH_KNEES,
    IN_MEMORY,
    LATERALITIES,
    MAX_BYTES,
    Radiograph,
    check_size,
    decoding,
    grey_of_colours,
    silent,
    unit_range,
)
from kneematch.parallel import WorkerDied, call_in_child
from kneematch.settings import as_path, check_type

if TYPE_CHECKING:
    from pydicom import Dataset
    from typing_extensions import TypeIs

Film = Union[Radiograph, str, os.PathLike[str], BinaryIO, NDArray[Any], Image.Image, "Dataset"]

HEAD_BYTES: Final = 132  # a DICOM preamble and its magic word
FIRST_GROUPS: Final = (0x0002, 0x0008)  # where a DICOM without preamble begins
FIRST_LENGTH: Final = 256  # bytes; its first elements are short

PICTURE_FORMATS: Final = ("PNG", "JPEG", "TIFF", "BMP", "WEBP", "GIF", "JPEG2000")
CODESTREAM_FORMATS: Final = ("JPEG", "JPEG2000")
GREY_MODES: Final = ("L", "I;16", "I;16B", "I", "F")
PICTURE_BYTES_PER_PX: Final = 16  # at the peak, for 32-bit values, of which Pillow makes two copies
TIFF_PHOTOMETRIC: Final = 262
TIFF_WHITE_IS_ZERO: Final = 0
TIFF_TILE_WIDTH, TIFF_TILE_HEIGHT = 322, 323
BAD_EXIF: Final = (SyntaxError, ValueError, TypeError, LookupError, struct.error)


def read(path: str | os.PathLike[str]) -> Radiograph:
    """Read one film, recognised by its content, whatever its name.

    Bones are bright in the result where the header says how the values are meant. Spacing,
    laterality, view and series description are kept; nothing that identifies a patient is.

    Raises:
        FilmError: one of its kinds (see `kneematch.errors`), naming the file.
    """
    where = as_path("path", path)
    with _opened(where) as file:
        return _read_file(file, where)


def _read_file(file: BinaryIO, path: Path, **how: bool) -> Radiograph:
    """Read a film from a file that is open at its beginning; `path` is for messages and limits."""
    if not _at_dicom(file):
        return _read_picture(file, path)
    from kneematch.films.dicom import read_dicom  # importing pydicom takes 0.1 s

    return read_dicom(file, path, **how)


def read_isolated(
    path: str | os.PathLike[str],
    *,
    reduced: bool = False,
    also_whole: bool = False,
) -> Radiograph:
    """Read a film like `read`; a native crash of its decoder becomes a FilmError.

    Compressed films are decoded in another process, unless this is a worker process already, and
    may take 60 s of CPU time and as much memory as their size explains.

    Args:
        path: the film's file.
        reduced: return a smaller copy of a large DICOM film, which is enough to find adult knees.
            Of JPEG 2000 films it is decoded in a tenth of the time.
        also_whole: all pixels are needed as well: reduce only where that saves much time.
    """
    how = {"reduced": reduced, "also_whole": also_whole}
    if multiprocessing.parent_process() is not None or is_uncompressed(path):
        where = as_path("path", path)
        with cpu_limit(), _opened(where) as file:
            return _read_file(file, where, **how)
    call = partial(_read_or_error, how=how)
    result = call_in_child(call, os.fspath(path))
    if isinstance(result, WorkerDied):
        raise Unreadable(f"{os.fspath(path)}: {result}")
    if isinstance(result, FilmError):
        raise result
    return result


def _read_or_error(path: str, how: dict[str, bool]) -> Radiograph | FilmError:
    """Read a film; errors are returned, since an exception would end the process."""
    try:
        return read_isolated(path, **how)
    except Exception as error:  # noqa: BLE001 - the caller cannot see what this process raises
        return to_film_error(path, error)


def to_film_error(path: str, error: Exception) -> FilmError:
    """Return why a film cannot be used, with its path: an error of the film, or that it met a bug.

    A bug's own text is left out, since it may quote the film's header.
    """
    if not isinstance(error, FilmError):
        if is_memory_full(error):
            return Unreadable(f"{path}: There is not enough memory to examine it.")
        kind = type(error).__name__
        return FilmError(f"{path}: An unexpected {kind} occurred. Please report this bug.")
    is_named = error.message.startswith(path[:SHOWN_START])  # a long message is shortened
    return error if is_named else type(error)(f"{path}: {error.message}")


def is_dataset(film: object) -> "TypeIs[Dataset]":
    """Return whether a film is a pydicom Dataset; pydicom is not imported for it."""
    pydicom = sys.modules.get("pydicom")
    return pydicom is not None and isinstance(film, pydicom.Dataset)


def _radiograph_from_array(pixels: NDArray[Any]) -> Radiograph:
    """Return the film in an array (H, W) or (H, W, 3) of grey levels of any range, bones bright."""
    is_shape = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    if not is_shape or pixels.size == 0 or pixels.dtype.kind not in "uif":
        kind = f"shape {pixels.shape} and type {pixels.dtype}"
        raise NotARadiograph(
            f"An array of {kind} is not a film. Give numbers (height, width) or (height, width, 3)."
        )
    grey = grey_of_colours(IN_MEMORY, pixels, pixels.max()) if pixels.ndim == 3 else pixels
    return Radiograph(unit_range(IN_MEMORY, grey))


def is_film(given: object) -> "TypeIs[Film]":
    """Return whether this is one film, and not several."""
    single = (Radiograph, str, os.PathLike, np.ndarray, Image.Image)
    return isinstance(given, single) or hasattr(given, "read") or is_dataset(given)


def as_radiograph(
    film: object, *, mm_per_px: float | None = None, laterality: str | None = None
) -> Radiograph:
    """Return the film that is given as any of the types that `not_a_film` names.

    Args:
        film: the film.
        mm_per_px: pixel spacing of an array or a PIL image.
        laterality: "R" or "L", the patient's side, if one of these shows one knee; "B" for both.

    Raises:
        FilmError: it cannot be read.
        SettingsError: it is of another type, or states its spacing and side itself.
    """
    stated: dict[str, Any] = {"mm_per_px": mm_per_px, "laterality": laterality}
    check_type("mm_per_px", mm_per_px, float | None)
    if mm_per_px is not None and not 0 < mm_per_px < float("inf"):
        raise SettingsError(f"mm_per_px is {mm_per_px}, but must be greater than 0.")
    if laterality not in (None, *LATERALITIES, BOTH_KNEES):
        raise SettingsError(f"laterality is {laterality!r}, but must be 'R', 'L' or 'B'.")
    if isinstance(film, np.ndarray):
        return replace(_radiograph_from_array(film), **stated)
    if isinstance(film, Image.Image):
        check_size(IN_MEMORY, film.height, film.width, PICTURE_BYTES_PER_PX)
        with decoding(IN_MEMORY, "picture"), silent():
            return replace(_radiograph_from_picture(film.copy(), IN_MEMORY), **stated)
    if any(stated.values()):
        raise SettingsError(
            "mm_per_px and laterality are only for an array or a PIL image; other films state "
            "their own."
        )
    if isinstance(film, Radiograph):
        return film
    if isinstance(film, str | os.PathLike):
        return read_isolated(film)
    if is_dataset(film):
        return radiograph_from_dataset(film)
    if hasattr(film, "read"):
        is_text = isinstance(film, io.TextIOBase)  # its `read` would fail on a film's bytes
        return _radiograph_from_open_file(None if is_text else film.read(MAX_BYTES + 1))
    raise not_a_film(film)


def not_a_film(found: object) -> SettingsError:
    """Return the error of something that no film can be read from."""
    kinds = "a path, an open file, an array, a PIL image, a pydicom Dataset or a Radiograph"
    return SettingsError(f"A film is {kinds}, not {type(found).__name__}.")


def _radiograph_from_open_file(content: object) -> Radiograph:
    """Return the film in the content of a file that the caller has opened."""
    if not isinstance(content, bytes):
        raise SettingsError("The file of a film must be opened in binary mode.")
    if not 0 < len(content) <= MAX_BYTES:
        raise NotAnImage(f"{IN_MEMORY}: The file is empty, or larger than 1 GB.")
    with silent():
        return _read_file(io.BytesIO(content), IN_MEMORY)


def radiograph_from_dataset(dataset: "Dataset") -> Radiograph:
    """Return the film in a pydicom Dataset, by way of the bytes that its file would have."""
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


def read_header(path: str | os.PathLike[str]) -> "Dataset | None":
    """Read a DICOM file up to its pixels, within the limits of `read`; None for other files."""
    where = Path(path)
    with _opened(where) as file:
        if not _at_dicom(file):
            return None
        from kneematch.films.dicom import parse_header

        return parse_header(file, where)


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
        try:
            state = path.stat()
        except ValueError as error:  # a null character or a lone surrogate
            raise Unreadable(f"{path}: The system cannot have a file of this name.") from error
        if not stat.S_ISREG(state.st_mode):  # a pipe would block, a device never end
            kind = "a folder" if stat.S_ISDIR(state.st_mode) else "not a regular file"
            raise Unreadable(f"{path}: This is {kind}. Name a film's file.")
        if state.st_size == 0:
            raise NotAnImage(f"{path}: The file is empty.")
        if state.st_size > MAX_BYTES:
            raise NotARadiograph(f"{path}: The file has {state.st_size} bytes; the limit is 1 GB.")
        with open_regular(path) as file, silent():
            yield file
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}.") from error
    except MemoryError as error:
        advice = "Free some or use fewer workers."
        raise Unreadable(f"{path}: There is not enough memory to read it. {advice}") from error


def _read_picture(file: BinaryIO, path: Path) -> Radiograph:
    """Read a picture that is open at its beginning; it has no spacing, side or view."""
    with decoding(path, "picture"):
        try:
            image = Image.open(file, formats=PICTURE_FORMATS)
        except Image.DecompressionBombError:
            raise NotARadiograph(f"{path}: The picture has more pixels than any film.") from None
        except UnidentifiedImageError:
            kinds = "PNG, JPEG, TIFF, BMP, WebP, GIF or JPEG 2000"
            raise NotAnImage(f"{path}: The file is neither DICOM nor {kinds}.") from None
    with image, decoding(path, f"{image.format} picture"):
        memory = check_size(path, image.height, image.width, PICTURE_BYTES_PER_PX)
        tags = getattr(image, "tag_v2", {})
        tile = tags.get(TIFF_TILE_HEIGHT, 1), tags.get(TIFF_TILE_WIDTH, 1)
        memory = max(memory, check_size(path, *tile, PICTURE_BYTES_PER_PX, "A tile"))
        if getattr(image, "n_frames", 1) > 1:
            raise NotARadiograph(f"{path}: The file has more than one frame. Save the film alone.")
        if image.format in CODESTREAM_FORMATS:
            at = file.tell()
            file.seek(0)
            check_codestream(path, file.read(), memory)
            file.seek(at)
        with memory_limit(path, memory):
            image.load()
        return _radiograph_from_picture(image, path)


def _radiograph_from_picture(image: Image.Image, path: Path) -> Radiograph:
    """Return the film in a picture that was decoded; it is turned upright in place."""
    if image.mode == "1":
        raise NotARadiograph(f"{path}: The picture has 1 bit a pixel. Export it as greyscale.")
    # Pillow inverts a TIFF of 8 bits that stores white as 0, but no other.
    photometric = getattr(image, "tag_v2", {}).get(TIFF_PHOTOMETRIC)
    inverted = image.mode != "L" and photometric == TIFF_WHITE_IS_ZERO
    with suppress(*BAD_EXIF):
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode in GREY_MODES:
        pixels = np.asarray(image)
    else:
        colours = np.asarray(image.convert("RGBA"))  # from palettes and CMYK, too
        if colours[..., 3].min() < 255:
            raise NotARadiograph(f"{path}: The picture is partly transparent. Flatten it.")
        pixels = grey_of_colours(path, colours, full_scale=255)
    return Radiograph(unit_range(path, pixels, inverted=inverted))
