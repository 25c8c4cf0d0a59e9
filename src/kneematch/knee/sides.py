"""Tell the patient's side of each knee from the user, the header, or the letters on the film."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kneematch.films.radiograph import LATERALITIES, Radiograph
from kneematch.models.markers import Marker

USER: Final = "user"
HEADER: Final = "header"
MARKER: Final = "marker"
MIDDLE: Final = 0.15  # share of the width; a single marker so near to the middle tells no side


@dataclass(frozen=True, slots=True)
class Laterality:
    """The patient's side of one knee; empty if it is not known."""

    side: str = ""  # "R" or "L"
    source: str = ""  # "user", "header" or "marker"
    conflict: str = ""  # a reason to review, where two sources disagree


def resolve_laterality(
    film: Radiograph,
    mirrored: Sequence[bool],
    left_is: str | None = None,
    markers: Sequence[Marker] = (),
) -> tuple[Laterality, ...]:
    """Return the laterality of every knee found on a film.

    The user's statement counts first, then the header's tag of a film of one knee, then the
    header's orientation of the picture, then the markers on it.

    Args:
        film: the film.
        mirrored: for each knee, whether its lateral side points to the picture's left when the
            knee is upright, as the patient's right knee does on a film that is hung as usual.
        left_is: the patient's side at the picture's left, "R" or "L", as stated by the user.
        markers: the letters R and L on the film.
    """
    one = len(mirrored) == 1
    tag = film.laterality if one and film.laterality in LATERALITIES else None
    by_user = None if left_is is None else left_is == "R"
    letters = {marker.letter for marker in markers}
    letter = letters.pop() if one and len(letters) == 1 else None
    by_markers = None if one else _from_front(markers)
    return tuple(
        _first_of(
            (USER, _side(by_user, points_left)),
            (HEADER, tag),
            (HEADER, _side(film.seen_from_front, points_left)),
            (MARKER, letter or _side(by_markers, points_left)),
        )
        for points_left in mirrored
    )


def usual_mirroring(film: Radiograph, left_is: str | None = None) -> bool:
    """Return whether the only knee of a film tagged R or L is expected to be mirrored.

    Where nothing is known about the picture's orientation, it is taken to be hung in the usual way.
    """
    from_front = film.seen_from_front if left_is is None else left_is == "R"
    return (film.laterality == "R") == (from_front is not False)


def _from_front(markers: Sequence[Marker]) -> bool | None:
    """Return whether the markers of a film of two knees show the patient from the front.

    R lies left of L then; a letter alone must lie well to one side, since both of them sometimes
    lie between the legs. None if there are no such markers, or if they contradict each other.
    """
    right, left = ([each.x for each in markers if each.letter == side] for side in LATERALITIES)
    # A letter that was not read may lie anywhere around the middle.
    right, left = right or [0.5 - MIDDLE, 0.5 + MIDDLE], left or [0.5 - MIDDLE, 0.5 + MIDDLE]
    if max(right) < min(left):
        return True
    return False if max(left) < min(right) else None


def _first_of(*statements: tuple[str, str | None]) -> Laterality:
    """Return the first known side of (source, side), and whether another one contradicts it."""
    known = [(source, side) for source, side in statements if side is not None]
    if not known:
        return Laterality()
    source, side = known[0]
    against = [other for other, stated in known if stated != side]
    names = dict.fromkeys([source, *against])
    return Laterality(side, source, f"sides disagree ({' and '.join(names)})" if against else "")


def _side(from_front: bool | None, mirrored: bool) -> str | None:
    """Return the side of a knee, given whether the picture shows the patient from the front."""
    return None if from_front is None else LATERALITIES[from_front != mirrored]
