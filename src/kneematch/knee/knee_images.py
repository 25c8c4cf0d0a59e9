"""Prepare films for the search: cut out an upright image of each knee, or two halves."""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import torch
from torch import Tensor

from kneematch.devices import copy_to, full_precision
from kneematch.errors import NoFrontalKnee, NotARadiograph, SettingsError
from kneematch.films.radiograph import LATERALITIES, Radiograph
from kneematch.knee.metal import find_metal
from kneematch.knee.quality import exposed_field
from kneematch.knee.sides import Laterality, resolve_laterality, usual_mirroring
from kneematch.models.locator import (
    VIEW_SIZE,
    VIEW_WIDTH,
    KneeLocation,
    builtin_locator,
    locate_knees,
    turn_upright,
)
from kneematch.models.markers import read_markers
from kneematch.paper.split import HALF_ASPECT, single, split
from kneematch.sampling import (
    View,
    axes_to_film,
    compose,
    rectangle_to_film,
    resize_part,
    sample,
    transform,
)

SIDE_MARGIN: Final = 0.08  # share of a film's width by which the robust search continues it
SMALLEST_FILM: Final = 32  # pixels a side
SMALLEST_ROTATION: Final = 0.05  # radians; networks and refinement follow smaller ones themselves


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
        """Raise SettingsError if a setting cannot be used."""
        if self.knees not in (None, 1, 2):
            raise SettingsError(f"knees must be 1, 2 or None, not {self.knees}.")
        if self.left_is not in (None, *LATERALITIES):
            raise SettingsError(f"left_is must be 'R' or 'L', not {self.left_is!r}.")


@dataclass(frozen=True, slots=True)
class PreparedKnee:
    """A knee to find, and what is known of it already."""

    mirrored: bool  # its lateral side points to the picture's left
    laterality: Laterality
    location: KneeLocation | None = None  # where the locator saw it; None where it was not used
    metal: bool | None = None  # whether there is metal in it; None where it was not looked for

    @property
    def score(self) -> float | None:
        """How certain the locator is of it; None where that was not used."""
        return None if self.location is None else self.location.score


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFilm:
    """Images of the S knees of a film, lateral side to the right."""

    images: View  # pixels (S, H, W), perhaps on a GPU; to_film (S, 3, 3)
    knees: tuple[PreparedKnee, ...]
    field: tuple[int, int, int, int]  # exposed part of the film (x0, y0, x1, y1)
    mm_per_px: float | None
    tagged: bool  # a tag says whether bones are bright


def prepare(films: Sequence[Radiograph], how: Preparation) -> list[PreparedFilm | NoFrontalKnee]:
    """Cut out the knees of films; on the CPU if they do not fit into a GPU's memory.

    Raises:
        NotARadiograph: a film is too small.
    """
    if not how.locate:
        return [_prepare_halves(film, how) for film in films]
    if how.device != "cpu":
        with suppress(torch.OutOfMemoryError):
            return _prepare_located(films, how)
        torch.cuda.empty_cache()
    return _prepare_located(films, replace(how, device="cpu"))


def _prepare_halves(film: Radiograph, how: Preparation) -> PreparedFilm:
    pixels, margin = film_tensor(film), how.side_margin
    (markers,) = read_markers([pixels])
    if film.laterality in LATERALITIES:  # the header says that the film shows one knee
        mirrored = [usual_mirroring(film, how.left_is)]
        halves = single(pixels, mirrored=mirrored[0], side_margin=margin)
    else:
        mirrored = [True, False]
        halves = split(pixels, side_margin=margin)
    sides = resolve_laterality(film, mirrored, how.left_is, markers)
    return _prepared(film, halves, map(PreparedKnee, mirrored, sides))


