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
    """What `synthesize` writes.

    Attributes:
        count: number of films.
        format: "dicom" (12 bits) or "png" (16 bits).
        size: height and width of every film in pixels; None for those usual for what it shows.
        seed: random seed of the first film; each film has the seed after the previous one.
        family: draw all films from one family of people with similar bones; None for the whole
            population.
        framing: what the films show. Both knees: around the knees ("knee"), "wide", to the ankle
            ("leg"), filling the film ("fill") or in low resolution ("low"), or a mixture of these
            ("bilateral"). One knee ("single"), hip to ankle ("full_leg"), a film in a screenshot
            ("offcentre"), a knee from the side, perhaps beside a frontal one ("lateral"), other
            parts of the body ("other"), or "any" of all these.
        turn_deg: turn every film clockwise by this angle.
        mirrored: mirror every film, with its letters; a DICOM header says so.
        workers: number of worker processes; None or 0 works in this process. A script that asks
            for workers needs the usual `if __name__ == "__main__":`.
        force: replace the files of an earlier call.

    Raises:
        ValueError: a setting is impossible.
    """

    count: int = 100
    format: str = "dicom"
    size: tuple[int, int] | None = None
    seed: int = 0
    family: int | None = None
    framing: str = "bilateral"
    turn_deg: float = 0.0
    mirrored: bool = False
    workers: int | None = None
    force: bool = False

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
