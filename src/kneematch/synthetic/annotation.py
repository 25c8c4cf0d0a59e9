"""Annotate a knee by its plateau's margins, as a user would draw the boxes of a template."""

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kneematch.errors import TemplateError
from kneematch.io.read import read
from kneematch.matching.annotation import Annotation, Box, Point
from kneematch.matching.template import cut_template

# Boxes around a knee in the right half of a picture: x0, y0, x1, y1 from the midpoint of the
# margins, in plateau widths.
FINE: Final = (-0.665, -0.702, 0.684, 0.646)
COARSE: Final = (-0.867, -0.904, 0.886, 0.848)
RED: Final = (-0.627, -0.215, -0.234, 0.178)
GREEN: Final = (0.253, -0.234, 0.646, 0.159)
PREFERRED_GRADE: Final = 2  # the highest KL grade of a typical knee


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

    landmarks = {"plateau_left": left, "plateau_right": right}
    return Annotation(film, side, place(FINE), place(COARSE), place(RED), place(GREEN), landmarks)


def annotation_from_truth(truth: str | Path) -> Annotation | None:
    """Annotate the first knee of a truth.csv that can serve as a template.

    Returns:
        The annotation, or None if the boxes of every knee leave its half of the film.
    """
    for annotation in _annotations(Path(truth)):
        try:
            film = read(annotation.film)
            for box in ("fine", "coarse"):
                cut_template(film, annotation, box)
        except TemplateError:
            continue
        return annotation
    return None


def _annotations(truth: Path) -> Iterator[Annotation]:
    """Yield the knees of positive films without hardware, those of low grade first."""
    with truth.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if _is_typical(row)]
    for row in sorted(rows, key=lambda row: int(row["grade"]) > PREFERRED_GRADE):
        left, right = (
            (float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"]))
            for name in ("plateau_left", "plateau_right")
        )
        yield annotate(truth.parent / row["film"], row["side"], left, right)


def _is_typical(row: Mapping[str, str]) -> bool:
    return row["negative"] == "0" and not row["hardware"]
