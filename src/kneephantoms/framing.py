"""Random framing of films: how many legs, where they lie, and which part of the film is exposed."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from kneephantoms.anatomy import Point, Rng, Size

Range = Point
Field = tuple[float, float, float, float]

# Sign of x along u, which grows medially, by the patient's side. The patient's right knee lies in
# the left half of the picture.
SIGNS: Final = {"R": 1.0, "L": -1.0}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a knee lies on the film, in film pixels."""

    laterality: str  # the patient's side, "R" or "L"
    centre: Point
    plateau_px: float  # width of the tibial plateau
    rotation_deg: float  # clockwise positive


@dataclass(frozen=True, slots=True)
class Framing:
    """What a film shows of the body; points (x, y) in film pixels."""

    kind: str  # one of KINDS or OTHER_KINDS
    size: Size
    field: Field  # the exposed rectangle x0, y0, x1, y1
    places: tuple[Place, ...]  # frontal knees, from the left to the right
    unit_px: float  # width of an average plateau at the film's scale


@dataclass(frozen=True, slots=True)
class FilmKind:
    """A way to frame both knees."""

    frequency: float
    size: Size
    plateau_width: Range  # over the width of the exposed field
    joint_height: Range  # over its height


KINDS: Final = {
    "knee": FilmKind(0.46, (1024, 1024), (0.235, 0.30), (0.30, 0.72)),
    "low": FilmKind(0.10, (640, 780), (0.14, 0.22), (0.3, 0.65)),  # low resolution
    "wide": FilmKind(0.12, (820, 1000), (0.165, 0.225), (0.38, 0.62)),
    "leg": FilmKind(0.20, (1000, 820), (0.195, 0.275), (0.20, 0.36)),
    "fill": FilmKind(0.12, (820, 1000), (0.30, 0.38), (0.38, 0.62)),
}
# Frequencies of "any".
FREQUENCIES: Final = {
    "bilateral": 0.35,
    "single": 0.25,
    "full_leg": 0.12,
    "offcentre": 0.08,
    "lateral": 0.1,
    "other": 0.1,
}
SINGLE_SIZES: Final = ((640, 780), (800, 640), (1000, 820), (820, 1000), (1024, 1024), (1100, 760))


def sample_framing(rng: Rng, size: Size | None, framing: str, unit_mm: float) -> Framing:
    """Sample a framing by name: a key of KINDS or FREQUENCIES."""
    if framing == "single":
        return _single(rng, size)
    if framing == "full_leg":
        return _full_leg(rng, size, unit_mm)
    if framing in ("lateral", "other"):
        return _without_frontal_knees(rng, size, framing)
    return _bilateral(rng, size, framing if framing in KINDS else None)


def _bilateral(rng: Rng, size: Size | None, kind: str | None) -> Framing:
    drawn = list(KINDS)[rng.choice(len(KINDS), p=[each.frequency for each in KINDS.values()])]
    kind = drawn if kind is None else kind
    usual = KINDS[kind]
    height, width = size = usual.size if size is None else size
    field = _sample_field(rng, kind, size)
    x0, y0, x1, y1 = field
    across, down = x1 - x0, y1 - y0
    plateau = min(across * rng.uniform(*usual.plateau_width), down * 0.45)
    offset = max(0.25 + rng.normal(0, 0.02), 0.6 * plateau / across)  # knee to middle
    if kind == "low":
        offset = max(rng.uniform(0.15, 0.25), 0.75 * plateau / across)
    middle = x0 + across * (0.5 + rng.normal(0, 0.015))
    level = y0 + down * rng.uniform(*usual.joint_height)
    level_difference = down * rng.normal(0, 0.06 if rng.random() < 0.1 else 0.018)
    xs = [middle + sign * across * offset + rng.normal(0, 0.012) * across for sign in (-1, 1)]
    lean = rng.normal(0, 1.5)
    rotations = [float(np.clip(sign * lean + rng.normal(0, 2.0), -7, 7)) for sign in (1, -1)]
    left_px, right_px = (plateau * rng.normal(1, 0.012, 2)).tolist()
    # Each plateau lies as a whole in its half of the film.
    left_x = float(np.clip(xs[0], 0.62 * left_px, width / 2 - 0.56 * left_px))
    right_x = float(np.clip(xs[1], width / 2 + 0.56 * right_px, width - 0.62 * right_px))
    ys = [level - level_difference / 2, level + level_difference / 2]
    left_y, right_y = np.clip(ys, 0.3 * plateau, height - 0.3 * plateau).tolist()
    places = (
        Place("R", (left_x, left_y), left_px, rotations[0]),
        Place("L", (right_x, right_y), right_px, rotations[1]),
    )
    return Framing(kind, size, field, places, left_px)


