"""A DICOM structured report of knee joint areas (PS3.16, TID 1500, Measurement Report).

Each knee is a planar region (TID 1410) with its side, width, height, loss, whether it needs a
review and why, its landmarks, and the measures of its joint. Concepts that DICOM has no code for
are coded as 99KNEEMATCH.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import highdicom as hd
import numpy as np
from highdicom import sr
from numpy.typing import NDArray
from pydicom import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.uid import generate_uid

from kneematch import __version__
from kneematch.knee.detection import Detection
from kneematch.knee.measure import ANGLE, AREA, COMPARTMENTS, FIXED_WIDTHS, LENGTHS, WIDTH, in_mm
from kneematch.run.outputs import dicom_content as content
from kneematch.run.outputs.dicom_content import HAS_CONTEXT, HAS_MODIFIER, HAS_PROPERTIES

MAKER: Final = "kneematch"
SCHEME: Final = "99KNEEMATCH"
LOSS: Final = Code("LOSS", SCHEME, "Matching loss")
EXPECTED_ERROR: Final = Code("EXPECTED_ERROR", SCHEME, "Expected error of the margins")
REVIEW: Final = Code("REVIEW", SCHEME, "Needs review by a person")
REASON: Final = Code("REASON", SCHEME, "Reason for review")
DECISION: Final = Code("DECISION", SCHEME, "Decision of the reviewer")
GROUP: Final = codes.DCM.MeasurementGroup
CATEGORY: Final = Code("276214006", "SCT", "Finding category")
FRONTAL_KNEE: Final = Code("FRONTAL_KNEE", SCHEME, "Frontal view of a knee joint")
LANDMARK: Final = Code("LANDMARK", SCHEME, "Landmark")
OUTLINE: Final = Code("OUTLINE", SCHEME, "Border of a bone at the joint")
MEASURE_SD: Final = Code("MEASURE_SD", SCHEME, "Standard deviation of the measure")
REPORTED_X: Final = (0.225, 0.25, 0.725, 0.75)  # fixed locations; tables have all of them
MEASURES: Final = {  # how measures are called
    **{
        f"jsw_{side}_{kind}": f"{side.capitalize()} {kind.replace('_', ' ')} joint-space width"
        for side in COMPARTMENTS
        for kind in LENGTHS
    },
    **{
        f"joint_space_{side}_area": f"{side.capitalize()} joint-space area" for side in COMPARTMENTS
    },
    **{
        name: f"Joint-space width at x = {x:.3f}"
        for name, x in FIXED_WIDTHS.items()
        if x in REPORTED_X
    },
    "joint_line_angle": "Joint-line angle",
    "tibiofemoral_angle": "Tibiofemoral angle",
}
LATERALITY: Final = {"R": codes.SCT.Right, "L": codes.SCT.Left}
COMPARTMENT_CODES: Final = {"medial": codes.SCT.Medial, "lateral": codes.SCT.Lateral}
DERIVATIONS: Final = {"minimum": codes.SCT.Minimum, "mean": codes.SCT.Mean}
PIXELS: Final = Code("{pixels}", "UCUM", "Pixels")
UNITS: Final = {  # by unit of a measure, and whether it is in mm
    (WIDTH, False): codes.UCUM.Percent,  # relative to the width of the tibial plateau
    (AREA, False): codes.UCUM.Percent,  # relative to its square
    (WIDTH, True): codes.UCUM.Millimeter,
    (AREA, True): codes.UCUM.SquareMillimeter,
    (ANGLE, False): codes.UCUM.Degree,
}
REPORT_SERIES: Final = 9501  # series numbers far from those of scanners


def structured_report(
    header: Dataset, knees: Sequence[Detection], size: tuple[int, int]
) -> Dataset:
    """Return a Comprehensive SR of the areas on one film, or that it shows no frontal knee.

    Args:
        header: the film's header.
        knees: those that lie on the film, at least in part.
        size: the film's (height, width) in pixels.
    """
    document = sr.MeasurementReport(
        observation_context=_observer(),
        procedure_reported=codes.cid100.XRUnspecifiedBodyRegion,
        imaging_measurements=[_negative(header)],
    )
    # highdicom needs a group, and copies and searches all content: it gets the group of a film
    # without knees, which those of knees replace.
    measurements = document[0].ContentSequence.pop()
    report: Dataset = sr.ComprehensiveSR(
        evidence=[header],
        content=document,
        is_complete=True,
        specific_character_set=content.CHARSET,
        **instance_attributes(REPORT_SERIES, "report"),
    )
    groups = [content.group(GROUP, "1410", *_knee_content(header, knee, size)) for knee in knees]
    if not knees:
        groups = [content.encoded(item) for item in measurements.ContentSequence]
    own = [content.encoded(item) for item in report.ContentSequence]
    content.set_content(report, *own, content.container(measurements, *groups))
    return report


def _negative(header: Dataset) -> sr.MeasurementsAndQualitativeEvaluations:
    """Say that a film shows no frontal knee."""
    return sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(uid=hd.UID(), identifier="Film"),
        finding_type=codes.SCT.KneeJoint,
        algorithm_id=sr.AlgorithmIdentification(name=MAKER, version=__version__),
        qualitative_evaluations=[sr.QualitativeEvaluation(FRONTAL_KNEE, codes.DCM.Absent)],
        source_images=[sr.SourceImageForMeasurementGroup.from_source_image(header)],
    )


def instance_attributes(series_number: int, what: str) -> dict[str, Any]:
    """Return the attributes of series, instance and equipment that all objects share."""
    return {
        "series_instance_uid": hd.UID(),
        "series_number": series_number,
        "series_description": f"Knee joint areas: {what}",
        "sop_instance_uid": hd.UID(),
        "instance_number": 1,
        "manufacturer": MAKER,
        "manufacturer_model_name": MAKER,
        "software_versions": __version__,
    }


def outline_on_film(found: Detection, size: tuple[int, int]) -> NDArray[np.float64]:
    """Return the part of an area that lies on a film of size (height, width).

    Like DICOM, coordinates count from the outer corner of the first pixel.

    Returns:
        A closed polygon (K, 2) of points (x, y); (0, 2) for an area off the film.
    """
    points = found.corners
    for axis, sign, limit in ((0, 1, 0), (0, -1, -size[1]), (1, 1, 0), (1, -1, -size[0])):
        points = _clip(points, axis, sign, limit)
    return np.concatenate([points, points[:1]])


def _clip(points: NDArray[np.float64], axis: int, sign: int, limit: float) -> NDArray[np.float64]:
    """Clip a convex polygon (K, 2) to sign * coordinate >= limit (Sutherland and Hodgman, 1974)."""
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


def _observer() -> sr.ObservationContext:
    """Name this program as the observer."""
    device = sr.DeviceObserverIdentifyingAttributes(
        uid=generate_uid(entropy_srcs=[MAKER, __version__]), name=MAKER, model_name=__version__
    )
    context = sr.ObserverContext(
        observer_type=codes.DCM.Device, observer_identifying_attributes=device
    )
    return sr.ObservationContext(observer_device_context=context)


def _knee_content(header: Dataset, knee: Detection, size: tuple[int, int]) -> Iterator[bytes]:
    """Yield what a group says of its knee: the area, and what is known of it (TID 1410)."""
    name = f"Knee joint area {knee.laterality or f'image {knee.side}'}"
    yield content.text(codes.DCM.TrackingIdentifier, name, relationship=HAS_CONTEXT)
    yield content.new_uid(codes.DCM.TrackingUniqueIdentifier)
    yield content.code(CATEGORY, codes.SCT.AnatomicalStructure)
    yield content.code(codes.DCM.Finding, codes.SCT.KneeJoint)
    side = LATERALITY.get(knee.laterality)
    which = [content.code(codes.SCT.Laterality, side, relationship=HAS_MODIFIER)] if side else []
    yield content.code(
        codes.SCT.FindingSite, codes.SCT.KneeJoint, *which, relationship=HAS_MODIFIER
    )
    for code, said in (
        (codes.DCM.AlgorithmName, f"{MAKER} {knee.method}"),
        (codes.DCM.AlgorithmVersion, __version__),
    ):
        yield content.text(code, said, relationship=HAS_MODIFIER)
    yield content.code(REVIEW, codes.SCT.Yes if knee.needs_review else codes.SCT.No)
    yield content.region(outline_on_film(knee, size), header, relationship=content.CONTAINS)
    yield from _measurements(knee)
    for reason in knee.review_reasons:
        yield content.text(REASON, reason)
    if knee.decision:
        yield content.text(DECISION, knee.decision)
    for landmark, (x, y) in knee.landmarks.items():
        if 0 <= x <= size[1] and 0 <= y <= size[0]:
            place = content.region(np.array([(x, y)]), header)
            yield content.text(LANDMARK, landmark, place)
    if knee.measures is not None:
        bones = knee.measures.outlines
        for bone, line in (("femur", bones.femur), ("tibia", bones.tibia)):
            place = content.region(line.clip(0, size[::-1]), header)
            yield content.text(OUTLINE, bone, place)


def _measurements(knee: Detection) -> Iterator[bytes]:
    """Yield width and height of the whole area, even where it leaves the film, and the loss."""
    if knee.width_mm is None or knee.height_mm is None:
        width, height, unit = knee.width_px, knee.height_px, PIXELS
    else:
        width, height, unit = knee.width_mm, knee.height_mm, codes.UCUM.Millimeter
    yield content.number(codes.SCT.Width, round(width, 3), unit)
    yield content.number(codes.DCM.Height, round(height, 3), unit)
    if math.isfinite(knee.loss):
        yield content.number(LOSS, round(knee.loss, 6), codes.UCUM.NoUnits)
    if knee.expected_error_px is not None:
        error = knee.expected_error_px * (knee.mm_per_px or 1)
        yield content.number(EXPECTED_ERROR, round(error, 3), unit)
    yield from _joint_measurements(knee)


def _joint_measurements(knee: Detection) -> Iterator[bytes]:
    """Yield the measures of the joint and their deviations, in mm where the film has spacing."""
    if knee.measures is None:
        return
    outlines = knee.measures.outlines
    for name, measure in knee.measures.values.items():
        if measure.value is None or name not in MEASURES:
            continue
        length = in_mm(measure, outlines)
        unit = UNITS[measure.unit, length is not None]
        value = measure.value if length is None else length
        more = []
        if derivation := DERIVATIONS.get(name.rsplit("_", 1)[-1]):
            more.append(content.code(codes.DCM.Derivation, derivation, relationship=HAS_MODIFIER))
        # The joint and its side are those of the group.
        more += [_compartment(part) for word, part in COMPARTMENT_CODES.items() if word in name]
        if measure.sd is not None:
            length = in_mm(replace(measure, value=measure.sd), outlines)
            sd = round(measure.sd if length is None else length, 4)
            more.append(content.number(MEASURE_SD, sd, unit, relationship=HAS_PROPERTIES))
        code = Code(name.upper()[:16], SCHEME, MEASURES[name])
        yield content.number(code, round(value, 4), unit, *more)


@cache
def _compartment(part: Code) -> bytes:
    """Return a compartment of the joint as the site of a measure."""
    modifier = codes.SCT.TopographicalModifier, part
    site = codes.SCT.FindingSite, codes.SCT.KneeJoint
    where = content.code(*modifier, relationship=HAS_MODIFIER)
    return content.code(*site, where, relationship=HAS_MODIFIER)
