"""Markers, rulers, clips, shields and collimation: drawn at random, and painted over the legs."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from kneephantoms.anatomy import Map, Point, Rng
from kneephantoms.framing import SIGNS, Field, Framing
from kneephantoms.solids import segment_distance

Disc = tuple[float, float, float, float]  # centre x and y, radius, grey
Line = tuple[float, float, float, float, float, float]  # x0, y0, x1, y1, width, grey
Shield = tuple[float, float, float, float, float]  # a point, the direction into it, its grey

# Styles of letters: grey of the box (None: no box) and of the letter.
STYLES: Final = ((0.42, 0.9), (0.85, 0.35), (None, 1.0), (0.8, 0.1), (None, 0.8), (0.0, 0.95))
WORDS: Final = ("Knee AP", "STANDING", "PT ID 001", "Compressed 8:1", "W: 4096 C: 2048", "12.4 cm")


@dataclass(frozen=True, slots=True)
class Label:
    """A text on the film, such as the marker R or L."""

    text: str
    centre: Point
    height: float
    style: int  # of STYLES
    angle_deg: float = 0.0
    mirrored: bool = False


@dataclass(frozen=True, slots=True)
class Overlays:
    """What is on the film besides the legs; positions and sizes in film pixels."""

    border_grey: float  # outside of the exposed field
    field_tilt_deg: float
    discs: tuple[Disc, ...]  # beads, calibration balls and coins
    round_field: Disc | None  # the corners outside of it are unexposed
    markers: tuple[Label, ...]  # R and L
    texts: tuple[Label, ...]
    lines: tuple[Line, ...]  # skin clips, ticks of a ruler, threads
    shields: tuple[Shield, ...]  # bright half planes: lead shields, edges of the cassette


def sample_overlays(rng: Rng, more: Rng, framing: Framing) -> Overlays:
    """Sample the objects on a film; `more` draws those that came after version 0.1.0."""
    height, width = framing.size
    x0, y0, x1, y1 = framing.field
    border_grey = 0.0 if rng.random() < 0.93 else rng.uniform(0.6, 1.0)
    tilt_deg = rng.normal(0, 1.0) if rng.random() < 0.25 else 0.0
    round_field: Disc | None = None
    discs: list[Disc] = []
    if rng.random() < 0.22:
        radius = float(np.hypot(width, height)) / 2 * rng.uniform(0.92, 1.02)
        x = width / 2 + rng.normal(0, 0.05) * width
        y = height / 2 + rng.normal(0, 0.08) * height
        round_field = (x, y, radius, rng.uniform(0.6, 1.0))
    if rng.random() < 0.12:
        x = x0 + rng.uniform(0.03, 0.08) * (x1 - x0)
        y = y0 + rng.uniform(0.6, 0.95) * (y1 - y0)
        discs.append((x, y, 0.165 * framing.unit_px, 0.93))
    markers = _sample_markers(rng, more, framing)
    discs = _sample_beads(rng, framing) + discs  # a coin lies on the beads
    full = framing.kind == "full_leg"
    if more.random() < (0.6 if full else 0.03):
        discs += _ball(more, framing)
    texts, lines = _sample_texts(more, framing), _sample_clips(more, framing)
    if more.random() < (0.8 if full else 0.02):
        ruler_lines, ruler_texts = _ruler(more, framing)
        texts, lines = texts + ruler_texts, lines + ruler_lines
    return Overlays(
        border_grey,
        tilt_deg,
        tuple(discs),
        None if full else round_field,
        markers,
        tuple(texts),
        tuple(lines),
        tuple(_sample_shields(more, framing)),
    )


def _sample_markers(rng: Rng, more: Rng, framing: Framing) -> tuple[Label, ...]:
    """Sample the letters R and L, beside the knees or in the upper corners."""
    x0, y0, x1, y1 = framing.field
    style, both, corner = int(rng.integers(4)), rng.random() < 0.6, rng.random() < 0.5
    style = int(more.integers(len(STYLES))) if more.random() < 0.4 else style
    height = framing.unit_px * rng.uniform(0.12, 0.28)
    angle = more.normal(0, 12) if more.random() < 0.25 else 0.0
    mirrored = bool(more.random() < 0.03)  # a marker that lay on its face
    markers = []
    exposed = [place for place in framing.places if x0 < place.centre[0] < x1]
    for place in exposed:
        outwards, (x, y), px = -SIGNS[place.laterality], place.centre, place.plateau_px
        x = x + outwards * px * rng.uniform(0.6, 1.0) * rng.choice([1, 1, 1, -1])
        y = y + px * rng.choice([-1, 1]) * rng.uniform(0.25, 1.2)
        if corner:
            x, y = (x0 if outwards < 0 else x1) - outwards * height, y0 + height
        x = float(np.clip(x, x0 + 0.7 * height, x1 - 0.7 * height))
        y = float(np.clip(y, y0 + 0.7 * height, y1 - 0.7 * height))
        if place.laterality == "R" or both or len(exposed) == 1:
            markers.append(Label(place.laterality, (x, y), height, style, angle, mirrored))
    return tuple(markers) if rng.random() < 0.9 else ()


def _sample_beads(rng: Rng, framing: Framing) -> list[Disc]:
    """Sample the two columns of beads of the frame used for fixed-flexion (OAI) films."""
    if framing.kind == "leg" or rng.random() > 0.08 or len(framing.places) < 2:
        return []
    px = framing.unit_px
    (left, joint), (right, _) = (place.centre for place in framing.places)
    middle = (left + right) / 2
    beads = []
    for x in (middle - rng.uniform(0.05, 0.2) * px, middle + rng.uniform(0.05, 0.2) * px):
        slant, start = rng.normal(0, 0.01), joint + rng.uniform(-0.3, 0.3) * px
        for k in range(int(rng.integers(5, 9))):
            y = start + (k - 3) * 0.2 * px
            beads.append((x + slant * k * px, y, 0.022 * px, 0.95))
    return beads


def _ball(rng: Rng, framing: Framing) -> list[Disc]:
    """Sample a calibration ball on a short stem, between the legs or beside one."""
    px, (height, width) = framing.unit_px, framing.size
    x = width * rng.uniform(0.4, 0.6) if len(framing.places) == 2 else width * rng.uniform(0, 1)
    y = height * rng.uniform(0.35, 0.6)
    radius, angle = px * rng.uniform(0.15, 0.2), rng.uniform(0, 2 * math.pi)
    if any(math.dist((x, y), place.centre) < 0.75 * px for place in framing.places):
        return []
    stem = x + 1.1 * radius * math.sin(angle), y + 1.1 * radius * math.cos(angle)
    return [(x, y, radius, rng.uniform(0.85, 1.0)), (*stem, 0.45 * radius, 0.85)]


def _ruler(rng: Rng, framing: Framing) -> tuple[list[Line], list[Label]]:
    """Sample a ruler along the left or the right edge, with ticks and numbers."""
    (height, width), px = framing.size, framing.unit_px
    left = bool(rng.random() < 0.8)
    x = width * (rng.uniform(0.0, 0.06) if left else rng.uniform(0.94, 1.0))
    wide, grey, step = px * rng.uniform(0.2, 0.6), rng.uniform(0.3, 0.8), px / 7.9
    lines: list[Line] = [(x, 0.0, x, float(height), wide, grey)]
    texts = []
    side = x - wide / 2 if left else x + wide / 2
    inwards = wide * (0.4 if left else -0.4)
    for k in range(1, int(height / step)):
        y = height - k * step
        reach = inwards * (2.2 if k % 10 == 0 else 1.0)
        lines.append((side, y, side + reach, y, max(0.25 * step, 1.0), grey - 0.3))
        if k % 10 == 0:
            texts.append(Label(str(k // 10 % 10), (x, y), 0.6 * wide, 4))
    return lines, texts


def _sample_clips(rng: Rng, framing: Framing) -> list[Line]:
    """Sample skin clips in a row over a knee, or single threads and wires."""
    lines: list[Line] = []
    px, chance = framing.unit_px, rng.random()
    if framing.places and chance < 0.03:
        x, y = framing.places[rng.integers(len(framing.places))].centre
        x += rng.normal(0, 0.2) * px
        for k in range(int(rng.integers(6, 20))):
            at = x + rng.normal(0, 0.015) * px, y + (0.11 * k - 1.1) * px
            lines.append((at[0] - 0.04 * px, at[1], at[0] + 0.04 * px, at[1], 0.014 * px, 0.95))
    height, width = framing.size
    for _ in range(int(rng.integers(1, 4)) if chance > 0.92 else 0):
        ends = rng.uniform(0, 1, 2) * (width, height)
        other = ends + rng.normal(0, 0.6, 2) * px
        lines.append((*ends.tolist(), *other.tolist(), 1.5, rng.uniform(0.6, 1.0)))
    return lines


def _sample_texts(rng: Rng, framing: Framing) -> list[Label]:
    """Sample words in the corners."""
    height, width = framing.size
    size = max(0.012 * height, 8.0) * rng.uniform(0.8, 2.0)
    texts = []
    for x, y in ((0.1, 0.02), (0.88, 0.02), (0.9, 0.97), (0.1, 0.97)):
        for line in range(int(rng.integers(1, 4)) if rng.random() < 0.1 else 0):
            word, shift = str(rng.choice(WORDS)), line * 1.2 * size * (1 if y < 0.5 else -1)
            texts.append(Label(word, (x * width, y * height + shift), size, 4))
    return texts


def _sample_shields(rng: Rng, framing: Framing) -> list[Shield]:
    """Sample bright half planes at the upper or lower edge, or beside the legs."""
    height, width = framing.size
    shields: list[Shield] = []
    if framing.kind == "full_leg" or rng.random() > 0.3:
        return shields
    for _ in range(int(rng.integers(1, 3))):
        edge, depth = int(rng.choice(4, p=[0.4, 0.35, 0.125, 0.125])), rng.uniform(0.005, 0.08)
        dx, dy = ((0, -1), (0, 1), (-1, 0), (1, 0))[edge]
        reach = 0.5 - depth if dy else 0.5 - depth / 2
        tilt, grey = rng.normal(0, 0.04), rng.uniform(0.5, 1.0)
        x, y = (0.5 + dx * reach) * width, (0.5 + dy * reach) * height
        shields.append((x, y, dx - tilt * dy, dy + tilt * dx, grey))
    return shields


def paint_overlays(film: Map, overlays: Overlays, field: Field, unit_px: float) -> None:
    """Paint everything that overlays the legs on a film (H, W)."""
    for x0, y0, x1, y1, wide, grey in overlays.lines:
        centre, reach = ((x0 + x1) / 2, (y0 + y1) / 2), (abs(x1 - x0) / 2, abs(y1 - y0) / 2)
        crop, dx, dy = _crop_around(film, centre, (reach[0] + wide, reach[1] + wide))
        ends = (x0 - centre[0], y0 - centre[1], x1 - centre[0], y1 - centre[1])
        if crop.size:
            _blend(crop, grey, wide / 2 - segment_distance(dx, dy, ends) + 0.5)
    for x, y, radius, grey in overlays.discs:
        crop, dx, dy = _crop_around(film, (x, y), (radius + 1, radius + 1))
        _blend(crop, grey, radius - np.hypot(dx, dy) + 0.5)
    for x, y, across, down, grey in overlays.shields:
        _, dx, dy = _crop_around(film, (x, y), (math.inf, math.inf))
        _blend(film, grey, (dx * across + dy * down) * (2.0 / max(0.02 * unit_px, 1)))
    if overlays.round_field is not None:
        x, y, radius, grey = overlays.round_field
        _, dx, dy = _crop_around(film, (x, y), (math.inf, math.inf))
        _blend(film, grey, (np.hypot(dx, dy) - radius) / (0.1 * unit_px) + 0.5)
    for label in (*overlays.markers, *overlays.texts):
        paint_label(film, label)
    _paint_border(film, overlays, field)


def paint_label(film: Map, label: Label) -> None:
    """Paint a text, with its box if its style has one."""
    box_grey, grey = STYLES[label.style]
    mask = _text_mask(label.text, max(round(label.height), 4), label.angle_deg, label.mirrored)
    height, width = mask.shape[1:]
    left, top = (round(c - s / 2) for c, s in zip(label.centre, (width, height), strict=True))
    rows = slice(max(top, 0), min(top + height, film.shape[0]))
    columns = slice(max(left, 0), min(left + width, film.shape[1]))
    if rows.stop <= rows.start or columns.stop <= columns.start:
        return
    part = mask[:, rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    if box_grey is not None:
        _blend(film[rows, columns], box_grey, part[0])
    _blend(film[rows, columns], grey, part[1])


@lru_cache(maxsize=256)
def _text_mask(text: str, height: int, angle_deg: float, mirrored: bool) -> Map:
    """Return opacities (2, h, w) of a text's box and of its strokes; its capitals are `height`."""
    font = ImageFont.load_default(1.35 * height)
    left, top, right, bottom = font.getbbox(text)
    margin = 0.2 * height
    size = math.ceil(right - left + 2 * margin), math.ceil(bottom - top + 2 * margin)
    box, strokes = Image.new("L", size, 255), Image.new("L", size)
    ImageDraw.Draw(strokes).text((margin - left, margin - top), text, fill=255, font=font)
    masks = []
    for picture in (box, strokes):
        if mirrored:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if angle_deg:
            picture = picture.rotate(angle_deg, Image.Resampling.BILINEAR, expand=True)
        masks.append(np.asarray(picture, dtype=np.float32) / 255)
    return np.stack(masks)


