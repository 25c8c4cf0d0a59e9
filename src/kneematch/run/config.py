"""DetectConfig: the settings of `detect_folder`, and which of them the rows of a run depend on."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from kneematch import __version__
from kneematch.errors import SettingsError
from kneematch.settings import (
    AUTO,
    METHOD,
    METHODS,
    OUTPUT,
    PERFORMANCE,
    BatchSize,
    Device,
    Force,
    ModelFile,
    Series,
    Workers,
    check_settings,
    option_name,
)

if TYPE_CHECKING:
    from kneematch.knee.crop import CropSize
    from kneematch.knee.detector import Detector

DICOM_OBJECTS: Final = ("sr", "sc", "seg")
USUAL_OBJECTS: Final = ("sr", "sc")  # and "seg" of measured knees
EXPORTS: Final = ("coco", "dicom", *DICOM_OBJECTS)

UNSET: Final = "unset"  # in messages
NEEDED: Final = {  # options that have no effect without another one
    "crop_mm": "crops",
    "crop_spacing": "crops",
    "mirror": "crops",
    "magnification": "measure",
}

Fingerprint = Mapping[str, str | int | bool]  # the settings that rows depend on


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class DetectConfig:
    """Which films, how they are searched, and what is written."""

    series: Series = None

    model: ModelFile = None
    template: Annotated[tuple[str, ...], Parameter(group=METHOD, metavar="FILE")] = ()
    """Annotation written by `kneematch annotate`, to find its boxes instead of the model's own;
    may be repeated."""
    method: Annotated[str, Parameter(group=METHOD, choices=METHODS)] = AUTO
    """How knees are found: auto by networks; search exhaustively, which is slower and less
    accurate. Other parts of the body are always searched for."""
    left_is: Annotated[str | None, Parameter(group=METHOD, choices=("R", "L"))] = None
    """The patient's side at the left of all pictures. Overrides headers and markers; knees that
    disagree are flagged."""
    cropped: Annotated[bool, Parameter(group=METHOD)] = False
    """All pictures are crops of single joints, as in data sets for grading."""
    side_from_name: Annotated[str | None, Parameter(group=METHOD, metavar="PATTERN")] = None
    """Regular expression whose first group is R or L in the names of films of one knee; for films
    whose headers do not tell the side."""
    mm_per_px: Annotated[
        float | None, Parameter(group=METHOD, metavar="MM", validator=Number(gt=0, lt=10))
    ] = None
    """Pixel spacing of films that state none."""

    measure: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Measure the joint space and the alignment of every knee."""
    magnification: Annotated[
        float | None,
        Parameter(
            group=OUTPUT,
            metavar="FACTOR",
            validator=Number(gte=1, lt=2),
            show_default="1, mm at the detector",
        ),
    ] = None
    """Magnification of the films, by which lengths in mm are divided."""
    overlays: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Draw the areas on a picture of every film with knees."""
    crops: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Cut every knee out, upright, as a 16-bit PNG."""
    crop_mm: Annotated[float, Parameter(group=OUTPUT, metavar="MM")] = 140.0
    """Side length of crops, in mm."""
    crop_spacing: Annotated[float, Parameter(group=OUTPUT, metavar="MM")] = 0.3
    """Pixel spacing of crops, in mm."""
    mirror: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Mirror crops of knees on the image's left, so that all knees look alike."""
    export: Annotated[tuple[str, ...], Parameter(group=OUTPUT, choices=EXPORTS)] = ()
    """Write results for other programs; may be repeated. dicom is sr, sc and, if measured, seg."""
    force: Force = False

    device: Device = "auto"
    batch_size: BatchSize = None
    workers: Workers = None
    ray: Annotated[str | None, Parameter(group=PERFORMANCE, metavar="ADDRESS")] = None
    """Compute on a Ray cluster: the address of a running one, or `local` to start one on this
    machine."""

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        check_settings(self)
        for item in fields(self):
            needed, value = NEEDED.get(item.name), getattr(self, item.name)
            if needed and value != item.default and not getattr(self, needed):
                raise SettingsError(f"{option_name(item.name)} needs {option_name(needed)}.")
        if self.model is not None and len(self.template) > 1:
            raise SettingsError("--model was trained for one --template; name that one only.")
        if self.side_from_name is not None:
            _check_side_pattern(self.side_from_name)
        if "seg" in self.export and not self.measure:
            raise SettingsError("--export seg needs --measure, which finds the outlines.")

    def load_detectors(self) -> "dict[str, Detector]":
        """Load a detector for each template, by its name; that of knees has the name ""."""
        from kneematch.run.film_record import film_names  # imports NumPy, which is slow

        names, templates = film_names(self.template, set()), self.template or (None,)
        detectors: dict[str, Detector] = {}
        for name, template in zip(names or [""], templates, strict=True):
            detector = self.load_detector(template)
            key = "" if detector.part is None else name
            if key in detectors:
                raise SettingsError("Only one --template of a run can be of knees.")
            detectors[key] = detector
        if "" not in detectors and (self.measure or self.dicom_objects()):
            raise SettingsError("--measure and DICOM objects need a --template of knees.")
        return detectors

    def load_detector(self, template: str | None) -> "Detector":
        """Load the detector of one template; None is the model's own."""
        from kneematch.knee.detector import Detector

        return Detector.load(
            self.model,
            template=template,
            method=self.method,
            device=self.device,
            batch_size=self.batch_size,
            left_is=self.left_is,
            cropped=self.cropped,
        )

    def dicom_objects(self) -> list[str]:
        """Return the kinds of DICOM objects to make of each film."""
        usual = (*USUAL_OBJECTS, *(["seg"] if self.measure else []))
        kinds = (*self.export, *(usual if "dicom" in self.export else ()))
        return [kind for kind in DICOM_OBJECTS if kind in kinds]

    def crop_size(self) -> "CropSize":
        """Return the size of crops."""
        from kneematch.knee.crop import CropSize

        return CropSize(self.crop_mm, self.crop_spacing, self.mirror)

    def fingerprint(self, method: str, device: str, hashes: Mapping[str, str]) -> Fingerprint:
        """Return what rows depend on, given method and device as chosen and hashes of files."""
        return {
            "version": __version__,
            **hashes,
            "method": method,
            "left_is": self.left_is or "",
            "cropped": self.cropped,
            "side_from_name": self.side_from_name or "",
            "mm_per_px": str(self.mm_per_px or ""),
            "device": device.split(":")[0],
        }

    def file_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of the files that rows depend on; a template's film is one."""
        from kneematch.films.annotation import load_annotation
        from kneematch.films.files import content_hash
        from kneematch.models.locator import LOCATOR_FILE
        from kneematch.models.model_file import builtin_model
        from kneematch.models.outlines import OUTLINES_FILE

        files: dict[str, str | Path] = {
            "model": self.model or builtin_model(),
            "locator": LOCATOR_FILE,
        }
        for number, template in enumerate(self.template, start=1):
            ending = f"_{number}" if number > 1 else ""
            files[f"template{ending}"] = template
            files[f"template_film{ending}"] = load_annotation(template).film
        if self.measure:
            files["outlines"] = OUTLINES_FILE
        return {name: content_hash(path) for name, path in files.items()}


def _check_side_pattern(pattern: str) -> None:
    """Raise SettingsError unless --side-from-name is a regular expression with a group."""
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise SettingsError(f"--side-from-name is no regular expression: {error}.") from error
    if groups < 1:
        raise SettingsError(
            "--side-from-name needs a group around what is meant, such as '_([RL])_'."
        )


def differences(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Say how each setting differs from the one that a run began with; hashes are not shown."""
    return [
        f"another {name}" if len(f"{was}{is_now}") > 60 else f"{name} was {was} and is {is_now}"
        for name in {**before, **now}
        if (was := before.get(name, "") or UNSET) != (is_now := now.get(name, "") or UNSET)
    ]
