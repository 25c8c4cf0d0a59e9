"""Detections on a DICOM film as DICOM objects of the same patient and study.

Each film gets a structured report, a presentation state and a secondary capture.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydicom import Dataset
from pydicom.valuerep import DA, TM

from kneematch.errors import FilmError
from kneematch.films.dicom_header import BAD_ELEMENT, PATIENT_AND_STUDY, header_text, header_value
from kneematch.films.files import atomic_write
from kneematch.films.limits import silent
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read_header
from kneematch.knee.detection import Detection
from kneematch.run.artifacts import PICTURE, REPORT, STATE

IDENTIFIERS: Final = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")


def export_dicom(
    source: str | os.PathLike[str],
    film: Radiograph,
    detections: Sequence[Detection],
    folder: str | os.PathLike[str],
    name: str,
) -> str:
    """Write NAME-report.dcm, NAME-state.dcm and NAME-picture.dcm for one film.

    Warnings are suppressed meanwhile, for the whole process: call it from one thread at a time.

    Args:
        source: the film's file.
        film: the film as it was read from `source`.
        detections: the knees found on it.
        folder: an existing folder for the files.
        name: the beginning of their names.

    Returns:
        Why files are missing, or "". A film that is not DICOM gets none.
    """
    with silent():
        try:
            objects, reason = _objects(_source_header(source), film, detections)
            for ending, dataset in objects.items():
                with atomic_write(Path(folder) / f"{name}-{ending}.dcm") as temp:
                    dataset.save_as(temp, enforce_file_format=True)
        except FilmError as error:
            return str(error)
        except BAD_ELEMENT as error:  # its text may quote the header, so it is not shown
            reason = (
                "DICOM objects cannot refer to this film, since its header does not keep to the "
                f"standard ({type(error).__name__})."
            )
    return reason and f"{os.fspath(source)}: {reason}"


def _source_header(path: str | os.PathLike[str]) -> Dataset:
    """Read a film's header and empty the patient and study attributes that are missing or invalid.

    Raises:
        FilmError: the file is not DICOM, or lacks an identifier.
    """
    header = read_header(path)
    if header is None:
        raise FilmError(
            f"{os.fspath(path)}: The film is not DICOM, so that there is no patient and no study "
            "to add to."
        )
    missing = [keyword for keyword in IDENTIFIERS if not header_text(header, keyword)]
    if missing:
        raise FilmError(
            f"{os.fspath(path)}: The header lacks {' and '.join(missing)}. Export the film again "
            "from its archive."
        )
    for keyword in ("PatientName", *PATIENT_AND_STUDY):
        if not _is_valid(header, keyword):
            setattr(header, keyword, None)
    return header


def _objects(
    header: Dataset, film: Radiograph, detections: Sequence[Detection]
) -> tuple[dict[str, Dataset], str]:
    """Return the objects by the ending of their file names, and why one is missing."""
    from kneematch.run.outputs.dicom_gsps import presentation_state, secondary_capture
    from kneematch.run.outputs.dicom_sr import outline_on_film, structured_report

    knees = [found for found in detections if len(outline_on_film(found, film.size))]
    if not knees:
        return {}, "No joint area lies on the film."
    objects = {REPORT: structured_report(header, knees, film.size)}
    reason = ""
    if header_value(header, "SamplesPerPixel") == 1:
        objects[STATE] = presentation_state(header, knees, film.size)
    else:
        reason = "A film in colours has no presentation state."
    objects[PICTURE] = secondary_capture(header, film, detections)
    sides = {found.laterality for found in detections}
    for ending in {STATE, PICTURE} & objects.keys():
        # Type 2C in the General Series module: may be empty, but not absent.
        objects[ending].Laterality = min(sides) if sides in ({"L"}, {"R"}) else None
    return objects, reason


def _is_valid(header: Dataset, keyword: str) -> bool:
    value = header_value(header, keyword)
    try:
        if keyword.endswith("Date"):
            return DA(value) is not None
        if keyword.endswith("Time"):
            return TM(value) is not None
    except BAD_ELEMENT:
        return False
    return value in ("M", "F", "O") if keyword == "PatientSex" else value is not None
