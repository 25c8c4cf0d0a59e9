"""What was found on a DICOM film as DICOM: a report, a presentation state, a picture.

Patient and study are those of the film, since the results belong to it; file names tell nothing.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, dcmread
from pydicom.valuerep import DA, TM

from kneematch.detection.detection import Detection
from kneematch.errors import FilmError
from kneematch.io.atomic import write_aside
from kneematch.io.dicom_header import BAD_ELEMENT, header_text, header_value
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import is_dicom

REPORT, STATE, PICTURE = "report", "state", "picture"  # the ends of the files' names
IDENTIFIERS: Final = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")
PRESENT: Final = (  # what an object of any class must have, be it empty
    "PatientName",
    "PatientID",
    "PatientBirthDate",
    "PatientSex",
    "StudyDate",
    "StudyTime",
    "StudyID",
    "AccessionNumber",
    "ReferringPhysicianName",
)
SEXES: Final = ("M", "F", "O")


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that were written, and why any is missing."""

    files: tuple[str, ...] = ()
    reason: str = ""


def export_dicom(
    source: str | os.PathLike[str],
    film: Radiograph,
    detections: Sequence[Detection],
    folder: str | os.PathLike[str],
    name: str,
) -> Exported:
    """Write NAME-report.dcm, NAME-state.dcm and NAME-picture.dcm for one film.

    Silences warnings, which only one thread at a time may.

    Args:
        source: the film's file; one that is not DICOM has a reason and no files.
        film: what was read from it.
        detections: what was found on it.
        folder: where the files appear.
        name: their beginning.
    """
    files: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on odd headers, with patients' names in them
        try:
            made, reason = _objects(source_header(source), film, detections)
            for kind, dataset in made.items():
                with write_aside(Path(folder) / f"{name}-{kind}.dcm") as aside:
                    dataset.save_as(aside, enforce_file_format=True)
                files.append(f"{name}-{kind}.dcm")
        except FilmError as error:
            return Exported(reason=str(error))
        except BAD_ELEMENT as error:
            # What the error says may quote the header, which is nobody's business.
            reason = (
                f"a header that DICOM objects cannot refer to ({type(error).__name__}); expected "
                "one that keeps to the standard; mend the header, or leave the film out"
            )
    return Exported(tuple(files), reason and f"{os.fspath(source)}: {reason}")


def source_header(path: str | os.PathLike[str]) -> Dataset:
    """The header of a film, with the elements that others take for granted.

    Raises:
        FilmError: it is not DICOM, or cannot be referred to.
    """
    if not is_dicom(path):
        raise FilmError(
            f"{os.fspath(path)}: not a DICOM; expected one, with a patient and a study to add to; "
            "leave it out, or export it as --export coco"
        )
    header = dcmread(path, stop_before_pixels=True, force=True)
    missing = [keyword for keyword in IDENTIFIERS if not header_text(header, keyword)]
    if missing:
        raise FilmError(
            f"{os.fspath(path)}: a DICOM without {' and '.join(missing)}; expected all of "
            f"{', '.join(IDENTIFIERS)}; export the film again from its archive"
        )
    for keyword in PRESENT:
        if not _valid(header, keyword):
            setattr(header, keyword, None)
    return header


def outline_on_film(found: Detection, size: tuple[int, int]) -> NDArray[np.float64]:
    """The part of an area (K, 2) that lies on a film of (height, width), closed; or none (0, 2).

    DICOM counts, as we do, from the outer corner of the first pixel.
    """
    points = found.corners
    for axis, sign, limit in ((0, 1, 0), (0, -1, -size[1]), (1, 1, 0), (1, -1, -size[0])):
        points = _clipped(points, axis, sign, limit)
    return np.concatenate([points, points[:1]])


def _objects(
    header: Dataset, film: Radiograph, detections: Sequence[Detection]
) -> tuple[dict[str, Dataset], str]:
    """Every object that the film allows, and why one is missing."""
    from kneematch.export.dicom_gsps import picture, presentation_state
    from kneematch.export.dicom_sr import report

    outlines = [outline_on_film(found, film.size) for found in detections]
    areas = [pair for pair in zip(detections, outlines, strict=True) if len(pair[1])]
    if not areas:
        return {}, "no area on the film; expected one or two knees; look at its picture"
    made = {REPORT: report(header, areas)}
    reason = ""
    if header_value(header, "SamplesPerPixel") == 1:
        made[STATE] = presentation_state(header, areas)
    else:
        reason = (
            "a film in colours has no presentation state; expected greyscale; use the report "
            "or the picture"
        )
    made[PICTURE] = picture(header, film, detections)
    return made, reason


def _valid(header: Dataset, keyword: str) -> bool:
    """Whether an element is there and what its kind asks for."""
    value = header_value(header, keyword)
    try:
        if keyword.endswith("Date"):
            return DA(value) is not None
        if keyword.endswith("Time"):
            return TM(value) is not None
    except BAD_ELEMENT:
        return False
    return value in SEXES if keyword == "PatientSex" else value is not None


def _clipped(
    points: NDArray[np.float64], axis: int, sign: int, limit: float
) -> NDArray[np.float64]:
    """The part of a convex polygon (K, 2) where sign * coordinate >= limit."""
    kept = []
    for here, there in zip(points, np.roll(points, -1, axis=0), strict=True):
        a, b = sign * here[axis] - limit, sign * there[axis] - limit
        if a >= 0:
            kept.append(here)
        if a * b < 0:
            crossing = here + a / (a - b) * (there - here)
            crossing[axis] = sign * limit
            kept.append(crossing)
    return np.array(kept).reshape(-1, 2)
