"""Describe a film: what its file stores and where it would be split."""

import os
from pathlib import Path
from typing import Any

from kneematch.errors import NotARadiograph
from kneematch.films.radiograph import Radiograph, decoding, silent
from kneematch.films.read import read_header, read_isolated
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.split import split, split_lines

PICTURE_DEPTHS = {"L": "8 bits", "I;16": "16 bits", "I;16B": "16 bits", "I": "32 bits"}


def describe(path: str | os.PathLike[str]) -> tuple[Radiograph, dict[str, Any]]:
    """Read a film, and return it with what is known of it, by the names that `info` prints.

    Raises:
        FilmError: as `read`.
    """
    where = Path(path)
    film = read_isolated(where)
    dicom = _dicom_storage(where)
    kind, stored = ("DICOM", dicom) if dicom else _picture_storage(where)
    try:
        axis, (left, right) = split_lines(film_tensor(film))
    except NotARadiograph as error:
        raise NotARadiograph(f"{where}: {error}") from error
    halves = split(film_tensor(film), axis=axis)
    scale = float(halves.to_film[0, 1, 1]) * 2 / halves.size[0]
    return film, {
        "kind": kind,  # "DICOM", "PNG", "JPEG" or "TIFF"
        "size_px": list(film.size),
        "stored": stored,  # "12 of 16 bits", "8 bits", ...
        "mm_per_px": film.mm_per_px,
        "spacing_tag": film.spacing_tag,
        "laterality": film.laterality,
        "view": film.view,
        "series": film.series,
        "polarity_tag": film.polarity_tag,
        "axis_x_px": round(axis, 1),
        "left_half_x_px": list(left),
        "right_half_x_px": list(right),
        "film_px_per_half_px": round(scale, 3),  # above 1 the halves hold less detail
    }


def _dicom_storage(path: Path) -> str | None:
    """Return the bits of a DICOM file's pixels in words; None for other files."""
    from kneematch.films.dicom import header_number

    tags = ("BitsStored", "BitsAllocated")
    header = read_header(path, *tags)
    if header is None:
        return None
    stored, allocated = (header_number(header, tag) for tag in tags)
    return " of ".join("?" if n is None else f"{n:g}" for n in (stored, allocated)) + " bits"


def _picture_storage(path: Path) -> tuple[str, str]:
    from PIL import Image

    with silent(), decoding(path, "picture"), Image.open(path) as image:
        return image.format or "picture", PICTURE_DEPTHS.get(image.mode, image.mode)
