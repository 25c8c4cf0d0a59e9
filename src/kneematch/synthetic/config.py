"""Settings of `kneematch synth`; importing this module imports nothing heavy."""

import re
from dataclasses import dataclass
from typing import Final

from kneematch.errors import SettingsError
from kneematch.options import check_options, force_option, option, workers_option

FORMATS: Final = ("dicom", "png")
FRAMINGS: Final = (
    *("bilateral", "single", "full_leg", "offcentre", "lateral", "other"),
    *("knee", "wide", "leg", "fill", "low", "any"),
)
FILMS: Final = "Films"  # group of options


def parse_size(text: str) -> tuple[int, int]:
    """Return the height and width written as HxW."""
    match = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", text)
    if match is None:
        raise SettingsError(
            f"--size {text}: not a size; expected height x width in pixels; write it as 1024x820"
        )
    return int(match[1]), int(match[2])


@dataclass(frozen=True, slots=True)
class SynthConfig:
    """Settings of `kneematch.synthetic.dataset.synthesize`."""

    count: int = option(
        100, help="Number of films.", group=FILMS, metavar="N", flags=("-n", "--count"), minimum=1
    )
    format: str = option("dicom", help="File format.", group=FILMS, choices=FORMATS)
    size: tuple[int, int] | None = option(
        None,
        help="Height and width of every film in pixels.",
        group=FILMS,
        metavar="HxW",
        default_text="as usual for the kind",
        parser=parse_size,
    )
    seed: int = option(
        0,
        help="Random seed of the first film; each film has the seed after the previous one.",
        group=FILMS,
        metavar="N",
        minimum=0,
    )
    family: int | None = option(
        None,
        help="Draw all films from one family N of people with similar bones.",
        group=FILMS,
        metavar="N",
        minimum=0,
        default_text="the whole population",
    )
    framing: str = option(
        "bilateral",
        help="What the films show: both knees, around the knees (knee), wide, to the ankle (leg), "
        "filling the film (fill) or in low resolution (low), or a mixture of these (bilateral); "
        "one knee (single); hip to ankle (full_leg); a film in a screenshot (offcentre); a knee "
        "from the side, perhaps beside a frontal one (lateral); other parts of the body (other); "
        "or any of all these.",
        group=FILMS,
        choices=FRAMINGS,
    )
    turn_deg: float = option(
        0.0, help="Turn every film clockwise by this angle.", group=FILMS, metavar="DEGREES"
    )
    mirrored: bool = option(False, help="Mirror every film, with its letters.", group=FILMS)
    workers: int | None = workers_option()
    force: bool = force_option()

    def __post_init__(self) -> None:
        """Check each setting."""
        check_options(self)
