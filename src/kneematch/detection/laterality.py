"""Laterality: which of the patient's knees each knee on a film is, as far as that is known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kneematch.errors import SettingsError
from kneematch.io.radiograph import Radiograph

SIDES: Final = ("R", "L")  # of the patient
USER: Final = "user"
HEADER: Final = "header"


@dataclass(frozen=True, slots=True)
class Laterality:
    """The patient's side of one knee; empty if it is not known."""

    side: str = ""  # "R" or "L"
    source: str = ""  # "user" or "header"
    conflict: str = ""  # a reason to review, where two sources disagree


def resolve_laterality(
    film: Radiograph, mirrored: Sequence[bool], left_is: str | None = None
) -> tuple[Laterality, ...]:
    """Return the laterality of every knee found on a film.

    The user's statement counts first, then the header's tag of a film of one knee, then the
    header's orientation of the picture.

    Args:
        film: the film.
        mirrored: of each knee, whether its lateral side points to the picture's left when the knee
            is upright, as the patient's right knee does on a film that is hung in the usual way.
        left_is: the patient's side at the picture's left, "R" or "L", as stated by the user.
    """
    return tuple(_resolve(film, points_left, len(mirrored), left_is) for points_left in mirrored)


def check_left_is(left_is: str | None) -> None:
    """Raise SettingsError unless a statement of the user is "R", "L" or None."""
    if left_is not in (None, *SIDES):
        raise SettingsError(
            f"left_is {left_is!r}; expected 'R' or 'L', the patient's side at the picture's left; "
            "correct it or leave it out"
        )


def usual_mirroring(film: Radiograph, left_is: str | None = None) -> bool:
    """Return whether the only knee of a film tagged R or L is expected to be mirrored.

    Where nothing is known about the picture's orientation, it is taken to be hung in the usual way.
    """
    from_front = film.seen_from_front if left_is is None else left_is == "R"
    return (film.laterality == "R") == (from_front is not False)


def _resolve(film: Radiograph, mirrored: bool, knees: int, left_is: str | None) -> Laterality:
    tag = film.laterality if knees == 1 and film.laterality in SIDES else None
    statements = (
        (USER, _side(None if left_is is None else left_is == "R", mirrored)),
        (HEADER, tag),
        (HEADER, _side(film.seen_from_front, mirrored)),
    )
    known = [(source, side) for source, side in statements if side is not None]
    if not known:
        return Laterality()
    source, side = known[0]
    against = [other for other, stated in known if stated != side]
    names = dict.fromkeys([source, *against])
    return Laterality(side, source, f"sides disagree ({' and '.join(names)})" if against else "")


def _side(from_front: bool | None, mirrored: bool) -> str | None:
    """Return the side of a knee, given whether the picture shows the patient from the front."""
    return None if from_front is None else SIDES[from_front != mirrored]
