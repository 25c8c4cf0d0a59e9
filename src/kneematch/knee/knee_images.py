"""Prepare films for the search: an upright image, and the patient's side, of each knee."""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

import torch
from torch import Tensor

from kneematch.devices import copy_to, full_precision
from kneematch.errors import NotARadiograph, SettingsError
from kneematch.films.radiograph import LATERALITIES, Radiograph
from kneematch.knee.metal import see_findings
from kneematch.knee.quality import exposed_field, shows_second_leg
from kneematch.models.findings import NOTHING, Findings
from kneematch.models.locator import (
    VIEW_SIZE,
    VIEW_WIDTH,
    KneeLocation,
    builtin_locator,
    locate_knees,
    look_again,
    turn_upright,
)
from kneematch.models.markers import Marker, read_markers
from kneematch.paper.split import HALF_ASPECT
from kneematch.sampling import (
    View,
    axes_to_film,
    compose,
    rectangle_to_film,
    resize_part,
    sample,
    transform,
)

SIDE_MARGIN: Final = 0.08  # share of a film's width by which whole films are continued
WHOLE_PIXELS: Final = 400_000  # in an image of a whole film, as in half images
SMALLEST_FILM: Final = 32  # pixels a side
MIDDLE: Final = 0.15  # share of the width; a single marker so near to the middle tells no side
SMALLEST_ROTATION: Final = 0.05  # radians; networks and refinement follow smaller ones themselves


@dataclass(frozen=True, slots=True)
class WholeFilm:
    """How films are searched as a whole: in S images, and turned by each of T angles."""

    mirrored: tuple[bool, ...]  # by image: whether it is the film's mirror image
    aspect: float  # least height over width of an image, so that the template fits
    turns: tuple[float, ...] = (0.0,)  # radians


@dataclass(frozen=True, slots=True)
class Preparation:
    """How a film is cut into images of the knees that the locator finds."""

    single: bool = False  # a film surely shows one knee: return the likeliest place
    left_is: str | None = None  # the patient's side at the picture's left, stated by the user
    cropped: bool = False  # pictures were cut out around the joint
    device: str = "cpu"  # where knees are located and cut out
    precise: bool = False  # whether the CPU's locator computes as precisely as a GPU's
    whole: WholeFilm | None = None  # instead of all this: how the whole film is searched

    def __post_init__(self) -> None:
        """Raise SettingsError if a setting cannot be used."""
        if self.left_is not in (None, *LATERALITIES):
            raise SettingsError(f"left_is must be 'R' or 'L', not {self.left_is!r}.")


@dataclass(frozen=True, slots=True)
class Laterality:
    """The patient's side of one knee; empty if it is not known."""

    side: str = ""  # "R" or "L"
    source: str = ""  # "user", "header", "name" (of the file) or "marker"
    conflict: str = ""  # a reason to review, where two sources disagree


@dataclass(frozen=True, slots=True)
class PreparedKnee:
    """A knee to find, and what is known of it already."""

    mirrored: bool  # its lateral side points to the picture's left
    laterality: Laterality
    location: KneeLocation | None = None  # where the locator saw it; None for other parts
    findings: Findings = NOTHING  # looked for around located knees only

    @property
    def side_known(self) -> bool:
        """Whether it is known which side of it is medial."""
        return bool(self.laterality.side) or self.location is None or self.location.side_known


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFilm:
    """Images of the S knees of a film, lateral side to the right."""

    images: View  # pixels (S, H, W), perhaps on a GPU; to_film (S, 3, 3)
    knees: tuple[PreparedKnee, ...]
    field: tuple[int, int, int, int]  # exposed part of the film (x0, y0, x1, y1)
    mm_per_px: float | None
    tagged: bool  # a tag says whether bones are bright
    second_leg: bool = False  # another leg stands beside the only knee


def prepare(films: Sequence[Radiograph], how: Preparation) -> list[PreparedFilm | None]:
    """Cut out the knees of films, None where there is none; on the CPU if a GPU's memory is full.

    Raises:
        NotARadiograph: a film is too small.
    """
    if how.whole is not None:
        return [_prepare_whole(film, how.whole) for film in films]
    if how.device != "cpu":
        with suppress(torch.OutOfMemoryError):
            return _prepare_located(films, how)
        torch.cuda.empty_cache()
    return _prepare_located(films, replace(how, device="cpu"))


def _prepare_whole(film: Radiograph, how: WholeFilm) -> PreparedFilm:
    images = whole_images(film_tensor(film), how)
    return _prepared(film, images, (PreparedKnee(each, Laterality()) for each in how.mirrored))


@full_precision()
def _prepare_located(films: Sequence[Radiograph], how: Preparation) -> list[PreparedFilm | None]:
    pixels: list[Tensor] = [copy_to(film_tensor(film), how.device) for film in films]
    locator = builtin_locator(how.device, precise=how.precise)
    locations = locate_knees(pixels, locator, cropped=how.cropped, single=how.single, weak=True)
    images = {k: knee_images(pixels[k], knees) for k, knees in enumerate(locations) if knees}
    findings = _see_findings(images)
    seen = [k for k in images if _is_believed(locations[k], findings[k])]
    for k in seen:
        look = partial(look_again, locator, size=pixels[k].shape, alone=len(locations[k]) == 1)
        locations[k] = [*map(look, images[k].pixels, locations[k])]
    markers = read_markers([pixels[k] for k in seen])
    prepared: list[PreparedFilm | None] = [None] * len(films)
    for k, letters in zip(seen, markers, strict=True):
        image = images[k]
        known = [knee.mirrored if knee.side_known else None for knee in locations[k]]
        sides = resolve_laterality(films[k], known, how.left_is, letters)
        mirrored = [knee.mirrored for knee in locations[k]]
        if None in known and sides[0].side:  # a single joint, whose side another source knows
            tagged = replace(films[k], laterality=sides[0].side)
            mirrored = [usual_mirroring(tagged, how.left_is)]
        if (torch.linalg.det(image.to_film[0]) < 0) != mirrored[0]:
            flip = torch.diag(image.to_film.new_tensor([-1, 1, 1]))
            image = View(image.pixels.flip(-1), image.to_film @ flip)
        knees = map(PreparedKnee, mirrored, sides, locations[k], findings[k])
        prepared[k] = film = _prepared(films[k], image, knees)
        if not how.single and len(mirrored) == 1 and not locations[k][0].quarter_turns:
            second_leg = shows_second_leg(films[k].pixels, locations[k][0], film.field)
            prepared[k] = replace(film, second_leg=second_leg)
    return prepared


