"""Radiographs from what a program holds in memory: NumPy arrays and pydicom datasets."""

import sys
import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kneematch.errors import NotARadiograph, SettingsError
from kneematch.io.intensity import StoredPixels, unit_range
from kneematch.io.limits import IN_MEMORY, decoding
from kneematch.io.radiograph import Radiograph

if TYPE_CHECKING:
    from pydicom import Dataset
    from typing_extensions import TypeIs

ARRAY: Final = Path("<array>")  # in place of a file's path, in messages
LATERALITIES: Final = (None, "R", "L", "B")


def is_dataset(film: object) -> "TypeIs[Dataset]":
    """Return whether a film is a pydicom Dataset; pydicom is not imported for it."""
    pydicom = sys.modules.get("pydicom")
    return pydicom is not None and isinstance(film, pydicom.Dataset)


def radiograph_from_array(
    pixels: NDArray[Any], *, mm_per_px: float | None = None, laterality: str | None = None
) -> Radiograph:
    """Return the film in an array of grey levels, bones bright.

    Args:
        pixels: (H, W), integers or floats of any range.
        mm_per_px: the pixel spacing.
        laterality: the patient's side, "R" or "L", of a film of one knee, or "B" for both.

    Raises:
        NotARadiograph: the array is not one frame of grey levels that differ.
        SettingsError: spacing or laterality make no sense.
    """
    if pixels.ndim != 2 or pixels.size == 0 or pixels.dtype.kind not in "uif":
        raise NotARadiograph(
            f"an array of shape {pixels.shape} and type {pixels.dtype}; expected numbers of shape "
            "(height, width); give one grey film"
        )
    if mm_per_px is not None and not 0 < mm_per_px < float("inf"):
        raise SettingsError(f"mm_per_px {mm_per_px}; expected more than 0; correct it")
    if laterality not in LATERALITIES:
        raise SettingsError(f"laterality {laterality!r}; expected 'R', 'L' or 'B'; correct it")
    grey = unit_range(ARRAY, StoredPixels(pixels))
    return Radiograph(np.ascontiguousarray(grey), mm_per_px=mm_per_px, laterality=laterality)


def radiograph_from_dataset(dataset: "Dataset") -> Radiograph:
    """Return the film in a pydicom Dataset, by way of the bytes that its file would have.

    Raises:
        FilmError: as for a file.
    """
    from kneematch.io.dicom import read_dicom

    file = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with decoding(IN_MEMORY, "DICOM dataset"):
            if getattr(dataset, "file_meta", None):
                dataset.save_as(file)
            else:
                dataset.save_as(file, implicit_vr=False, little_endian=True)
        file.seek(0)
        return read_dicom(file, IN_MEMORY)
