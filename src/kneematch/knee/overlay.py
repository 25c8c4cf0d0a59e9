"""A film with the knee joint areas that were found on it."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from kneematch.films.pictures import LEFT_COLOUR, RIGHT_COLOUR, Colour, to_grey8
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detection import Detection

LONGEST_PX: Final = 1600  # side of the picture
LAYER_PX: Final = 3200  # lines are drawn on about this size, 2 to 4 times larger, then reduced
LINE_SHARE: Final = 1 / 520  # width of lines over the picture's longest side
THINNEST_PX: Final = 1.4
TEXT_SHARE: Final = 1 / 52
SMALLEST_TEXT_PX: Final = 12
TICK: Final = 0.09  # length of the thick corner over the width of an area
COLOURS: Final = {"left": LEFT_COLOUR, "right": RIGHT_COLOUR}
LANDMARK_COLOUR: Final = (255, 255, 255)
SHADE: Final = (10, 12, 16)  # under lines and text, so that they stand out on bone
REVIEW_COLOUR: Final = (190, 30, 45)  # behind the label of a knee to review
THUMBNAIL_TEXT_SHARE: Final = 1 / 25  # legible where a picture is shown at half its size
SPAN_SHARE: Final = 1 / 6  # largest text size over the columns for a label, so that words fit
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
    reasons: bool = True,
) -> Image.Image:
    """Draw the film in grey with the outline, landmarks, patient's side and loss of each area.

    The thick corner is the template's top left. An area to review has a dashed outline and a red
    label, with the reasons if these are wanted. A film smaller than `longest_px` keeps its size; a
    thumbnail has thicker lines and larger text.
    """
    picture, scale = _grey_picture(film, longest_px)
    size = picture.size
    larger = min(max(LAYER_PX // max(size), 2), 4)
    line = larger * max(THINNEST_PX, LINE_SHARE * max(size)) * (2 if thumbnail else 1)
    share = THUMBNAIL_TEXT_SHARE if thumbnail else TEXT_SHARE
    text_px = larger * max(SMALLEST_TEXT_PX, round(share * max(size)))
    found = list(detections)
    for detection in found:
        _draw_strokes(picture, _outline(detection, larger * scale, line), line, larger)
    room = larger * size[0], larger * size[1]
    spans = [_label_span(detection, found, larger * scale, room[0]) for detection in found]
    narrowest = min((high - low for low, high in spans), default=room[0])
    text_px = max(text_px // 2, min(text_px, round(SPAN_SHARE * narrowest)))
    for detection, span in zip(found, spans, strict=True):
        plate, place = _label(room, detection, larger * scale, text_px, span, reasons=reasons)
        _paste(picture, plate, place, larger)
    return picture


def _grey_picture(film: Radiograph, longest_px: int) -> tuple[Image.Image, float]:
    """Return a film in grey, as an RGB picture of at most so many pixels a side, and its scale."""
    height, width = film.size
    scale = min(1.0, longest_px / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    small = Image.fromarray(film.pixels).resize(size, Image.Resampling.BOX)
    return Image.fromarray(to_grey8(np.asarray(small))).convert("RGB"), scale


def _paste(picture: Image.Image, layer: Image.Image, place: tuple[int, int], larger: int) -> None:
    """Reduce a transparent layer, and lay it on a picture at a place (x, y) of the layer's size."""
    small = layer.reduce(larger)
    corner = place[0] // larger, place[1] // larger
    picture.paste(small.convert("RGB"), corner, small.getchannel("A"))


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
        *((scale * points, colour, 0.8 * line) for points in bones if len(points) > 1),
    ]


def _draw_strokes(
    picture: Image.Image, strokes: Sequence[Stroke], line: float, larger: int
) -> None:
    """Draw lines with a shade below them, on a layer as large as they need."""
    points = np.concatenate([points for points, _, _ in strokes])
    room = larger * np.array(picture.size)
    low = (points.min(0) - 4 * line).clip(0, room).astype(int) // larger * larger
    high = (points.max(0) + 4 * line).clip(low + larger, room).astype(int)
    layer = Image.new("RGBA", tuple((high - low).tolist()), (*SHADE, 0))
    draw = ImageDraw.Draw(layer)
    for points, _, width in strokes:  # the shade of all below the colour of any
        _stroke(draw, points - low, (*SHADE, 150), width + 1.4 * line)
    for points, tint, width in strokes:
        _stroke(draw, points - low, (*tint, 255), width)
    _paste(picture, layer, tuple(low.tolist()), larger)


