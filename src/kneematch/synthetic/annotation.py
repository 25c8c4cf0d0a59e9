"""Annotate a knee by its plateau's margins, as a user would draw the boxes of a template."""

import math
from pathlib import Path
from typing import Final

from kneematch.matching.annotation import PLATEAU_MARGINS, Annotation, Box, Point

# Boxes around a knee in the right half of a picture: x0, y0, x1, y1 from the midpoint of the
# margins, in plateau widths.
FINE: Final = (-0.665, -0.702, 0.684, 0.646)
COARSE: Final = (-0.867, -0.904, 0.886, 0.848)
RED: Final = (-0.627, -0.215, -0.234, 0.178)
GREEN: Final = (0.253, -0.234, 0.646, 0.159)


def annotate(film: Path, side: str, left: Point, right: Point) -> Annotation:
    """Return the boxes around a plateau.

    Args:
        film: path of the film.
        side: half of the picture, "left" or "right"; the boxes are mirrored in the left one.
        left: left margin of the plateau, in film pixels.
        right: its right margin.
    """
    unit = math.dist(left, right)
    x, y = (left[0] + right[0]) / 2, (left[1] + right[1]) / 2

    def place(relative: Box) -> Box:
        x0, y0, x1, y1 = relative
        if side == "left":
            x0, x1 = -x1, -x0
        corners = x + unit * x0, y + unit * y0, x + unit * x1, y + unit * y1
        return tuple(round(value, 1) for value in corners)  # type: ignore[return-value]

    inwards = (right, left) if side == "left" else (left, right)  # medial, lateral
    landmarks = dict(zip(PLATEAU_MARGINS, inwards, strict=True))
    return Annotation(film, side, place(FINE), place(COARSE), place(RED), place(GREEN), landmarks)
