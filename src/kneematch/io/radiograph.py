"""Radiograph: the pixels of a film and the parts of its header that are kept."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Radiograph:
    """One greyscale frame, without anything that identifies a patient.

    Pixel coordinates are continuous: pixel (row i, column j) covers [j, j + 1) x [i, i + 1),
    so (0, 0) is the film's top-left corner and its first pixel's centre is (0.5, 0.5).
    """

    pixels: NDArray[np.float32]  # (H, W), the darkest 0 and the brightest 1
    mm_per_px: float | None = None
    spacing_tag: str | None = None  # the DICOM keyword that mm_per_px came from
    laterality: str | None = None  # "L", "R" or "B": the patient's side, as tagged
    # Whether the picture shows the patient from the front, so that the patient's right is at its
    # left when it is upright; False for a mirrored picture, None if the header does not say.
    seen_from_front: bool | None = None
    view: str | None = None  # "AP", "PA", ...
    series: str | None = None  # series description
    polarity_tag: str | None = None  # "MONOCHROME1" was inverted on reading; "MONOCHROME2" was not

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        height, width = self.pixels.shape
        return height, width
