"""Phantoms as the films that kneematch reads."""

from kneematch.films.radiograph import Radiograph
from kneephantoms import Phantom


def radiograph(made: Phantom) -> Radiograph:
    """Return the film of a phantom as if it had been read from a DICOM file."""
    return Radiograph(
        pixels=made.pixels,
        mm_per_px=made.mm_per_px,
        laterality=made.laterality,
        view="AP",
        series="phantom",
        polarity_tag="MONOCHROME2",
    )
