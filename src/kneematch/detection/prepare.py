"""A film becomes what the search needs of it: its halves and a few facts."""

import os
from dataclasses import dataclass
from typing import Final

from kneematch.errors import FilmError, NotARadiograph
from kneematch.geometry.split import LEFT, RIGHT, single, split
from kneematch.geometry.view import View
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read

Film = Radiograph | str | os.PathLike[str]

# The patient's side that stands in the left and in the right half of a picture, AP or PA alike.
LATERALITY: Final = ("R", "L")


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The halves of a film, without the film."""

    halves: View  # pixels (S, 800, 500)
    sides: tuple[int, ...]  # LEFT, RIGHT or both
    size: tuple[int, int]  # of the film
    mm_per_px: float | None


def load(source: Film, room: float) -> tuple[Radiograph, Prepared] | FilmError:
    """Read and prepare a film; what cannot be used is returned, not raised."""
    try:
        if isinstance(source, Radiograph):
            return source, prepare(source, room)
        film = read(source)
        try:
            return film, prepare(film, room)
        except NotARadiograph as error:
            raise NotARadiograph(f"{os.fspath(source)}: {error}") from error
    except FilmError as error:
        return error


def prepare(film: Radiograph, room: float) -> Prepared:
    """Two halves, or one where the header says that the film shows one knee."""
    if film.laterality in LATERALITY:
        side = LATERALITY.index(film.laterality)
        halves = single(film, mirrored=side == LEFT, room=room)
        return Prepared(halves, (side,), film.size, film.mm_per_px)
    return Prepared(split(film, room=room), (LEFT, RIGHT), film.size, film.mm_per_px)