@full_precision()
def _prepare_located(
    films: Sequence[Radiograph], how: Preparation
) -> list[PreparedFilm | NoFrontalKnee]:
    pixels: list[Tensor] = [copy_to(film_tensor(film), how.device) for film in films]
    locator = builtin_locator(how.device, precise=how.precise)
    locations = locate_knees(pixels, locator, how.knees)
    seen = [k for k, knees in enumerate(locations) if knees]
    images = [knee_images(pixels[k], locations[k]) for k in seen]
    markers = read_markers([pixels[k] for k in seen])
    metal = iter(find_metal(torch.cat([each.pixels for each in images])) if images else [])
    prepared: list[PreparedFilm | NoFrontalKnee] = [NoFrontalKnee() for _ in films]
    for k, image, letters in zip(seen, images, markers, strict=True):
        mirrored = [knee.mirrored for knee in locations[k]]
        sides = resolve_laterality(films[k], mirrored, how.left_is, letters)
        knees = map(PreparedKnee, mirrored, sides, locations[k], islice(metal, len(mirrored)))
        prepared[k] = _prepared(films[k], image, knees)
    return prepared


def _prepared(film: Radiograph, images: View, knees: Iterable[PreparedKnee]) -> PreparedFilm:
    tagged, field = film.polarity_tag is not None, exposed_field(film.pixels)
    return PreparedFilm(images, tuple(knees), field, film.mm_per_px, tagged)


def film_tensor(film: Radiograph) -> Tensor:
    """Return a film's pixels (H, W), or raise NotARadiograph if there are too few."""
    if min(film.size) < SMALLEST_FILM:
        raise NotARadiograph(
            f"The film has {film.size[0]} x {film.size[1]} pixels, but {SMALLEST_FILM} a side are "
            "needed. Give the full-size film."
        )
    return torch.from_numpy(film.pixels)


def knee_images(pixels: Tensor, knees: Sequence[KneeLocation]) -> View:
    """Cut a view of the same scale around each knee: pixels (S, 400, 250), to_film (S, 3, 3).

    The knee is upright in the middle of its view, its lateral side to the right; the plateau is
    100 pixels wide. The film is (H, W), and all knees have the same `quarter_turns`.
    """
    turned, to_film = turn_upright(pixels, knees[0].quarter_turns)
    from_film = torch.linalg.inv(to_film)
    views = [_cut_view(turned, from_film, knee) for knee in knees]
    maps = compose(to_film, torch.stack([view.to_film for view in views]))
    return View(torch.stack([view.pixels for view in views]), maps)


def _cut_view(pixels: Tensor, from_film: Tensor, knee: KneeLocation) -> View:
    ((x, y),) = transform(from_film, from_film.new_tensor([[knee.x, knee.y]])).tolist()
    across, down = VIEW_WIDTH * knee.width / 2, HALF_ASPECT * VIEW_WIDTH * knee.width / 2
    if abs(knee.rotation) <= SMALLEST_ROTATION:
        return _upright_view(pixels, (x, y), (across, down), VIEW_SIZE, mirrored=knee.mirrored)
    # A view that holds the rotated one, of the same resolution.
    cos, sin = math.cos(knee.rotation), math.sin(knee.rotation)
    reach = across * cos + down * abs(sin), across * abs(sin) + down * cos
    size = round(VIEW_SIZE[0] * reach[1] / down), round(VIEW_SIZE[1] * reach[0] / across)
    large = _upright_view(pixels, (x, y), reach, size, mirrored=False)
    right = -across if knee.mirrored else across
    wanted = axes_to_film((right * cos, right * sin), (-down * sin, down * cos), (x, y))
    inside = torch.linalg.inv(large.to_film) @ wanted
    matrix = copy_to(inside[:2].to(pixels.dtype), pixels.device)
    return View(sample(large.pixels, matrix, VIEW_SIZE), wanted)


def _upright_view(
    pixels: Tensor,
    centre: tuple[float, float],
    reach: tuple[float, float],
    size: tuple[int, int],
    *,
    mirrored: bool,
) -> View:
    """Return what lies within reach (x, y) of a point, resized."""
    (x, y), (across, down) = centre, reach
    left, right, top, bottom = (round(v) for v in (x - across, x + across, y - down, y + down))
    extra = round(SIDE_MARGIN * pixels.shape[1])
    rows, columns = (top, max(bottom, top + 1)), (left, max(right, left + 1))
    replicate = -extra, pixels.shape[1] + extra
    view = resize_part(pixels, rows, columns, size, replicate=replicate)
    to_film = rectangle_to_film(left, top, right, bottom, mirrored=mirrored)
    return View(view.flip(1) if mirrored else view, to_film)
