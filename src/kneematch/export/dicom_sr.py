"""A structured report of knee joint areas: DICOM's template TID 1500."""

from collections.abc import Sequence
from typing import Final

import highdicom as hd
import numpy as np
from highdicom import sr
from numpy.typing import NDArray
from pydicom import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code
from pydicom.uid import generate_uid

from kneematch import __version__
from kneematch.detection.detection import Detection

MAKER: Final = "kneematch"
SERIES_NUMBER: Final = 9501  # far from those of scanners
LATERALITY: Final = {"R": codes.SCT.Right, "L": codes.SCT.Left}
PIXELS: Final = Code("{pixels}", "UCUM", "Pixels")

Area = tuple[Detection, NDArray[np.float64]]  # with its outline on the film (K, 2), closed


def report(header: Dataset, areas: Sequence[Area]) -> Dataset:
    """Each area as a planar region of the film, with the knee's side, its width and its height."""
    document = sr.MeasurementReport(
        observation_context=_observer(),
        procedure_reported=codes.cid100.XRUnspecifiedBodyRegion,
        imaging_measurements=[_area(header, found, outline) for found, outline in areas],
    )
    return sr.ComprehensiveSR(
        evidence=[header],
        content=document,
        series_instance_uid=hd.UID(),
        series_number=SERIES_NUMBER,
        series_description="Knee joint areas: report",
        sop_instance_uid=hd.UID(),
        instance_number=1,
        manufacturer=MAKER,
        manufacturer_model_name=MAKER,
        software_versions=__version__,
        is_complete=True,
    )


def _observer() -> sr.ObservationContext:
    """Who says so: this program."""
    device = sr.DeviceObserverIdentifyingAttributes(
        uid=generate_uid(entropy_srcs=[MAKER, __version__]), name=MAKER, model_name=__version__
    )
    context = sr.ObserverContext(
        observer_type=codes.DCM.Device, observer_identifying_attributes=device
    )
    return sr.ObservationContext(observer_device_context=context)


def _area(
    header: Dataset, found: Detection, outline: NDArray[np.float64]
) -> sr.PlanarROIMeasurementsAndQualitativeEvaluations:
    source = sr.SourceImageForRegion.from_source_image(header)
    return sr.PlanarROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=hd.UID(), identifier=f"Knee joint area {found.laterality}"
        ),
        referenced_region=sr.ImageRegion(
            graphic_type=sr.GraphicTypeValues.POLYLINE, graphic_data=outline, source_image=source
        ),
        finding_category=codes.SCT.AnatomicalStructure,
        finding_type=codes.SCT.KneeJoint,
        finding_sites=[
            sr.FindingSite(codes.SCT.KneeJoint, laterality=LATERALITY[found.laterality])
        ],
        algorithm_id=sr.AlgorithmIdentification(
            name=f"{MAKER} {found.method}", version=__version__
        ),
        measurements=_sizes(found),
    )


def _sizes(found: Detection) -> list[sr.Measurement]:
    """Of the whole area, also where it reaches past the film."""
    if found.width_mm is None or found.height_mm is None:
        width, height, unit = found.width_px, found.height_px, PIXELS
    else:
        width, height, unit = found.width_mm, found.height_mm, codes.UCUM.Millimeter
    return [
        sr.Measurement(name=codes.SCT.Width, value=round(width, 3), unit=unit),
        sr.Measurement(name=codes.DCM.Height, value=round(height, 3), unit=unit),
    ]
