"""Settings of `synthesize`."""

import math
from dataclasses import dataclass
from typing import Final

FORMATS: Final = ("dicom", "png")
FRAMINGS: Final = (
    *("bilateral", "single", "full_leg", "offcentre", "lateral", "other"),
    *("knee", "wide", "leg", "fill", "low", "any"),
)
SMALLEST_SIDE: Final = 32  # pixels
MOST_PIXELS: Final = 150_000_000


@dataclass(frozen=True, slots=True)
class SynthConfig:
    """What `synthesize` writes. An impossible setting raises ValueError.

    Framings of both knees: around the knees ("knee"), "wide", to the ankle ("leg"), filling the
    film ("fill"), in low resolution ("low"), or a mixture of these ("bilateral"). Others: one knee
    ("single"), hip to ankle ("full_leg"), a film in a screenshot ("offcentre"), a knee from the
    side, perhaps beside a frontal one ("lateral"), other parts of the body ("other"), "any" of all.
    """

    count: int = 100  # films
    format: str = "dicom"  # "dicom" (12 bits) or "png" (16 bits)
    size: tuple[int, int] | None = None  # (height, width) in pixels; None: as usual for the framing
    seed: int = 0  # random seed of the first film; each film has the seed after the previous one
    family: int | None = None  # people with similar bones; None draws from the whole population
    framing: str = "bilateral"
    turn_deg: float = 0.0  # turn every film clockwise
    mirrored: bool = False  # mirror every film, with its letters; a DICOM header says so
    workers: int | None = None  # processes; None or 0 works in this one. More need a main guard.
    force: bool = False  # replace the files of an earlier call

    def __post_init__(self) -> None:
        """Check each setting."""
        for name, least in (("count", 1), ("seed", 0), ("family", 0), ("workers", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}, but must be at least {least}.")
        for name, choices in (("format", FORMATS), ("framing", FRAMINGS)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, but must be one of {', '.join(choices)}."
                )
        if not math.isfinite(self.turn_deg):
            raise ValueError("turn_deg must be a finite number.")
        if self.size is not None:
            height, width = self.size
            if min(height, width) < SMALLEST_SIDE or height * width > MOST_PIXELS:
                raise ValueError(
                    f"Films of {height} x {width} pixels cannot be drawn: a side has at least "
                    f"{SMALLEST_SIDE} pixels and a film at most {MOST_PIXELS}."
                )
