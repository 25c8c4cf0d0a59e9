"""Prepare a film: read it, and cut out an upright image of each knee, or the paper's two halves."""

from dataclasses import dataclass
from typing import Any

import torch

from kneematch.detection.laterality import (
    LATERALITIES,
    Laterality,
    resolve_laterality,
    usual_mirroring,
)
from kneematch.detection.locate import locate_knees, shipped_locator
from kneematch.detection.markers import read_markers
from kneematch.detection.metal import has_metal
from kneematch.detection.quality import exposed_field
from kneematch.errors import FilmError, NoFrontalKnee
from kneematch.geometry.knee_view import VIEW_SIZE, KneePlace, cut_views
from kneematch.geometry.split import HALF_SIZE, ROOM, large_enough, single, split
from kneematch.geometry.view import View
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read_isolated, unexpected


@dataclass(frozen=True, slots=True)
class Preparation:
    """How a film is cut into images of single knees."""

    locate: bool = True  # around the knees that the locator finds; or in halves, by its symmetry
    knees: int | None = None  # how many knees a film shows; None: the locator finds out
    margin: float = ROOM  # how far halves go past the film, as a share of its width
    left_is: str | None = None  # the patient's side at the picture's left, stated by the user

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


def prepare(film: Radiograph, how: Preparation) -> PreparedFilm:
    """Cut out the knees of a film.

    Raises:
        NoFrontalKnee: the locator sees none.
    """
    if how.locate:
        return _prepare_located(film, how)
    if film.laterality in LATERALITIES:  # the header says that the film shows one knee
        mirrored = usual_mirroring(film, how.left_is)
        halves = single(film, mirrored=mirrored, room=how.margin)
        return PreparedFilm(halves, _facts(film, how, (mirrored,)))
    facts = _facts(film, how, (True, False))
    return PreparedFilm(split(film, room=how.margin), facts)


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
    pixels = torch.from_numpy(large_enough(film))
    places = tuple(locate_knees(pixels, shipped_locator(), how.knees))
    if not places:
        raise NoFrontalKnee(NoFrontalKnee.reason)
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