def _see_findings(images: dict[int, View]) -> dict[int, list[Findings]]:
    """Return what the views of knees show, by film; a GPU looks at all of them together."""
    views = [image.pixels for image in images.values()]
    seen = iter(see_findings(torch.cat(views)) if views else ())
    return {k: [*islice(seen, len(image.pixels))] for k, image in images.items()}


def _is_believed(knees: Sequence[KneeLocation], findings: Sequence[Findings]) -> bool:
    """Return whether knees were seen, or a child's knee, of which the locator knows little."""
    return not any(
        knee.weak and not each.growth_plates for knee, each in zip(knees, findings, strict=True)
    )


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


def whole_images(pixels: Tensor, how: WholeFilm) -> View:
    """Return a film (H, W) as images (T * S, h, w), and their maps (T * S, 3, 3) to it."""
    height, width = pixels.shape
    across = (0.5 + SIDE_MARGIN) * width
    aspect = max(height / (2 * across), how.aspect)
    rows, columns = (round(math.sqrt(WHOLE_PIXELS * each)) for each in (aspect, 1 / aspect))
    place = (width / 2, height / 2), (across, across * aspect), (rows, columns)
    views = [
        _oriented_view(pixels, *place, turn, mirrored=mirrored)
        for turn in how.turns
        for mirrored in how.mirrored
    ]
    maps = torch.stack([view.to_film for view in views])
    return View(torch.stack([view.pixels for view in views]), maps)


def _cut_view(pixels: Tensor, from_film: Tensor, knee: KneeLocation) -> View:
    ((x, y),) = transform(from_film, from_film.new_tensor([[knee.x, knee.y]])).tolist()
    reach = VIEW_WIDTH * knee.width / 2, HALF_ASPECT * VIEW_WIDTH * knee.width / 2
    place = (x, y), reach, VIEW_SIZE, knee.rotation
    return _oriented_view(pixels, *place, mirrored=knee.mirrored)


def _oriented_view(
    pixels: Tensor,
    centre: tuple[float, float],
    reach: tuple[float, float],
    size: tuple[int, int],
    rotation: float,
    *,
    mirrored: bool,
) -> View:
    """Return what lies within reach (x, y) of a point along rotated axes, resized."""
    if abs(rotation) <= SMALLEST_ROTATION:
        return _upright_view(pixels, centre, reach, size, mirrored=mirrored)
    # A view that holds the rotated one, of the same resolution.
    (across, down), (cos, sin) = reach, (math.cos(rotation), math.sin(rotation))
    larger = across * cos + down * abs(sin), across * abs(sin) + down * cos
    rows, columns = round(size[0] * larger[1] / down), round(size[1] * larger[0] / across)
    large = _upright_view(pixels, centre, larger, (rows, columns), mirrored=False)
    right = -across if mirrored else across
    wanted = axes_to_film((right * cos, right * sin), (-down * sin, down * cos), centre)
    inside = torch.linalg.inv(large.to_film) @ wanted
    matrix = copy_to(inside[:2].to(pixels.dtype), pixels.device)
    return View(sample(large.pixels, matrix, size), wanted)


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
    rows, columns = (top, max(bottom, top + 1)), (left, max(right, left + 1))
    view = resize_part(pixels, rows, columns, size, replicate=columns, replicate_rows=rows)
    to_film = rectangle_to_film(left, top, right, bottom, mirrored=mirrored)
    return View(view.flip(1) if mirrored else view, to_film)


def resolve_laterality(
    film: Radiograph,
    mirrored: Sequence[bool | None],
    left_is: str | None = None,
    markers: Sequence[Marker] = (),
) -> tuple[Laterality, ...]:
    """Return the laterality of every knee found on a film.

    The user's statement counts first, then the header's tag of a film of one knee, then the
    header's orientation of the picture, then the markers on it. `mirrored` says of each knee
    whether its lateral side points to the picture's left when the knee is upright, as the patient's
    right knee does on a film that is hung as usual; None if that is not known.
    """
    one = len(mirrored) == 1
    tag = film.laterality if one and film.laterality in LATERALITIES else None
    by_user = None if left_is is None else left_is == "R"
    letters = {marker.letter for marker in markers}
    letter = letters.pop() if one and len(letters) == 1 else None
    upright = [marker for marker in markers if not marker.turned]  # places on a turned film mislead
    by_markers = None if one else _from_front(upright)
    return tuple(
        _first_of(
            ("user", _side(by_user, points_left)),
            (film.laterality_source, tag),
            ("header", _side(film.seen_from_front, points_left)),
            ("marker", letter or _side(by_markers, points_left)),
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


def _side(from_front: bool | None, mirrored: bool | None) -> str | None:
    """Return the side of a knee, given whether the picture shows the patient from the front."""
    return None if None in (from_front, mirrored) else LATERALITIES[from_front != mirrored]
