"""A film with the knee joint areas that were found on it."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import count, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from kneematch.films.pictures import LEFT_COLOUR, RIGHT_COLOUR, Colour, to_grey8
from kneematch.films.radiograph import Radiograph, average_blocks
from kneematch.knee.detection import Detection

LONGEST_PX: Final = 1600  # side of the picture, to which films are reduced by a whole number
LAYER_PX: Final = 3200  # lines are drawn on about this size, 2 to 4 times larger, then reduced
LINE_SHARE: Final = 1 / 520  # width of lines over the picture's longest side
THINNEST_PX: Final = 1.4
TEXT_SHARE: Final = 1 / 52  # size of text over the longest side
NARROW: Final = 1.5  # the longest side counts as at most this many times the shortest
SMALLEST_TEXT_PX: Final = 12
TICK: Final = 0.09  # length of the thick corner over the width of an area
COLOURS: Final = {"left": LEFT_COLOUR, "right": RIGHT_COLOUR}
LANDMARK_COLOUR: Final = (255, 255, 255)
SHADE: Final = (10, 12, 16)  # under lines and text, so that they stand out on bone
SHADE_OPACITY: Final = 150  # of 255
REVIEW_BACKGROUND: Final = (190, 30, 45)  # behind the text about a knee to review
THUMBNAIL_TEXT_SHARE: Final = 1 / 25  # legible where a picture is shown at half its size
DASHES: Final = 12  # along each edge of an area to review

Points = NDArray[np.float64]  # (K, 2), pixels of the layer
Stroke = tuple[Points, Colour, float]  # a line, its colour and its width
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def draw_detections(
    film: Radiograph,
    detections: Iterable[Detection],
    *,
    longest_px: int = LONGEST_PX,
    thumbnail: bool = False,
    caption: bool = True,
) -> Image.Image:
    """Draw the film in grey with the outline, landmarks and patient's side of each area.

    The thick corner is the template's top left, and an area to review has a dashed outline. Below
    the film, where it covers nothing, is a line for each area with its name, its smallest joint
    spaces where they were measured, and the reasons for review, red where there are some; `caption`
    leaves it out. A film smaller than `longest_px` keeps its size; a thumbnail has thicker lines
    and larger text.
    """
    side = -(-max(film.size) // longest_px)
    grey, scale = to_grey8(average_blocks(film.pixels, side)), 1 / side
    picture = Image.fromarray(grey).convert("RGB")
    size = picture.size
    larger = min(max(LAYER_PX // max(size), 2), 4)
    line = larger * max(THINNEST_PX, LINE_SHARE * max(size)) * (2 if thumbnail else 1)
    share = THUMBNAIL_TEXT_SHARE if thumbnail else TEXT_SHARE
    text_px = max(SMALLEST_TEXT_PX, round(share * min(max(size), NARROW * min(size))))
    found = list(detections)
    for knee in found:
        _draw_strokes(picture, _outline(knee, larger * scale, line), line, larger)
        _draw_side(picture, knee, scale, text_px)
    return _with_caption(picture, found, text_px) if caption and found else picture


@lru_cache
def _font(px: float) -> Font:
    return ImageFont.load_default(px)


def _draw_side(picture: Image.Image, knee: Detection, scale: float, text_px: int) -> None:
    """Write the patient's side, R or L, above the middle of an area's top edge."""
    x, y = scale * knee.corners[:2].mean(0) - (0, text_px / 2)
    place = np.clip((x, y), 2 * text_px, np.array(picture.size) - text_px)
    ImageDraw.Draw(picture).text(
        (place[0], place[1]),
        knee.laterality,
        fill=COLOURS[knee.half],
        font=_font(1.6 * text_px),
        anchor="ms",
        stroke_width=round(text_px / 8),
        stroke_fill=SHADE,
    )


def _with_caption(picture: Image.Image, found: Sequence[Detection], text_px: int) -> Image.Image:
    """Return a picture with a line of text for each area below it, or more where it is long."""
    (width, height), font = picture.size, _font(text_px)
    step, indent = round(1.6 * text_px), 2 * text_px
    lines = [
        (knee, number, text)
        for knee in found
        for number, text in enumerate(_wrap(_caption(knee), font, width - 1.5 * indent))
    ]
    longer = Image.new("RGB", (width, height + len(lines) * step), SHADE)
    longer.paste(picture)
    draw = ImageDraw.Draw(longer)
    for y, (knee, number, text) in zip(count(height, step), lines, strict=False):
        if knee.needs_review:
            draw.rectangle((0, y, width, y + step - 1), fill=REVIEW_BACKGROUND)
        if number == 0:  # a patch in the colour of the area
            patch = (0.5 * text_px, y + 0.3 * step, 1.3 * text_px, y + 0.7 * step)
            draw.rectangle(patch, fill=COLOURS[knee.half], outline=LANDMARK_COLOUR)
        draw.text((indent, y + step / 2), text, fill=LANDMARK_COLOUR, font=font, anchor="lm")
    return longer


def _caption(knee: Detection) -> str:
    doubt = f". To review: {', '.join(knee.review_reasons)}" if knee.needs_review else ""
    return knee.label + doubt


def _outline(found: Detection, scale: float, line: float) -> list[Stroke]:
    """Return the lines of an area, its first corner thicker, its landmarks and its bones."""
    corners = scale * found.corners
    colour = COLOURS[found.half]
    across, down = TICK * (corners[1] - corners[0]), TICK * (corners[3] - corners[0])
    tick = np.stack([corners[0] + across, corners[0], corners[0] + down])
    arm = TICK / 3 * scale * found.width_px
    crosses = [
        np.array([[x - dx, y - dy], [x + dx, y + dy]])
        for x, y in (scale * np.array(place) for place in found.landmarks.values())
        for dx, dy in ((arm, 0.0), (0.0, arm))
    ]
    bones: list[Points] = []
    if found.measures is not None:
        drawn = found.measures.outlines
        bones = [drawn.femur, drawn.tibia, *drawn.femur_sides, *drawn.tibia_sides]
    closed = np.concatenate([corners, corners[:1]])
    lines = _dashes(closed) if found.needs_review else [closed]
    return [
        *((points, colour, line) for points in lines),
        (tick, colour, 2.4 * line),
        *((cross, LANDMARK_COLOUR, 0.8 * line) for cross in crosses),
        *((scale * points[::2], colour, 0.8 * line) for points in bones if len(points) > 2),
    ]


def _draw_strokes(
    picture: Image.Image, strokes: Sequence[Stroke], line: float, larger: int
) -> None:
    """Draw lines with a shade below them, each colour on a mask as large as its lines need."""
    shades = [(points, SHADE, width + 1.4 * line) for points, _, width in strokes]
    room = larger * np.array(picture.size)
    for tint in (SHADE, *dict.fromkeys(tint for _, tint, _ in strokes)):  # shades are below all
        own = [stroke for stroke in (*shades, *strokes) if stroke[1] == tint]
        points = np.concatenate([points for points, _, _ in own])
        low = (points.min(0) - 4 * line).clip(0, room - larger).astype(int) // larger * larger
        high = (points.max(0) + 4 * line).clip(low + larger, room).astype(int)
        (x, y), (width, height) = (low // larger).tolist(), (high - low).tolist()
        mask = Image.new("L", (width, height))
        draw = ImageDraw.Draw(mask)
        for points, _, thickness in own:
            _stroke(draw, points - low, SHADE_OPACITY if tint == SHADE else 255, thickness)
        picture.paste(tint, (x, y), mask.reduce(larger))


def _dashes(points: Points) -> list[Points]:
    """Split each edge of a polyline (K, 2) into dashes (2, 2), with gaps of the same length."""
    ends = np.linspace(0, 1, 2 * DASHES)[:, None]  # an odd number of pieces: corners are drawn
    return [
        start + ends[k : k + 2] * (end - start)
        for start, end in pairwise(points)
        for k in range(0, 2 * DASHES, 2)
    ]


def _stroke(draw: ImageDraw.ImageDraw, points: Points, opacity: int, width: float) -> None:
    """Draw a line through points (K, 2) on a mask, round at its joints and ends."""
    corners = [(float(x), float(y)) for x, y in points]
    draw.line(corners, fill=opacity, width=max(1, round(width)))
    for x, y in corners:
        draw.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=opacity)


def _wrap(text: str, font: Font, room: float) -> list[str]:
    """Break a text into lines that are not wider than `room`, where its spaces allow it."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and font.getlength(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
