"""Crops as 16-bit PNG, and crops.csv, which says where on its film each lies."""

import csv
import os
from collections.abc import Iterable
from typing import Final

from kneematch.detection.crop import CropSize, cut, place
from kneematch.detection.detection import Detection
from kneematch.io.atomic import write_aside
from kneematch.io.radiograph import Radiograph
from kneematch.io.write import write_png16

# film x = xx * crop x + xy * crop y + x0, film y = yx * crop x + yy * crop y + y0; pixels of both
# count from their image's top left corner, so that the first one's middle is (0.5, 0.5).
MAP: Final = ("xx", "xy", "x0", "yx", "yy", "y0")
COLUMNS: Final = ("film", "side", "laterality", "file", "mm_per_px", "polarity", *MAP)
DECIMALS: Final = 6


def crop_name(name: str, side: str) -> str:
    """The file of a crop; distinct where the names of the films are."""
    return f"{name}-{side}.png"


def save_crop(
    film: Radiograph, found: Detection, path: str | os.PathLike[str], size: CropSize
) -> None:
    """Cut one knee from its film and write it."""
    write_png16(path, cut(film, place(found, size)))


def write_crops(
    rows: Iterable[tuple[str, Detection, str]], path: str | os.PathLike[str], size: CropSize
) -> None:
    """Write crops.csv: rows of a film's name, a detection on it and the file of its crop.

    Films are not needed, so that a run that was continued can tell of the crops made before.
    """
    with (
        write_aside(path) as aside,
        aside.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for film, found, crop in rows:
            table.writerow(_row(film, found, crop, size))


def _row(film: str, found: Detection, crop: str, size: CropSize) -> list[str]:
    placed = place(found, size)
    mm_per_px = "" if found.mm_per_px is None else _number(found.mm_per_px * placed.step_px)
    numbers = map(_number, placed.pixel_map.flatten().tolist())
    return [film, found.side, found.laterality, crop, mm_per_px, found.polarity, *numbers]


def _number(value: float) -> str:
    return f"{round(value, DECIMALS) + 0.0:.{DECIMALS}f}"  # + 0: no negative zero