def _sample_field(rng: Rng, kind: str, size: Size) -> Field:
    """Sample the exposed rectangle: the whole film, one between black bands, or a small one."""
    height, width = size
    choice = rng.random()
    if kind == "knee" and choice < 0.5:
        band = height * rng.uniform(0.04, 0.14)
        return (0.0, band, float(width), height - band)
    if kind == "knee" and choice < 0.72:
        band = width * rng.uniform(0.05, 0.16)
        top = height * rng.uniform(0.0, 0.2) * (rng.random() < 0.5)
        return (band, top, width - band, height - top)
    if choice > 0.93 and kind != "leg":
        across, down = rng.uniform(0.12, 0.22, 2).tolist()
        return (across * width, down * height, (1 - across) * width, (1 - down) * height)
    if choice > 0.6:
        a, b, c, d = rng.uniform(0.0, 0.03, 4).tolist()
        return (a * width, b * height, (1 - c) * width, (1 - d) * height)
    return (0.0, 0.0, float(width), float(height))


def _single(rng: Rng, size: Size | None) -> Framing:
    """Frame one knee, from a tight crop to a wide film; the other leg may be cut by the edge."""
    size = SINGLE_SIZES[rng.integers(len(SINGLE_SIZES))] if size is None else size
    field = _sample_field(rng, "single", size)
    x0, y0, x1, y1 = field
    across, down = x1 - x0, y1 - y0
    short = min(across, down)
    plateau = float(short * np.exp(rng.uniform(np.log(0.14), np.log(0.72))))
    laterality = str(rng.choice(list(SIGNS)))
    room = 0.58 * plateau
    x = x0 + rng.uniform(0.3, 0.7) * across
    y = y0 + rng.uniform(0.25, 0.75) * down
    x, y = np.clip(x, x0 + room, x1 - room), np.clip(y, y0 + 0.35 * plateau, y1 - 0.35 * plateau)
    rotation = float(np.clip(rng.normal(0, 4.0), -12, 12))
    places = [Place(laterality, (float(x), float(y)), plateau, rotation)]
    # Medial of it lies the other leg, whose plateau is at least two fifths out of the film.
    sign = SIGNS[laterality]
    edge = x1 if sign > 0 else x0
    other_x = x + sign * plateau * rng.uniform(1.9, 4.0)
    if sign * (other_x - edge) < -0.1 * plateau:
        other_x = edge + sign * rng.uniform(-0.1, 1.2) * plateau
    if rng.random() < 0.6 and sign * (other_x - x) > 1.3 * plateau:
        other = "L" if laterality == "R" else "R"
        centre = float(other_x), float(y + rng.normal(0, 0.15) * plateau)
        places.append(Place(other, centre, plateau, -rotation + rng.normal(0, 2.0)))
    places.sort(key=lambda place: place.centre)
    return Framing("single", size, field, tuple(places), plateau)


def _full_leg(rng: Rng, size: Size | None, unit_mm: float) -> Framing:
    """Frame both legs or one from hip to ankle; wide films leave much room beside the legs."""
    alone = rng.random() < 0.2
    aspect = rng.uniform(0.9, 1.7) if rng.random() < 0.3 else rng.uniform(0.38, 0.5)
    aspect *= 0.6 if alone else 1.0
    height = int(950 / aspect**0.5 * rng.uniform(0.75, 1.1)) if size is None else size[0]
    width = int(height * aspect) if size is None else size[1]
    plateau = height * rng.uniform(0.066, 0.082) * unit_mm / 79
    plateau = min(plateau, 0.22 * width)
    field = (0.0, 0.0, float(width), float(height))
    gap = rng.uniform(1.05, 1.5) * plateau  # from a knee to the middle
    middle = width * (0.5 + rng.normal(0, 0.03))
    y = height * rng.uniform(0.48, 0.58)
    lean = rng.normal(1.5, 2.0)  # legs apart or together at the feet
    places = []
    for laterality, sign in SIGNS.items():
        centre = middle - sign * gap, y + rng.normal(0, 0.15) * plateau
        if alone:
            centre = middle + rng.normal(0, 0.2) * plateau, centre[1]
        rotation = float(np.clip(sign * lean + rng.normal(0, 2.0), -10, 10))
        places.append(Place(laterality, centre, plateau * rng.normal(1, 0.012), rotation))
    if alone:
        places = [places[rng.integers(2)]]
    return Framing("full_leg", (height, width), field, tuple(places), plateau)


def _without_frontal_knees(rng: Rng, size: Size | None, framing: str) -> Framing:
    """Frame another part of the body or a knee from the side, perhaps beside a frontal one."""
    height, width = size = SINGLE_SIZES[rng.integers(len(SINGLE_SIZES))] if size is None else size
    field = _sample_field(rng, framing, size)
    unit = min(height, width) * rng.uniform(0.14, 0.3)
    if framing == "other" or rng.random() < 0.6:
        return Framing(framing, size, field, (), unit)
    unit = min(width * rng.uniform(0.16, 0.22), 0.4 * height)
    x = width * (rng.uniform(0.2, 0.28) if rng.random() < 0.5 else rng.uniform(0.72, 0.8))
    y = height * rng.uniform(0.35, 0.6)
    place = Place(str(rng.choice(list(SIGNS))), (x, y), unit, rng.normal(0, 3.0))
    return Framing(framing, size, field, (place,), unit)
