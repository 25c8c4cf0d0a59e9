"""Describe a film: what its file stores and where it would be split."""

import os
from dataclasses import dataclass
from pathlib import Path

from kneematch.errors import NotARadiograph
from kneematch.geometry.split import Span, split, split_lines
from kneematch.io.limits import decoding
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read_header, read_isolated

PICTURE_DEPTHS = {"L": "8 bits", "I;16": "16 bits", "I;16B": "16 bits", "I": "32 bits"}


@dataclass(frozen=True, slots=True, eq=False)
class Description:
    """A film as read, as stored, and as split."""

    film: Radiograph
    kind: str  # "DICOM", "PNG", "JPEG" or "TIFF"
    stored: str  # "12 of 16 bits", "8 bits", ...
    axis_px: float
    halves: tuple[Span, Span]
    film_px_per_half_px: float  # above 1 the half images hold less detail than the film


def describe(path: str | os.PathLike[str]) -> Description:
    """Read a film and describe it; raises FilmError as `read` does."""
    where = Path(path)
    film = read_isolated(where)
    dicom = _dicom_storage(where)
    kind, stored = ("DICOM", dicom) if dicom else _picture_storage(where)
    try:
        halves = split(film)
    except NotARadiograph as error:
        raise NotARadiograph(f"{where}: {error}") from error
    axis, columns = split_lines(film)
    scale = float(halves.to_film[0, 1, 1]) * 2 / halves.size[0]
    return Description(film, kind, stored, axis, columns, scale)


def _dicom_storage(path: Path) -> str | None:
    """Return the bits of a DICOM file's pixels in words; None for other files."""
    from kneematch.io.dicom_header import header_number

    tags = ("BitsStored", "BitsAllocated")
    header = read_header(path, *tags)
    if header is None:
        return None
    stored, allocated = (header_number(header, tag) for tag in tags)
    return " of ".join("?" if n is None else f"{n:g}" for n in (stored, allocated)) + " bits"


def _picture_storage(path: Path) -> tuple[str, str]:
    from PIL import Image

    with decoding(path, "picture"), Image.open(path) as image:
        return image.format or "picture", PICTURE_DEPTHS.get(image.mode, image.mode)
