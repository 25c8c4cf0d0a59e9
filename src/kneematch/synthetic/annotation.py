"""The template that one would draw on a phantom, from its truth."""

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kneematch.errors import TemplateError
from kneematch.io.read import read
from kneematch.matching.annotation import Annotation, Box, Point
from kneematch.matching.template import cut_template

# Boxes around a knee in the right half of a picture, in widths of its plateau from the middle.
FINE: Final = (-0.665, -0.702, 0.684, 0.646)
COARSE: Final = (-0.867, -0.904, 0.886, 0.848)
RED: Final = (-0.627, -0.215, -0.234, 0.178)
GREEN: Final = (0.253, -0.234, 0.646, 0.159)
HIGHEST_GRADE: Final = 2  # of a knee that looks like most others


def template_from_truth(truth: str | Path) -> Annotation | None:
    """Annotate the first knee of a truth.csv that can serve as a template, or none."""
    for annotation in _candidates(Path(truth)):
        try:
            film = read(annotation.film)
            for box in ("fine", "coarse"):
                cut_template(film, annotation, box)
        except TemplateError:
            continue
        return annotation
    return None


def annotate(film: Path, side: str, left: Point, right: Point) -> Annotation:
    """The boxes around a plateau whose margins are two points of the film."""
    unit = math.dist(left, right)
    x, y = (left[0] + right[0]) / 2, (left[1] + right[1]) / 2

    def box(relative: Box) -> Box:
        x0, y0, x1, y1 = relative
        if side == "left":  # mirrored
            x0, x1 = -x1, -x0
        placed = x + unit * x0, y + unit * y0, x + unit * x1, y + unit * y1
        return tuple(round(value, 1) for value in placed)  # type: ignore[return-value]

    landmarks = {"plateau_left": left, "plateau_right": right}
    return Annotation(film, side, box(FINE), box(COARSE), box(RED), box(GREEN), landmarks)


def _candidates(truth: Path) -> Iterator[Annotation]:
    """Knees of ordinary films, those of a low grade first."""
    with truth.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if _ordinary(row)]
    for row in sorted(rows, key=lambda row: int(row["grade"]) > HIGHEST_GRADE):
        left, right = (
            (float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"]))
            for name in ("plateau_left", "plateau_right")
        )
        yield annotate(truth.parent / row["film"], row["side"], left, right)


def _ordinary(row: Mapping[str, str]) -> bool:
    return row["negative"] == "0" and not row["hardware"]
