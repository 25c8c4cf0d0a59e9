"""Prepare a film: read it, and cut out an upright image of each knee, or the paper's two halves.

The patient's side of each knee is told by the user, the header or markers on the film.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kneematch.detection.locate import locate_knees, shipped_locator
from kneematch.detection.markers import Marker, read_markers
from kneematch.detection.metal import has_metal
from kneematch.detection.quality import exposed_field
from kneematch.errors import FilmError, NoFrontalKnee, SettingsError
from kneematch.geometry.split import HALF_SIZE, single, split
from kneematch.geometry.view import SIDE_MARGIN, VIEW_SIZE, KneePlace, View, cut_views, film_tensor
from kneematch.io.radiograph import LATERALITIES, Radiograph
from kneematch.io.read import read_isolated, unexpected

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

    @property
    def size(self) -> tuple[int, int]:
        """Return the (height, width) of the images."""
        return VIEW_SIZE if self.locate else HALF_SIZE


@dataclass(frozen=True, slots=True)
class FilmFacts:
    """What a detection needs of a film besides its pixels; S knees."""

    size: tuple[int, int]  # (height, width)
    field: tuple[int, int, int, int]  # its exposed part (x0, y0, x1, y1)
    mm_per_px: float | None
    mirrored: tuple[bool, ...]  # where the lateral side points to the picture's left
    lateralities: tuple[Laterality, ...]
    places: tuple[KneePlace, ...] = ()  # where the locator saw the knees
    metal: tuple[bool, ...] = ()  # which of these have metal in them
    tagged: bool = False  # a tag says whether bones are bright

    @property
    def scores(self) -> tuple[float | None, ...]:
        """Return how certain the locator is of each knee; None where it was not used."""
        return tuple(place.score for place in self.places) or (None,) * len(self.mirrored)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFilm:
    """Images of the S knees of a film, lateral side to the right."""

    views: View  # pixels (S, H, W), to_film (S, 3, 3)
    facts: FilmFacts


def stack_views(films: Sequence[PreparedFilm], device: str) -> Tensor:
    """Return the images of films of S knees each, (N, S, H, W) floats in [0, 1], on a device.

    16-bit integers, as reader processes hand them over, are converted there.
    """
    views = [film.views.pixels for film in films]
    batch = torch.empty(len(views), *views[0].shape, dtype=views[0].dtype, device=device)
    for place, view in zip(batch, views, strict=True):
        place.copy_(view, non_blocking=True)
    return batch if batch.is_floating_point() else batch.float() / torch.iinfo(batch.dtype).max


def prepare(film: Radiograph, how: Preparation) -> PreparedFilm:
    """Cut out the knees of a film.

    Raises:
        NoFrontalKnee: the locator sees none.
    """
    if how.locate:
        return _prepare_located(film, how)
    if film.laterality in LATERALITIES:  # the header says that the film shows one knee
        mirrored = usual_mirroring(film, how.left_is)
        halves = single(film, mirrored=mirrored, side_margin=how.side_margin)
        return PreparedFilm(halves, _facts(film, how, (mirrored,)))
    facts = _facts(film, how, (True, False))
    return PreparedFilm(split(film, side_margin=how.side_margin), facts)


def _facts(
    film: Radiograph,
    how: Preparation,
    mirrored: tuple[bool, ...],
    **located: Any,
) -> FilmFacts:
    return FilmFacts(
        film.size,
        exposed_field(film.pixels),
        film.mm_per_px,
        mirrored,
        resolve_laterality(film, mirrored, how.left_is, read_markers(film.pixels)),
        tagged=film.polarity_tag is not None,
        **located,
    )


def _prepare_located(film: Radiograph, how: Preparation) -> PreparedFilm:
    pixels = film_tensor(film)
    places = tuple(locate_knees(pixels, shipped_locator(), how.knees))
    if not places:
        raise NoFrontalKnee()
    mirrored = tuple(place.mirrored for place in places)
    views = cut_views(pixels, places)
    metal = tuple(has_metal(view) for view in views.pixels)
    return PreparedFilm(views, _facts(film, how, mirrored, places=places, metal=metal))


def prepare_file(path: str, how: Preparation) -> PreparedFilm | FilmError:
    """Read a film's file and cut out its knees; any failure is returned, not raised."""
    try:
        return prepare(read_isolated(path), how)
    except FilmError as error:
        named = str(error) if str(error).startswith(path) else f"{path}: {error}"
        return type(error)(named)
    except Exception as error:  # noqa: BLE001 - among 500,000 films one must not stop the others
        return unexpected(path, error)


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
