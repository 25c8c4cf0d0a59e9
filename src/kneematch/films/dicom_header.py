"""Read single elements of a DICOM header leniently: garbage counts as absent."""

import math
import re
import struct
from pathlib import Path
from typing import Any, Final

from pydicom import Dataset, Sequence
from pydicom.errors import BytesLengthException
from pydicom.multival import MultiValue
from pydicom.uid import UID

from kneematch.errors import NotARadiograph
from kneematch.films.radiograph import BOTH_KNEES, LATERALITIES

SQUARE_WITHIN: Final = 0.01  # the relative difference of the two spacings that is still rounding
SPACINGS: Final = (
    "PixelSpacing",
    "ImagerPixelSpacing",
    "NominalScannedPixelSpacing",
    "PixelAspectRatio",
)
# Elements that may say that a film shows both knees, and how they say it.
DESCRIPTIONS: Final = (
    "SeriesDescription",
    "StudyDescription",
    "ProtocolName",
    "AcquisitionDeviceProcessingDescription",
    "BodyPartExamined",
    "ViewPosition",
)
BOTH: Final = re.compile(r"bilat|both|knees|beid|amb[ao]s|entramb|\bb/l\b", re.IGNORECASE)
# The patient's left and feet: the axes of a frontal film as (left, feet).
AXES: Final = {"L": (1, 0), "R": (-1, 0), "F": (0, 1), "H": (0, -1)}
PATIENT_AND_STUDY: Final = (  # type 2: every object has them, if only empty
    "PatientID",
    "PatientBirthDate",
    "PatientSex",
    "StudyDate",
    "StudyTime",
    "StudyID",
    "AccessionNumber",
    "ReferringPhysicianName",
)

# What pydicom raises on an element whose bytes do not fit its value representation.
BAD_ELEMENT: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    NotImplementedError,
    OverflowError,
    RecursionError,  # sequences nested hundreds deep
    struct.error,
    BytesLengthException,
)


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


def uid_name(value: Any) -> str | None:
    """Return the name of a registered UID; None for others, whose text may say anything."""
    name = UID(value).name if isinstance(value, str) else value
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
    pairs = {keyword: _pair(dataset, keyword) for keyword in SPACINGS}
    if pairs["PixelSpacing"] == pairs["ImagerPixelSpacing"]:
        del pairs["PixelSpacing"]
    for keyword, pair in pairs.items():
        if pair is not None:
            _check_square(pair, keyword, path)
            return (None, None) if keyword == "PixelAspectRatio" else (pair[1], keyword)
    return None, None


def _pair(dataset: Dataset, keyword: str) -> tuple[float, float] | None:
    """Return two positive numbers, the distances of rows and of columns, or None."""
    numbers = _numbers(header_value(dataset, keyword))
    if len(numbers) != 2 or min(numbers) <= 0:
        return None
    return numbers[0], numbers[1]


def _numbers(value: Any) -> list[float]:
    """Return an element's numbers, or an empty list if any of them is not finite."""
    values = [value] if isinstance(value, (str, int, float)) else value or []
    try:
        numbers = [float(v) for v in values]
    except (TypeError, ValueError):
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _check_square(pair: tuple[float, float], keyword: str, path: Path) -> None:
    if abs(pair[0] - pair[1]) > SQUARE_WITHIN * max(pair):
        raise NotARadiograph(
            f"{path}: {keyword} says that pixels are {pair[0] / pair[1]:.3g} times as high as "
            "wide. Resample the film to square pixels or correct its header."
        )
