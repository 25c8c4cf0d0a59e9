"""Knee joint areas for DICOM viewers: lines to draw on the film, or a picture that has them."""

from collections.abc import Sequence
from typing import Final

import highdicom as hd
import numpy as np
from highdicom import pr
from pydicom import Dataset
from pydicom.uid import JPEGBaseline8Bit

from kneematch import __version__
from kneematch.detection.detection import Detection
from kneematch.detection.overlay import COLOURS, draw_detections
from kneematch.export.dicom_sr import MAKER, Area
from kneematch.io.dicom_header import header_text, header_value
from kneematch.io.radiograph import Radiograph

STATE_SERIES, PICTURE_SERIES = 9502, 9503
# The rows run towards the patient's left and the columns to the feet, as detection takes it.
ORIENTATION: Final = ("L", "F")


def presentation_state(header: Dataset, areas: Sequence[Area]) -> Dataset:
    """How to show a grey film: as its own header says, with the outlines drawn on it."""
    layers = [_layer(order, found) for order, (found, _) in enumerate(areas, start=1)]
    drawn = [_drawn(header, layer, area) for layer, area in zip(layers, areas, strict=True)]
    # A presentation state overrides MONOCHROME1 (PS3.4, N.2.1.4), so it has to say it again.
    white = (
        header_text(header, "PhotometricInterpretation") == "MONOCHROME1"
        or header_text(header, "PresentationLUTShape") == "INVERSE"
    )
    return pr.GrayscaleSoftcopyPresentationState(
        referenced_images=[header],
        series_instance_uid=hd.UID(),
        series_number=STATE_SERIES,
        series_description="Knee joint areas: outlines",
        sop_instance_uid=hd.UID(),
        instance_number=1,
        manufacturer=MAKER,
        manufacturer_model_name=MAKER,
        software_versions=__version__,
        device_serial_number=MAKER,
        content_label="KNEE JOINTS",
        content_description="Knee joint areas",
        graphic_layers=layers,
        graphic_annotations=drawn,
        presentation_lut_transformation=hd.PresentationLUTTransformation(
            presentation_lut_shape="INVERSE" if white else "IDENTITY"
        ),
    )


def picture(header: Dataset, film: Radiograph, detections: Sequence[Detection]) -> Dataset:
    """A secondary capture in colour with the outlines burnt in, as JPEG."""
    drawn = np.asarray(draw_detections(film, detections))
    step = None
    if film.mm_per_px is not None:
        step = film.mm_per_px * film.size[1] / drawn.shape[1]
    capture = hd.sc.SCImage.from_ref_dataset(
        ref_dataset=header,
        pixel_array=drawn,
        photometric_interpretation="YBR_FULL_422",
        bits_allocated=8,
        coordinate_system="PATIENT",
        patient_orientation=_orientation(header),
        series_instance_uid=hd.UID(),
        series_number=PICTURE_SERIES,
        series_description="Knee joint areas: picture",
        sop_instance_uid=hd.UID(),
        instance_number=1,
        manufacturer=MAKER,
        manufacturer_model_name=MAKER,
        software_versions=__version__,
        pixel_spacing=None if step is None else (step, step),
        transfer_syntax_uid=JPEGBaseline8Bit,
    )
    capture.LossyImageCompression = "01"
    capture.LossyImageCompressionMethod = "ISO_10918_1"
    capture.LossyImageCompressionRatio = round(drawn.size / len(capture.PixelData), 2)
    capture.DerivationDescription = "Knee joint areas drawn on the film, reduced in size"
    origin = Dataset()
    origin.ReferencedSOPClassUID = header.SOPClassUID
    origin.ReferencedSOPInstanceUID = header.SOPInstanceUID
    capture.SourceImageSequence = [origin]
    return capture


def _layer(order: int, found: Detection) -> pr.GraphicLayer:
    return pr.GraphicLayer(
        layer_name=f"KNEE {found.laterality}",
        order=order,
        description=f"Knee joint area, {found.side} in the picture",
        display_color=hd.color.CIELabColor.from_rgb(*COLOURS[found.side]),
    )


def _drawn(header: Dataset, layer: pr.GraphicLayer, area: Area) -> pr.GraphicAnnotation:
    """An outline, and side and loss at its uppermost point."""
    found, outline = area
    line = pr.GraphicObject(
        graphic_type=pr.GraphicTypeValues.POLYLINE,
        graphic_data=outline,
        units=pr.AnnotationUnitsValues.PIXEL,
    )
    x, y = outline[outline[:, 1].argmin()].tolist()
    label = pr.TextObject(
        text_value=f"{found.laterality} {found.loss:.2f}",
        units=pr.AnnotationUnitsValues.PIXEL,
        anchor_point=(x, y),
        anchor_point_visible=False,
    )
    return pr.GraphicAnnotation(
        referenced_images=[header],
        graphic_layer=layer,
        graphic_objects=[line],
        text_objects=[label],
    )


def _orientation(header: Dataset) -> tuple[str, str]:
    stated = header_value(header, "PatientOrientation")
    values = [str(value) for value in stated] if isinstance(stated, Sequence) else []
    known = {item.value for item in hd.PatientOrientationValuesBiped}
    if len(values) == 2 and known.issuperset(values):
        return values[0], values[1]
    return ORIENTATION
