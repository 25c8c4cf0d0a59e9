"""What a film's DICOM header says beside the pixels, read leniently and without patient data."""

import math
import struct
from pathlib import Path
from typing import Any

from pydicom import Dataset

from kneematch.errors import NotARadiograph

SQUARE_WITHIN = 0.01  # the relative difference of the two spacings that is still rounding
SIDES = ("L", "R", "B")

# What pydicom raises on an element whose bytes do not fit its kind.
BAD_ELEMENT = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    NotImplementedError,
    OverflowError,
    struct.error,
)


def header_value(dataset: Dataset, keyword: str) -> Any:
    """An element's value, or None where it is absent, empty or garbage."""
    try:
        value = dataset.get(keyword)
    except BAD_ELEMENT:
        return None
    return None if value in (None, "") else value


def header_text(dataset: Dataset, keyword: str) -> str | None:
    """An element as one printable line, or None."""
    return one_line(str(header_value(dataset, keyword) or "")) or None


def one_line(text: str) -> str:
    """A text of unknown origin without line breaks and other unprintable signs."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def header_number(dataset: Dataset, keyword: str) -> float | None:
    """An element as one finite number, or None."""
    numbers = _numbers(header_value(dataset, keyword))
    return numbers[0] if len(numbers) == 1 else None


def laterality(dataset: Dataset) -> str | None:
    """The patient's side, "L", "R" or "B", as the image or else its series is tagged."""
    for keyword in ("ImageLaterality", "Laterality"):
        side = header_text(dataset, keyword)
        if side in SIDES:
            return side
    return None


def spacing(dataset: Dataset, path: Path) -> tuple[float | None, str | None]:
    """Millimetres per pixel and the keyword it came from.

    PixelSpacing comes first, since it may be calibrated (DICOM PS3.3, 10.7); where it only repeats
    ImagerPixelSpacing, it is that: the spacing at the detector. Neither is divided by
    EstimatedRadiographicMagnificationFactor, by which the knee, nearer to the tube than the
    detector is, appears enlarged; the keyword lets the reader decide.
    """
    at_detector = _pair(dataset, "ImagerPixelSpacing")
    calibrated = _pair(dataset, "PixelSpacing")
    if calibrated == at_detector:
        calibrated = None
    candidates = {
        "PixelSpacing": calibrated,
        "ImagerPixelSpacing": at_detector,
        "NominalScannedPixelSpacing": _pair(dataset, "NominalScannedPixelSpacing"),
    }
    for keyword, pair in candidates.items():
        if pair is not None:
            _check_square(pair, keyword, path)
            return pair[1], keyword
    aspect = _pair(dataset, "PixelAspectRatio")
    if aspect is not None:
        _check_square(aspect, "PixelAspectRatio", path)
    return None, None


def _pair(dataset: Dataset, keyword: str) -> tuple[float, float] | None:
    """Two positive numbers, those of a row's and a column's step."""
    numbers = _numbers(header_value(dataset, keyword))
    if len(numbers) != 2 or min(numbers) <= 0:
        return None
    return numbers[0], numbers[1]


def _numbers(value: Any) -> list[float]:
    """The finite numbers of an element, or none at all if one of them is not."""
    values = [value] if isinstance(value, (str, int, float)) else value or []
    try:
        numbers = [float(v) for v in values]
    except (TypeError, ValueError):
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _check_square(pair: tuple[float, float], keyword: str, path: Path) -> None:
    if abs(pair[0] - pair[1]) > SQUARE_WITHIN * max(pair):
        raise NotARadiograph(
            f"{path}: {keyword} is {pair[0]:g} by {pair[1]:g}; expected square pixels; "
            "resample the film or correct its header"
        )