def _dashes(points: Points) -> list[Points]:
    """Split each edge of a polyline (K, 2) into dashes (2, 2), with gaps of the same length."""
    ends = np.linspace(0, 1, 2 * DASHES)[:, None]  # an odd number of pieces: corners are drawn
    return [
        start + ends[k : k + 2] * (end - start)
        for start, end in pairwise(points)
        for k in range(0, 2 * DASHES, 2)
    ]


def _stroke(
    draw: ImageDraw.ImageDraw, points: Points, colour: tuple[int, int, int, int], width: float
) -> None:
    """Draw a line through points (K, 2), round at its joints and ends."""
    corners = [(float(x), float(y)) for x, y in points]
    draw.line(corners, fill=colour, width=max(1, round(width)))
    for x, y in corners:
        draw.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=colour)


def _label_span(
    knee: Detection, knees: Iterable[Detection], scale: float, width: int
) -> tuple[float, float]:
    """Return the columns for a label, which end halfway to a knee that stands beside its own."""
    low, high = 0.0, float(width)
    for other in knees:
        dx, dy = (there - here for here, there in zip(knee.centre, other.centre, strict=True))
        if abs(dx) > abs(dy):
            middle = scale * (knee.centre[0] + dx / 2)
            low, high = (low, min(high, middle)) if dx > 0 else (max(low, middle), high)
    return low, high


def _wrap(text: str, font: Font, room: float, space: str = " ") -> list[str]:
    """Break a text into lines that are not wider than `room`, where its spaces allow it."""
    lines: list[str] = []
    for word in text.split(space):
        if lines and font.getlength(f"{lines[-1]}{space}{word}") <= room:
            lines[-1] += f"{space}{word}"
        else:
            lines.append(word)
    return lines


def _label(
    room: tuple[int, int],
    found: Detection,
    scale: float,
    size: int,
    span: tuple[float, float],
    *,
    reasons: bool,
) -> tuple[Image.Image, tuple[int, int]]:
    """Return a plate with the patient's side and the loss, and its place (x, y).

    It lies above the area, or where there is room in a layer of (width, height).
    """
    low, high = span
    title = found.label + ("   review" if found.needs_review else "")
    font = ImageFont.load_default(size)
    pad = size // 3
    widest = high - low - 4 * pad
    parts = _wrap(title, font, widest, "   ")
    lines = [line for part in parts for line in _wrap(part, font, widest)]
    if found.needs_review and reasons:
        widest = min(widest, max(room[0] / 2, scale * found.width_px) - 4 * pad)
        lines += [line for reason in found.review_reasons for line in _wrap(reason, font, widest)]
    wide = math.ceil(max(map(font.getlength, lines))) + 2 * pad
    tall = len(lines) * (size + pad)
    (x0, y0), (x1, y1) = scale * found.corners.min(0), scale * found.corners.max(0)
    gap = 0.5 * size
    above, below = y0 - gap - tall, y1 + gap
    y = above if above >= gap else min(below, room[1] - tall - gap)
    x = max(pad, min(max((x0 + x1 - wide) / 2, low + pad), high - wide - pad))
    plate = Image.new("RGBA", (wide, tall), (0, 0, 0, 0))
    draw = ImageDraw.Draw(plate)
    back = (*REVIEW_COLOUR, 225) if found.needs_review else (*SHADE, 170)
    ink = (255, 255, 255) if found.needs_review else COLOURS[found.half]
    draw.rounded_rectangle((0, 0, wide - 1, tall - 1), radius=(size + pad) // 3, fill=back)
    for number, text in enumerate(lines):
        place = wide / 2, (number + 0.5) * (size + pad)
        draw.text(place, text, fill=(*ink, 255), font=font, anchor="mm")
    return plate, (max(0, round(x)), max(0, round(y)))
