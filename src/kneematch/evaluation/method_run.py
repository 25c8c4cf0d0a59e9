"""Trial: one method, and what it found on each film."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kneematch.detection.detection import Detection


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What a method did; a film on which it failed is not among those found."""

    method: str
    found: Mapping[str, tuple[Detection, ...]]  # by the film's path
    ms_a_film: float | None = None  # films read and split before; None: not known
    failed: Mapping[str, str] = field(default_factory=dict)  # why, by the film's path


def common_films(trials: Sequence[Trial]) -> list[str]:
    """The films on which all methods found as many knees, in order."""
    first, *others = trials
    return [
        film
        for film, knees in first.found.items()
        if all(len(other.found.get(film, ())) == len(knees) for other in others)
    ]
