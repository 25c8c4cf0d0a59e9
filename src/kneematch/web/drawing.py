"""What the user has drawn, and whether it can serve as a template."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import torch
from PIL import Image, ImageDraw
from pydantic import Field

from kneematch.detection.describe import split_lines
from kneematch.errors import TemplateError
from kneematch.geometry.pose import SCALE_MIN, SCALE_RANGE
from kneematch.geometry.split import SIDES, split
from kneematch.geometry.view import View, transform
from kneematch.io.display import Colour, to_grey8
from kneematch.io.radiograph import Radiograph
from kneematch.matching.annotation import COARSE_MARGIN, Annotation, Box, annotation_problems
from kneematch.matching.template import Template, Window, cut_from_half
from kneematch.web.films import inline

RED: Final = (255, 92, 92)
GREEN: Final = (92, 220, 130)
ENLARGE: Final = 2  # the template's picture, whose pixels are the half's

Coordinate = Annotated[float, Field(gt=-1e6, lt=1e6, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9_-]+$")]


@dataclass(frozen=True, slots=True)
class Drawing:
    """As the page sends it: boxes [x0, y0, x1, y1] and points [x, y] in film pixels."""

    fine: tuple[Coordinate, Coordinate, Coordinate, Coordinate]
    red: tuple[Coordinate, Coordinate, Coordinate, Coordinate]
    green: tuple[Coordinate, Coordinate, Coordinate, Coordinate]
    coarse: tuple[Coordinate, Coordinate, Coordinate, Coordinate] | None = None
    landmarks: Annotated[dict[Name, tuple[Coordinate, Coordinate]], Field(max_length=50)] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The film that is drawn on, and its halves."""

    path: Path
    film: Radiograph
    halves: View  # pixels (2, 800, 500)
    axis_px: float

    @classmethod
    def of(cls, path: Path, film: Radiograph) -> "Subject":
        """Split the film."""
        return cls(path, film, split(film), split_lines(film)[0])

    def half(self, side: str) -> View:
        """One half."""
        k = SIDES.index(side)
        return View(self.halves.pixels[k], self.halves.to_film[k])

    def frame(self, side: str) -> Box:
        """The part of the film that a half shows, its black padding included."""
        ends = transform(self.half(side).to_film, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
        (xa, y0), (xb, y1) = ends.tolist()
        return min(xa, xb), y0, max(xa, xb), y1


def annotation_of(drawing: Drawing, subject: Subject) -> Annotation:
    """The annotation that a drawing is; the knee is in the half where the middle of it lies."""
    fine = drawing.fine
    side = SIDES[(fine[0] + fine[2]) / 2 >= subject.axis_px]
    empty = min(fine[2] - fine[0], fine[3] - fine[1]) <= 0
    coarse = drawing.coarse or (fine if empty else coarse_around(fine, subject.frame(side)))
    return Annotation(
        subject.path, side, fine, coarse, drawing.red, drawing.green, drawing.landmarks
    )


def problems_of(annotation: Annotation, subject: Subject) -> list[dict[str, str]]:
    """All that keeps an annotation from being a template, each with the box that it is about."""
    found = [{"box": box, "text": text} for box, text in annotation_problems(annotation)]
    for box in ("fine", "coarse") if not found else ():
        try:
            cut_from_half(subject.half(annotation.side), annotation, box)
        except TemplateError as error:
            text = str(error).removeprefix(f"{annotation.film}: ")
            named = re.search(r"the (fine|coarse|red|green) box", text)
            found.append({"box": named[1] if named else box, "text": text})
    return [problem for k, problem in enumerate(found) if problem not in found[:k]]


def template_pictures(annotation: Annotation, subject: Subject) -> dict[str, Any]:
    """The fine template as the matcher sees it in either half of a film, windows drawn in."""
    template, theta = cut_from_half(subject.half(annotation.side), annotation)
    image = _drawn(template)
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    height, width = template.size
    return {
        "right": inline(image),
        "left": inline(mirrored),
        "size": [width, height],
        "share": float(theta[0]),
    }


def coarse_around(fine: Box, frame: Box) -> Box:
    """The coarse box where none is drawn: around the fine one, moved to where the half is."""
    size = [fine[k + 2] - fine[k] for k in (0, 1)]
    room = [frame[k + 2] - frame[k] for k in (0, 1)]
    largest = min((SCALE_MIN + SCALE_RANGE) * room[0] / size[0], room[1] / size[1])
    factor = max(min(COARSE_MARGIN, largest), 1.0)
    start = [(fine[k] + fine[k + 2] - factor * size[k]) / 2 for k in (0, 1)]
    x, y = (min(max(start[k], frame[k]), frame[k + 2] - factor * size[k]) for k in (0, 1))
    # A fine box that leaves the half is a problem of its own, not one of this box.
    x0, y0 = min(x, fine[0]), min(y, fine[1])
    x1, y1 = max(x + factor * size[0], fine[2]), max(y + factor * size[1], fine[3])
    return round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)


def _drawn(template: Template) -> Image.Image:
    """Its image, larger, with the red and green window and the landmarks."""
    height, width = template.size
    size = ENLARGE * width, ENLARGE * height
    image = Image.fromarray(to_grey8(template.image.numpy())).resize(size).convert("RGB")
    draw = ImageDraw.Draw(image)
    windows: tuple[tuple[Window, Colour], ...] = ((template.red, RED), (template.green, GREEN))
    for (_, rows, columns), colour in windows:
        x0, y0, x1, y1 = (ENLARGE * v for v in (columns.start, rows.start, columns.stop, rows.stop))
        draw.rectangle((x0, y0, x1 - 1, y1 - 1), outline=colour, width=2 * ENLARGE)
    for x, y in template.landmarks.values():
        px, py, arm = (x + 1) / 2 * size[0], (y + 1) / 2 * size[1], 3 * ENLARGE
        draw.line((px - arm, py, px + arm, py), fill="white")
        draw.line((px, py - arm, px, py + arm), fill="white")
    return image
