"""Knee joint areas for DICOM viewers: a presentation state and a secondary capture.

The presentation state (GSPS) draws the outlines on the film itself; the capture is a picture of
the film with the outlines burned in. Knees to review are red and have the reasons as text.
"""

from collections.abc import Sequence
from typing import Final

import highdicom as hd
import numpy as np
from highdicom import pr
from numpy.typing import NDArray
from pydicom import Dataset
from pydicom.multival import MultiValue
from pydicom.uid import JPEGBaseline8Bit

from kneematch.films.dicom_header import header_value, lowest_is_white
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detection import Detection
from kneematch.knee.overlay import COLOURS, draw_detections, label_text
from kneematch.run.outputs.dicom_sr import MAKER, instance_attributes, outline_on_film

STATE_SERIES, CAPTURE_SERIES = 9502, 9503
REVIEW_COLOUR: Final = (255, 70, 70)  # outline; overlays have a darker red behind white text


def presentation_state(
    header: Dataset, knees: Sequence[Detection], size: tuple[int, int]
) -> Dataset:
    """Return a state that adds the outlines to a greyscale film and changes nothing else.

    The arguments are those of `structured_report`. A state overrides polarity, rescaling and window
    of its film, and what it leaves out is taken as the identity (PS3.4, N.2.1). It therefore has to
    repeat those of the film.
    """
    same_side = len({knee.laterality for knee in knees}) < len(knees)
    layers = [_layer(order, knee, by_half=same_side) for order, knee in enumerate(knees, start=1)]
    state = pr.GrayscaleSoftcopyPresentationState(
        referenced_images=[header],
        device_serial_number=MAKER,
        content_label="KNEE JOINTS",
        content_description="Knee joint areas",
        graphic_layers=layers,
        graphic_annotations=[
            _annotation(header, layer, knee, outline_on_film(knee, size))
            for layer, knee in zip(layers, knees, strict=True)
        ],
        presentation_lut_transformation=hd.PresentationLUTTransformation(
            presentation_lut_shape="INVERSE" if lowest_is_white(header) else "IDENTITY"
        ),
        **instance_attributes(STATE_SERIES, "outlines"),
    )
    for item in state.get("SoftcopyVOILUTSequence", []):
        _keep_first_window(item)
    return state


def secondary_capture(
    header: Dataset, film: Radiograph, detections: Sequence[Detection]
) -> Dataset:
    """Return a colour picture of the film with the outlines burned in, as JPEG."""
    picture = np.asarray(draw_detections(film, detections))
    spacing = None
    if film.mm_per_px is not None:
        spacing = film.mm_per_px * film.size[1] / picture.shape[1]
    capture = hd.sc.SCImage.from_ref_dataset(
        ref_dataset=header,
        pixel_array=picture,
        photometric_interpretation="YBR_FULL_422",
        bits_allocated=8,
        coordinate_system="PATIENT",
        patient_orientation=_orientation(header),
        pixel_spacing=None if spacing is None else (spacing, spacing),
        transfer_syntax_uid=JPEGBaseline8Bit,
        **instance_attributes(CAPTURE_SERIES, "picture"),
    )
    capture.LossyImageCompression = "01"
    capture.LossyImageCompressionMethod = "ISO_10918_1"
    capture.LossyImageCompressionRatio = round(picture.size / len(capture.PixelData), 2)
    capture.DerivationDescription = "Knee joint areas drawn on the film, reduced in size"
    origin = Dataset()
    origin.ReferencedSOPClassUID = header.SOPClassUID
    origin.ReferencedSOPInstanceUID = header.SOPInstanceUID
    capture.SourceImageSequence = [origin]
    return capture


def _layer(order: int, knee: Detection, *, by_half: bool) -> pr.GraphicLayer:
    """Return the layer of a knee, whose name no other one may have."""
    half = f"{knee.side.upper()} HALF"
    colour = REVIEW_COLOUR if knee.needs_review else COLOURS[knee.side]
    return pr.GraphicLayer(
        layer_name=f"KNEE {half if by_half or not knee.laterality else knee.laterality}",
        order=order,
        description=f"Knee joint area in the {knee.side} half of the picture",
        display_color=hd.color.CIELabColor.from_rgb(*colour),
    )


def _annotation(
    header: Dataset, layer: pr.GraphicLayer, knee: Detection, outline: NDArray[np.float64]
) -> pr.GraphicAnnotation:
    """Return the outline (K, 2), and side, loss and reasons for review at its highest point."""
    polyline = pr.GraphicObject(
        graphic_type=pr.GraphicTypeValues.POLYLINE,
        graphic_data=outline,
        units=pr.AnnotationUnitsValues.PIXEL,
    )
    text = " ".join(label_text(knee).split())
    if knee.needs_review:
        text = "\r\n".join([f"{text} REVIEW", *knee.review_reasons])
    x, y = outline[outline[:, 1].argmin()].tolist()
    label = pr.TextObject(
        text_value=text,
        units=pr.AnnotationUnitsValues.PIXEL,
        anchor_point=(x, y),
        anchor_point_visible=False,
    )
    return pr.GraphicAnnotation(
        referenced_images=[header],
        graphic_layer=layer,
        graphic_objects=[polyline],
        text_objects=[label],
    )


def _keep_first_window(item: Dataset) -> None:
    """Reduce the windows or tables of a film to the one that viewers show first (C.11.8)."""
    if "VOILUTSequence" in item:
        item.VOILUTSequence = item.VOILUTSequence[:1]
        for keyword in ("WindowCenter", "WindowWidth", "WindowCenterWidthExplanation"):
            item.pop(keyword, None)
    for element in item:
        if isinstance(element.value, MultiValue):
            element.value = element.value[0]


def _orientation(header: Dataset) -> tuple[str, str]:
    stated = header_value(header, "PatientOrientation")
    values = [str(value) for value in stated] if isinstance(stated, Sequence) else []
    known = {item.value for item in hd.PatientOrientationValuesBiped}
    if len(values) == 2 and known.issuperset(values):
        return values[0], values[1]
    return "L", "F"  # rows run to the patient's left and columns to the feet, as detection assumes