def _blend(film: Map, grey: float, opacity: Map) -> None:
    """Paint a film (H, W) with a grey of an opacity (H, W), clipped to [0, 1]."""
    opacity = np.clip(opacity, 0, 1)
    film *= 1 - opacity
    film += grey * opacity


def _crop_around(film: Map, centre: Point, reach: Point) -> tuple[Map, Map, Map]:
    """Return the pixels (h, w) within reach, and their x (1, w) and y (h, 1) from the centre."""
    (x0, x1), (y0, y1) = (
        (max(int(max(c - r, 0)), 0), int(min(max(c + r + 2, 0), length)))
        for c, r, length in zip(centre, reach, (film.shape[1], film.shape[0]), strict=True)
    )
    crop = film[y0 : max(y1, y0), x0 : max(x1, x0)]
    x = np.arange(crop.shape[1], dtype=np.float32) + (x0 + 0.5 - centre[0])
    y = np.arange(crop.shape[0], dtype=np.float32) + (y0 + 0.5 - centre[1])
    return crop, x[None, :], y[:, None]


def _paint_border(film: Map, overlays: Overlays, field: Field) -> None:
    """Paint what lies outside of the exposed field, which may be tilted."""
    height, width = film.shape
    x0, y0, x1, y1 = field
    if overlays.field_tilt_deg == 0 and overlays.border_grey == 0:
        film[: round(y0)] = 0
        film[round(y1) :] = 0
        film[:, : round(x0)] = 0
        film[:, round(x1) :] = 0
        return
    tilt = math.radians(overlays.field_tilt_deg)
    x = np.arange(width, dtype=np.float32)[None, :] + (0.5 - (x0 + x1) / 2)
    y = np.arange(height, dtype=np.float32)[:, None] + (0.5 - (y0 + y1) / 2)
    across = np.abs(x * math.cos(tilt) + y * math.sin(tilt)) - (x1 - x0) / 2
    down = np.abs(y * math.cos(tilt) - x * math.sin(tilt)) - (y1 - y0) / 2
    _blend(film, overlays.border_grey, np.maximum(across, down) + 0.5)
