"""What is made of each film's pixels and its detections: pictures, crops, DICOM objects."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from kneematch.batch.config import Settings
from kneematch.batch.row import Record
from kneematch.io.atomic import write_aside
from kneematch.io.radiograph import Radiograph

if TYPE_CHECKING:
    from PIL import Image

    from kneematch.detection.crop import CropSize

OVERLAYS: Final = "overlays"
CROPS: Final = "crops"
DICOM: Final = "dicom-objects"
PRODUCT_FOLDERS: Final = (OVERLAYS, CROPS, DICOM)
FAST: Final = 2  # of PNG's compression levels: a tenth larger, three times as fast


class Product(Protocol):
    """Files of one kind; it travels to other processes."""

    def targets(self, name: str, record: Record) -> list[Path]:
        """The files of a film that goes by this name."""
        ...

    def make(self, film: Radiograph, name: str, record: Record) -> str | None:
        """Write them, each whole or not at all; return why one is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Overlays:
    """A picture of each film with what was found on it."""

    folder: Path

    def targets(self, name: str, record: Record) -> list[Path]:
        """One file."""
        return [self.folder / f"{name}.png"]

    def make(self, film: Radiograph, name: str, record: Record) -> str | None:
        """Draw and save it."""
        from kneematch.detection.overlay import draw_detections

        save_picture(draw_detections(film, record.detections), self.targets(name, record)[0])
        return None


@dataclass(frozen=True, slots=True)
class Crops:
    """A picture of each knee alone."""

    folder: Path
    size: "CropSize"

    def targets(self, name: str, record: Record) -> list[Path]:
        """A file a knee."""
        from kneematch.export.tables import crop_name

        return [self.folder / crop_name(name, knee.side) for knee in record.detections]

    def make(self, film: Radiograph, name: str, record: Record) -> str | None:
        """Cut and save them."""
        from kneematch.detection.crop import cut, place
        from kneematch.io.write import write_png16

        for knee, path in zip(record.detections, self.targets(name, record), strict=True):
            write_png16(path, cut(film, place(knee, self.size)))
        return None


@dataclass(frozen=True, slots=True)
class DicomObjects:
    """A report, a presentation state and a secondary capture of each DICOM."""

    folder: Path

    def targets(self, name: str, record: Record) -> list[Path]:
        """The picture, which is written last; none of a film without a patient and a study."""
        from kneematch.export.dicom import PICTURE
        from kneematch.io.read import is_dicom

        if not record.detections or not is_dicom(record.film):
            return []
        return [self.folder / f"{name}-{PICTURE}.dcm"]

    def make(self, film: Radiograph, name: str, record: Record) -> str | None:
        """Write those that the film allows."""
        from kneematch.export.dicom import export_dicom

        return export_dicom(record.film, film, record.detections, self.folder, name).reason or None


def products_of(settings: Settings) -> list[Product]:
    """What is asked for, and the folders for it."""
    products: dict[str, Product] = {}
    if settings.overlays:
        products[OVERLAYS] = Overlays(settings.out / OVERLAYS)
    if settings.crops:
        products[CROPS] = Crops(settings.out / CROPS, crop_size(settings))
    if "dicom" in settings.export:
        products[DICOM] = DicomObjects(settings.out / DICOM)
    for folder in products:
        (settings.out / folder).mkdir(exist_ok=True)
    return list(products.values())


def crop_size(settings: Settings) -> "CropSize":
    """As asked for; what is not, as CropSize has it."""
    from kneematch.detection.crop import CropSize

    given = {
        "mm": settings.crop_mm,
        "spacing_mm": settings.crop_spacing,
        "px": settings.crop_px,
    }
    sizes = {name: value for name, value in given.items() if value is not None}
    return CropSize(**sizes, mirror=settings.mirror)  # type: ignore[arg-type]


def save_picture(picture: "Image.Image", path: Path) -> None:
    """As a PNG that appears when it is whole."""
    with write_aside(path) as aside:
        picture.save(aside, format="PNG", compress_level=FAST)
