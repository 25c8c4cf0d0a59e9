"""Prepare films: cut out an upright image of each knee, or the paper's two halves.

The patient's side of each knee is told by the user, the header or markers on the film.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import torch

from kneematch.devices import full_precision
from kneematch.errors import NoFrontalKnee, SettingsError
from kneematch.films.radiograph import LATERALITIES, Radiograph
from kneematch.knee.knee_images import SIDE_MARGIN, film_tensor, knee_images
from kneematch.knee.loading import LoadedFilm
from kneematch.knee.metal import find_metal
from kneematch.models.locator import KneeLocation, builtin_locator, locate_knees
from kneematch.models.markers import Marker, read_markers
from kneematch.paper.split import single, split
from kneematch.sampling import View

USER: Final = "user"
HEADER: Final = "header"
MARKER: Final = "marker"
MIDDLE: Final = 0.15  # of the width: a single marker this near to the middle tells no side


@dataclass(frozen=True, slots=True)
class Laterality:
    """The patient's side of one knee; empty if it is not known."""

    side: str = ""  # "R" or "L"
    source: str = ""  # "user", "header" or "marker"
    conflict: str = ""  # a reason to review, where two sources disagree


@dataclass(frozen=True, slots=True)
class Preparation:
    """How a film is cut into images of single knees."""

    locate: bool = True  # around the knees that the locator finds; or in halves, by its symmetry
    knees: int | None = None  # how many knees a film shows; None: the locator finds out
    side_margin: float = SIDE_MARGIN  # how far halves go past the film, as a share of its width
    left_is: str | None = None  # the patient's side at the picture's left, stated by the user
    device: str = "cpu"  # where knees are located and cut out
    precise: bool = False  # whether the CPU's locator computes as precisely as a GPU's

    def __post_init__(self) -> None:
        """Check each setting.

        Raises:
            SettingsError: one of them cannot be used.
        """
        if self.knees not in (None, 1, 2):
            raise SettingsError(f"{self.knees} knees a film; expected 1, 2 or None; choose one")
        if self.left_is not in (None, *LATERALITIES):
            raise SettingsError(
                f"left_is {self.left_is!r}; expected 'R' or 'L', the patient's side at the "
                "picture's left; correct it or leave it out"
            )


@dataclass(frozen=True, slots=True)
class PreparedKnee:
    """A knee that is to be searched, and what is known of it already."""

    mirrored: bool  # its lateral side points to the picture's left
    laterality: Laterality
    place: KneeLocation | None = None  # where the locator saw it; None where that was not used
    metal: bool | None = None  # whether there is metal in it; None where it was not looked for

    @property
    def score(self) -> float | None:
        """How certain the locator is of it; None where that was not used."""
        return None if self.place is None else self.place.score


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFilm:
    """Images of the S knees of a film, lateral side to the right."""

    views: View  # pixels (S, H, W), perhaps on a GPU; to_film (S, 3, 3)
    knees: tuple[PreparedKnee, ...]
    size: tuple[int, int]  # (height, width) of the film
    field: tuple[int, int, int, int]  # its exposed part (x0, y0, x1, y1)
    mm_per_px: float | None
    tagged: bool  # a tag says whether bones are bright


def prepare(films: Sequence[LoadedFilm], how: Preparation) -> list[PreparedFilm | NoFrontalKnee]:
    """Cut out the knees of films; on the CPU if they do not fit into a GPU's memory."""
    if not how.locate:
        return [_prepare_halves(film, how) for film in films]
    with suppress(torch.OutOfMemoryError):
        return _prepare_located(films, how)
    torch.cuda.empty_cache()
    return _prepare_located(films, replace(how, device="cpu"))


def _prepare_halves(film: LoadedFilm, how: Preparation) -> PreparedFilm:
    radiograph, margin = film.radiograph, how.side_margin
    (markers,) = read_markers([film.pixels])
    if radiograph.laterality in LATERALITIES:  # the header says that the film shows one knee
        mirrored = [usual_mirroring(radiograph, how.left_is)]
        halves = single(film_tensor(radiograph), mirrored=mirrored[0], side_margin=margin)
    else:
        mirrored = [True, False]
        halves = split(film_tensor(radiograph), side_margin=margin)
    sides = resolve_laterality(radiograph, mirrored, how.left_is, markers)
    return _prepared(film, halves, map(PreparedKnee, mirrored, sides))


@full_precision()
def _prepare_located(
    films: Sequence[LoadedFilm], how: Preparation
) -> list[PreparedFilm | NoFrontalKnee]:
    pixels = [film.pixels.to(how.device) for film in films]
    network = builtin_locator(how.device, precise=how.precise)
    places = locate_knees(pixels, network, how.knees)
    seen = [k for k, knees in enumerate(places) if knees]
    views = [knee_images(pixels[k], places[k]) for k in seen]
    markers = read_markers([pixels[k] for k in seen])
    metal = iter(find_metal(torch.cat([view.pixels for view in views]))) if views else iter([])
    prepared: list[PreparedFilm | NoFrontalKnee] = [NoFrontalKnee() for _ in films]
    for k, view, letters in zip(seen, views, markers, strict=True):
        mirrored = [place.mirrored for place in places[k]]
        sides = resolve_laterality(films[k].radiograph, mirrored, how.left_is, letters)
        has_metal = islice(metal, len(mirrored))
        prepared[k] = _prepared(
            films[k], view, map(PreparedKnee, mirrored, sides, places[k], has_metal)
        )
    return prepared


def _prepared(film: LoadedFilm, views: View, knees: Iterable[PreparedKnee]) -> PreparedFilm:
    height, width = film.pixels.shape
    tagged = film.radiograph.polarity_tag is not None
    spacing = film.radiograph.mm_per_px
    return PreparedFilm(views, tuple(knees), (height, width), film.field, spacing, tagged)


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
        mirrored: of each knee, whether its lateral side points to the picture's left when the knee
            is upright, as the patient's right knee does on a film that is hung in the usual way.
        left_is: the patient's side at the picture's left, "R" or "L", as stated by the user.
        markers: the letters R and L on the film.
    """
    one = len(mirrored) == 1
    tag = film.laterality if one and film.laterality in LATERALITIES else None
    by_user = None if left_is is None else left_is == "R"
    letters = {marker.letter for marker in markers}
    letter = letters.pop() if one and len(letters) == 1 else None
    by_markers = None if one else _from_front(markers)

    def resolve(points_left: bool) -> Laterality:
        return _first_of(
            (USER, _side(by_user, points_left)),
            (HEADER, tag),
            (HEADER, _side(film.seen_from_front, points_left)),
            (MARKER, letter or _side(by_markers, points_left)),
        )

    return tuple(map(resolve, mirrored))


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
    right, left = (
        [marker.x for marker in markers if marker.letter == side] for side in LATERALITIES
    )
    if right and left:
        if max(right) < min(left):
            return True
        return False if max(left) < min(right) else None
    alone = right or left
    if alone and max(alone) < 0.5 - MIDDLE:
        return bool(right)
    return not right if alone and min(alone) > 0.5 + MIDDLE else None


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
