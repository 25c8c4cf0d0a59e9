"""Settings of `kneematch synth`; importing this module imports nothing heavy."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kneematch.errors import SettingsError
from kneematch.options import check_options, force_option, option, workers_option

FORMATS: Final = ("dicom", "png")
FRAMINGS: Final = (
    *("bilateral", "single", "full_leg", "offcentre", "lateral", "other"),
    *("knee", "wide", "leg", "fill", "low", "any"),
)

_film_option: Any = partial(option, group="Films")


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
    """Settings of `kneephantoms.dataset.synthesize`."""

    count: int = _film_option(
        100, help="Number of films.", metavar="N", flags=("-n", "--count"), minimum=1
    )
    format: str = _film_option("dicom", help="File format.", choices=FORMATS)
    size: tuple[int, int] | None = _film_option(
        None,
        help="Height and width of every film in pixels.",
        metavar="HxW",
        default_text="as usual for the kind",
        parser=parse_size,
    )
    seed: int = _film_option(
        0,
        help="Random seed of the first film; each film has the seed after the previous one.",
        metavar="N",
        minimum=0,
    )
    family: int | None = _film_option(
        None,
        help="Draw all films from one family N of people with similar bones.",
        metavar="N",
        minimum=0,
        default_text="the whole population",
    )
    framing: str = _film_option(
        "bilateral",
        help="What the films show: both knees, around the knees (knee), wide, to the ankle (leg), "
        "filling the film (fill) or in low resolution (low), or a mixture of these (bilateral); "
        "one knee (single); hip to ankle (full_leg); a film in a screenshot (offcentre); a knee "
        "from the side, perhaps beside a frontal one (lateral); other parts of the body (other); "
        "or any of all these.",
        choices=FRAMINGS,
    )
    turn_deg: float = _film_option(
        0.0, help="Turn every film clockwise by this angle.", metavar="DEGREES"
    )
    mirrored: bool = _film_option(
        False, help="Mirror every film, with its letters; the header says so."
    )
    workers: int | None = workers_option()
    force: bool = force_option()

    def __post_init__(self) -> None:
        """Check each setting."""
        check_options(self)
