"""Detections on a DICOM film as DICOM objects of the same patient and study.

A structured report, a secondary capture, which is a picture of the film with the outlines burned
in, and a segmentation of measured knees.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import highdicom as hd
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from pydicom import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.valuerep import DA, TM

from kneematch import __version__
from kneematch.errors import FilmError
from kneematch.films.dicom import (
    BAD_ELEMENT,
    PATIENT_AND_STUDY,
    header_text,
    header_value,
)
from kneematch.films.files import atomic_write
from kneematch.films.radiograph import Radiograph, silent
from kneematch.films.read import read_header
from kneematch.knee.detection import Detection
from kneematch.knee.overlay import draw_detections
from kneematch.run.artifacts import DICOM_ENDINGS, VisitedFilm
from kneematch.run.config import USUAL_OBJECTS
from kneematch.run.outputs.dicom_sr import (
    MAKER,
    instance_attributes,
    outline_on_film,
    structured_report,
)

CAPTURE_SERIES, SEGMENT_SERIES = 9503, 9504
IDENTIFIERS: Final = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")


def export_dicom(
    visited: VisitedFilm, folder: Path, kinds: Sequence[str] = USUAL_OBJECTS
) -> tuple[list[str], str]:
    """Write NAME-report.dcm, NAME-picture.dcm and others for one film to an existing folder.

    Without knees, the report says that the film shows none. Warnings are suppressed meanwhile, for
    the whole process: call it from one thread at a time.

    Args:
        visited: the film, and what was found on it; NAME is the film's.
        folder: where to write.
        kinds: which of DICOM_OBJECTS to write.

    Returns:
        The names of the files, and why some are missing, or "". A film that is not DICOM gets none.
    """
    files: list[str] = []
    with silent():
        try:
            objects = _objects(_source_header(visited.path), visited, kinds)
            for kind, dataset in objects.items():
                file = f"{visited.film.name}-{DICOM_ENDINGS[kind]}.dcm"
                with atomic_write(folder / file) as temp:
                    dataset.save_as(temp, enforce_file_format=True)
                files.append(file)
        except FilmError as error:
            return files, error.message
        except BAD_ELEMENT as error:  # its text may quote the header, so it is not shown
            return files, (
                f"{visited.path}: DICOM objects cannot refer to this film, since its header does "
                f"not keep to the standard ({type(error).__name__})."
            )
    return sorted(files), ""


def _source_header(path: Path) -> Dataset:
    """Read a film's header and empty the patient and study attributes that are missing or invalid.

    Raises:
        FilmError: the header lacks an identifier; a file that is not DICOM lacks all.
    """
    header = read_header(path) or Dataset()
    missing = [keyword for keyword in IDENTIFIERS if not header_text(header, keyword)]
    if missing:
        raise FilmError(
            f"{path}: The header lacks {' and '.join(missing)}. Export the film again "
            "from its archive."
        )
    for keyword in ("PatientName", *PATIENT_AND_STUDY):
        if not _is_valid(header, keyword):
            setattr(header, keyword, None)
    return header


def _objects(header: Dataset, visited: VisitedFilm, kinds: Sequence[str]) -> dict[str, Dataset]:
    """Return the objects by kind.

    Raises:
        FilmError: no joint area lies on the film.
    """
    film = visited.pixels
    # The objects' codes mean knees, not areas of other templates.
    detections = [knee for knee in visited.film.kept if not knee.template]
    knees = [found for found in detections if len(outline_on_film(found, film.size))]
    if detections and not knees:
        raise FilmError(f"{visited.path}: No joint area lies on the film.")
    objects = {}
    if "sr" in kinds:
        objects["sr"] = structured_report(header, knees, film.size)
    if "sc" in kinds and knees:
        picture = visited.picture
        if len(detections) < len(visited.film.kept):  # it shows areas of other templates, too
            picture = draw_detections(film, detections)
        objects["sc"] = secondary_capture(header, film, picture)
        sides = {found.laterality for found in detections}
        # Type 2C in the General Series module: may be empty, but not absent.
        objects["sc"].Laterality = min(sides) if sides in ({"L"}, {"R"}) else None
    if "seg" in kinds and any(knee.measures is not None for knee in knees):
        objects["seg"] = segmentation(header, knees, film.size)
    return objects


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


def secondary_capture(header: Dataset, film: Radiograph, picture: Image.Image) -> Dataset:
    """Return a colour picture of the film with the outlines burned in, uncompressed."""
    spacing: Any = None  # highdicom's annotation says int
    if film.mm_per_px is not None:
        spacing = (film.mm_per_px * film.size[1] / picture.width,) * 2
    capture = hd.sc.SCImage.from_ref_dataset(
        ref_dataset=header,
        pixel_array=np.asarray(picture),
        photometric_interpretation="RGB",
        bits_allocated=8,
        coordinate_system="PATIENT",
        patient_orientation=_orientation(header),
        pixel_spacing=spacing,
        **instance_attributes(CAPTURE_SERIES, "picture"),
    )
    capture.DerivationDescription = "Knee joint areas drawn on the film, reduced in size"
    origin = Dataset()
    origin.ReferencedSOPClassUID = header.SOPClassUID
    origin.ReferencedSOPInstanceUID = header.SOPInstanceUID
    capture.SourceImageSequence = [origin]
    return capture


def segmentation(header: Dataset, knees: Sequence[Detection], size: tuple[int, int]) -> Dataset:
    """Return the joint space, and femur and tibia as far as they are outlined, of measured knees.

    The arguments are those of `structured_report`.
    """
    labels = Image.new("L", size[::-1])
    segments: list[hd.seg.SegmentDescription] = []
    draw = ImageDraw.Draw(labels)
    algorithm = hd.AlgorithmIdentificationSequence(
        MAKER, codes.DCM.ArtificialIntelligence, __version__
    )
    for knee in knees:
        for name, (kind, polygon) in _areas(knee).items():
            number = len(segments) + 1
            draw.polygon(polygon.ravel().tolist(), fill=number)
            label = f"{name} {knee.laterality or 'image ' + knee.side}"
            segments.append(
                hd.seg.SegmentDescription(
                    segment_number=number,
                    segment_label=label,
                    segmented_property_category=codes.SCT.AnatomicalStructure,
                    segmented_property_type=kind,
                    algorithm_type=hd.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
                    algorithm_identification=algorithm,
                    tracking_uid=hd.UID(),
                    tracking_id=label,
                )
            )
    made = hd.seg.Segmentation(
        source_images=[header],
        pixel_array=np.asarray(labels)[None],
        segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=segments,
        omit_empty_frames=False,
        device_serial_number=MAKER,
        **instance_attributes(SEGMENT_SERIES, "segments"),
    )
    made.PatientOrientation = list(_orientation(header))
    made.ContentCreatorName = None  # type 2, which highdicom leaves out
    return made


def _areas(knee: Detection) -> dict[str, tuple[Code, NDArray[np.float64]]]:
    """Return the code and the polygon (K, 2) of each part of a knee that is outlined."""
    if knee.measures is None:
        return {}
    lines = knee.measures.outlines
    areas = {}
    (left, right), (lower_left, lower_right) = lines.femur_sides, lines.tibia_sides
    if len(left) and len(right):
        areas["Femur"] = codes.SCT.Femur, [lines.femur, right[::-1], left]
    if len(lower_left) and len(lower_right):
        areas["Tibia"] = codes.SCT.Tibia, [lines.tibia, lower_right, lower_left[::-1]]
    # Borders that it shares with the bones belong to the joint space, which comes last.
    areas["Joint space"] = codes.SCT.KneeJoint, [lines.femur, lines.tibia[::-1]]
    return {name: (code, np.concatenate(parts)) for name, (code, parts) in areas.items()}


def _orientation(header: Dataset) -> tuple[str, str]:
    stated = header_value(header, "PatientOrientation")
    values = [str(value) for value in stated] if isinstance(stated, Sequence) else []
    known = {item.value for item in hd.PatientOrientationValuesBiped}
    if len(values) == 2 and known.issuperset(values):
        return values[0], values[1]
    return "L", "F"  # rows run to the patient's left and columns to the feet, as detection assumes
