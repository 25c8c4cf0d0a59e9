"""What a film's file holds, and where the film would be split."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from kneematch.errors import NotARadiograph
from kneematch.geometry.split import spans, split, symmetry_axis
from kneematch.io.limits import decoding
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import is_dicom, read

Span = tuple[int, int]  # columns from x0 to before x1

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
    """Read a film and say what was found; raises what `read` raises."""
    where = Path(path)
    film = read(where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the readers' remarks on odd headers, as in `read`
        kind, stored = _dicom_storage(where) if is_dicom(where) else _picture_storage(where)
    try:
        halves = split(film)
    except NotARadiograph as error:
        raise NotARadiograph(f"{where}: {error}") from error
    axis, columns = split_lines(film)
    scale = float(halves.to_film[0, 1, 1]) * 2 / halves.size[0]
    return Description(film, kind, stored, axis, columns, scale)


def split_lines(film: Radiograph) -> tuple[float, tuple[Span, Span]]:
    """The symmetry axis and the columns of the film in the left and in the right half."""
    axis = symmetry_axis(torch.from_numpy(film.pixels))
    return axis, spans(film.size[1], axis)


def _dicom_storage(path: Path) -> tuple[str, str]:
    from pydicom import dcmread

    from kneematch.io.dicom_header import header_value

    tags = ["BitsStored", "BitsAllocated"]
    with decoding(path, "DICOM"):
        header = dcmread(path, force=True, stop_before_pixels=True, specific_tags=list(tags))
    stored, allocated = (header_value(header, tag) for tag in tags)
    return "DICOM", f"{stored or '?'} of {allocated or '?'} bits"


def _picture_storage(path: Path) -> tuple[str, str]:
    from PIL import Image

    with decoding(path, "picture"), Image.open(path) as image:
        return image.format or "picture", PICTURE_DEPTHS.get(image.mode, image.mode)
