"""A film with the knee joint areas that were found on it."""

import math
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from kneematch.detection.detection import Detection
from kneematch.io.display import LEFT_COLOUR, RIGHT_COLOUR, Colour, to_grey8
from kneematch.io.radiograph import Radiograph

LONGEST_PX: Final = 1600  # side of the picture
LAYER_PX: Final = 3200  # lines are drawn on about this size, 2 to 4 times larger, then reduced
LINE_SHARE: Final = 1 / 520  # of the picture's longest side
THINNEST_PX: Final = 1.4
TEXT_SHARE: Final = 1 / 52
SMALLEST_TEXT_PX: Final = 12
TICK: Final = 0.09  # of the width of an area
COLOURS: Final = {"left": LEFT_COLOUR, "right": RIGHT_COLOUR}
LANDMARK_COLOUR: Final = (255, 255, 255)
SHADE: Final = (10, 12, 16)  # under lines and text, so that they stand out on bone

Points = NDArray[np.float64]  # (K, 2), pixels of the layer


def draw_detections(
    film: Radiograph, detections: Iterable[Detection], *, longest_px: int = LONGEST_PX
) -> Image.Image:
    """The film in grey; of each area its outline, its landmarks, and its side and loss.

    The thicker corner is the top left one of the template.
    """
    height, width = film.size
    scale = min(1.0, longest_px / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    small = Image.fromarray(film.pixels).resize(size, Image.Resampling.BOX)
    picture = Image.fromarray(to_grey8(np.asarray(small)))
    larger = min(max(LAYER_PX // max(size), 2), 4)
    layer = Image.new("RGBA", (larger * size[0], larger * size[1]), (*SHADE, 0))
    draw = ImageDraw.Draw(layer)
    line = larger * max(THINNEST_PX, LINE_SHARE * max(size))
    text_px = larger * max(SMALLEST_TEXT_PX, round(TEXT_SHARE * max(size)))
    found = list(detections)
    for detection in found:
        _outline(draw, detection, larger * scale, line)
    for detection in found:
        _label(layer, detection, larger * scale, text_px)
    return Image.alpha_composite(picture.convert("RGBA"), layer.reduce(larger)).convert("RGB")


def _outline(draw: ImageDraw.ImageDraw, found: Detection, scale: float, line: float) -> None:
    """The area, its first corner thicker, and crosses on its landmarks."""
    corners = scale * found.corners
    colour = COLOURS[found.side]
    across, down = TICK * (corners[1] - corners[0]), TICK * (corners[3] - corners[0])
    tick = np.stack([corners[0] + across, corners[0], corners[0] + down])
    arm = TICK / 3 * scale * found.width_px
    crosses = [
        np.array([[x - dx, y - dy], [x + dx, y + dy]])
        for x, y in (scale * np.array(place) for place in found.landmarks.values())
        for dx, dy in ((arm, 0.0), (0.0, arm))
    ]
    strokes: list[tuple[Points, Colour, float]] = [
        (np.concatenate([corners, corners[:1]]), colour, line),
        (tick, colour, 2.4 * line),
        *((cross, LANDMARK_COLOUR, 0.8 * line) for cross in crosses),
    ]
    for points, _, width in strokes:  # the shade of all below the colour of any
        _stroke(draw, points, (*SHADE, 150), width + 1.4 * line)
    for points, tint, width in strokes:
        _stroke(draw, points, (*tint, 255), width)


def _stroke(
    draw: ImageDraw.ImageDraw, points: Points, colour: tuple[int, int, int, int], width: float
) -> None:
    """A line through points, round at its joints and ends."""
    corners = [(float(x), float(y)) for x, y in points]
    draw.line(corners, fill=colour, width=max(1, round(width)), joint="curve")
    for x, y in corners:
        draw.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=colour)


def _label(layer: Image.Image, found: Detection, scale: float, size: int) -> None:
    """Side, patient's side and loss on a dark plate above the area, or where there is room."""
    text = f"{found.side} ({found.laterality})   {found.loss:.2f}"
    font = ImageFont.load_default(size)
    pad = size // 3
    wide, tall = math.ceil(font.getlength(text)) + 2 * pad, size + pad
    (x0, y0), (x1, y1) = scale * found.corners.min(0), scale * found.corners.max(0)
    gap = 0.5 * size
    above, below = y0 - gap - tall, y1 + gap
    y = above if above >= gap else min(below, layer.height - tall - gap)
    x = min(max((x0 + x1 - wide) / 2, gap), max(gap, layer.width - wide - gap))
    plate = Image.new("RGBA", (wide, tall), (0, 0, 0, 0))
    draw = ImageDraw.Draw(plate)
    draw.rounded_rectangle((0, 0, wide - 1, tall - 1), radius=tall // 3, fill=(*SHADE, 170))
    place = wide / 2, tall / 2
    draw.text(place, text, fill=(*COLOURS[found.side], 255), font=font, anchor="mm")
    layer.alpha_composite(plate, (max(0, round(x)), max(0, round(y))))
