"""The annotation, template.json: boxes and landmarks drawn on a part of the body on one film."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kneematch.errors import TemplateError
from kneematch.films.files import BROKEN, read_text, write_file
from kneematch.films.radiograph import Point
from kneematch.paper.split import LEFT, SIDES
from kneematch.paper.template import Box

FORMAT: Final = "kneematch-template/2"
FIRST_FORMAT: Final = "kneematch-template/1"  # knees only, with all boxes but the coarse one
# What to look for on a film: knees; or, on the whole film, the part once as it was drawn, the part
# and its mirror image, or any number of both.
KNEES, ONE, PAIR, ANY = FINDS = ("knees", "one", "pair", "any")
USUAL_SCALE_RANGE, MAX_SCALE_RANGE = 1.6, 3.0
USUAL_TURN_DEG, MAX_TURN_DEG = 7.0, 45.0
BOXES: Final = ("fine", "coarse", "red", "green")
NEEDED_BOXES: Final = ("fine", "red", "green")  # by knees; other parts need the first only
MAX_PX: Final = 1e6  # beyond any film
SMALLEST_BOX_PX: Final = 2
SLACK_PX: Final = 0.5  # so that a box drawn on the edge of another one counts as inside
SUFFIX: Final = ".json"
PLATEAU_MARGINS: Final = ("plateau_medial", "plateau_lateral")  # landmarks of the built-in template
RESERVED_LANDMARK: Final = "centre"  # centre_x_px is already a column of the tables
COARSE_MARGIN: Final = 1.3  # width of the coarse box over the fine one's, if none is drawn
# Usual boxes around a knee in the right half of a picture: x0, y0, x1, y1 from the midpoint of the
# plateau's margins, in plateau widths.
FINE: Final = (-0.665, -0.702, 0.684, 0.646)
COARSE: Final = (-0.867, -0.904, 0.886, 0.848)
RED: Final = (-0.627, -0.215, -0.234, 0.178)
GREEN: Final = (0.253, -0.234, 0.646, 0.159)


@dataclass(frozen=True, slots=True)
class Annotation:
    """Boxes on one knee, or another part of the body, in film pixels, and any named points."""

    film: Path
    side: str  # which half of the picture the knee is in: "left" or "right"
    fine: Box  # the joint area, T~
    coarse: Box  # T, around it
    red: Box  # at the two outer borders of the joint, inside fine
    green: Box
    landmarks: Mapping[str, Point] = field(default_factory=dict)
    find: str = KNEES
    # Parts other than knees are looked for at sizes up to this factor from the drawing's, as a
    # share of the film's width, and turned by up to these degrees.
    scale_range: float = USUAL_SCALE_RANGE
    turn_deg: float = USUAL_TURN_DEG

    @property
    def mirrored(self) -> bool:
        """Whether the template is mirrored: as are all images of left halves."""
        return self.side == SIDES[LEFT]


def annotate_part(
    film: Path, find: str, fine: Box, landmarks: Mapping[str, Point], middle: float
) -> Annotation:
    """Return the annotation of one box around a part; `middle` is the x of the film's middle."""
    side = SIDES[(fine[0] + fine[2]) / 2 >= middle]
    return Annotation(film, side, fine, enlarged(fine), fine, fine, landmarks, find)


def annotate(film: Path, side: str, left: Point, right: Point) -> Annotation:
    """Return the usual boxes around a plateau, given its left and right margin in film pixels.

    `side` is the half of the picture; the boxes are mirrored in the left one.
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


def find_plateau_margins(landmarks: Mapping[str, Point]) -> tuple[Point, Point] | None:
    """Return the medial and the lateral margin of the tibial plateau, or None without both."""
    medial, lateral = (landmarks.get(name) for name in PLATEAU_MARGINS)
    return None if medial is None or lateral is None else (medial, lateral)


def load_annotation(path: str | Path) -> Annotation:
    """Read a template.json; the path of its film is relative to the file's own folder.

    Raises:
        TemplateError: the file cannot be read, its film is not there, or its boxes are not valid.
    """
    path = Path(path)
    try:
        annotation = _parse(json.loads(read_text(path)), path.parent)
        for _, problem in annotation_problems(annotation):
            raise TemplateError(problem)
    except TemplateError as error:
        raise TemplateError(f"{path}: {error.message}") from error
    except OSError as error:
        raise TemplateError(f"{path}: It cannot be read: {error.strerror}.") from error
    except BROKEN as error:
        raise TemplateError(f"{path}: The file is not JSON. Export it again.") from error
    return annotation


def save_annotation(annotation: Annotation, path: str | Path) -> None:
    """Write a template.json; the film is stored as a path relative to the file's folder."""
    path = Path(path)
    data = {
        "format": FORMAT,
        "find": annotation.find,
        "scale_range": annotation.scale_range,
        "turn_deg": annotation.turn_deg,
        "film": Path(os.path.relpath(annotation.film, path.parent)).as_posix(),
        "side": annotation.side,
        "boxes": {name: list(getattr(annotation, name)) for name in BOXES},
        "landmarks": {name: list(point) for name, point in annotation.landmarks.items()},
    }
    write_file(path, f"{json.dumps(data, indent=1)}\n".encode())


def annotation_problems(annotation: Annotation) -> Iterator[tuple[str, str]]:
    """Yield the box to correct (or "landmarks") and what is wrong with it, for every fault.

    Whether the boxes can be cut from the film is checked by `cut_from_view`.
    """
    boxes: dict[str, Box] = {name: getattr(annotation, name) for name in BOXES}
    for name, (x0, y0, x1, y1) in boxes.items():
        if min(x1 - x0, y1 - y0) < SMALLEST_BOX_PX:
            yield name, f"The {name} box is empty; draw it with x0 < x1 and y0 < y1."
    for inner, outer in (("red", "fine"), ("green", "fine"), ("fine", "coarse")):
        (x0, y0, x1, y1), (left, top, right, bottom) = boxes[inner], boxes[outer]
        if max(left - x0, top - y0, x1 - right, y1 - bottom) > SLACK_PX:
            at_fault = "coarse" if outer == "coarse" else inner
            yield at_fault, f"The {inner} box must lie inside the {outer} box."
    if RESERVED_LANDMARK in annotation.landmarks:
        yield "landmarks", f"A landmark cannot be called {RESERVED_LANDMARK}; rename it."


def _parse(data: Any, folder: Path) -> Annotation:
    """Return the annotation in a template's content; its film's path is relative to the folder."""
    if not isinstance(data, dict) or data.get("format") not in (FORMAT, FIRST_FORMAT):
        raise TemplateError(f"The file is not of the format {FORMAT!r}.")
    side, name, find = data.get("side"), data.get("film"), data.get("find", KNEES)
    if side not in SIDES:
        raise TemplateError("'side' must be 'left' or 'right', the side of the image.")
    if find not in FINDS:
        raise TemplateError(f"'find' must be one of {', '.join(FINDS)}.")
    if not isinstance(name, str):
        raise TemplateError("'film' must be the path of the film that was drawn on.")
    drawn, points = data.get("boxes"), data.get("landmarks", {})
    if not isinstance(drawn, dict) or not isinstance(points, dict):
        raise TemplateError("'boxes' and 'landmarks' must be objects of names and numbers.")
    needed = NEEDED_BOXES if find == KNEES else NEEDED_BOXES[:1]
    names = [box for box in BOXES if box in (*needed, *drawn)]
    boxes = {box: _numbers(drawn.get(box), 4, box) for box in names}
    fine = boxes["fine"]
    boxes = {"red": fine, "green": fine, "coarse": enlarged(fine)} | boxes
    landmarks = {point: _numbers(values, 2, point) for point, values in points.items()}
    film = folder / name
    if not film.exists():
        raise TemplateError(f"Its film, {film}, does not exist. Correct 'film' in the template.")
    ranges = {"scale_range": (1.0, MAX_SCALE_RANGE), "turn_deg": (0.0, MAX_TURN_DEG)}
    given = {name: data[name] for name in ranges if name in data}
    for name, value in given.items():
        low, high = ranges[name]
        if not isinstance(value, int | float) or not low <= value <= high:
            raise TemplateError(f"'{name}' must be a number from {low:g} to {high:g}.")
    return Annotation(film, side, **boxes, landmarks=landmarks, find=find, **given)


def _numbers(values: Any, count: int, name: str) -> Any:
    """Return so many numbers of film pixels as a tuple."""
    if (
        not isinstance(values, list)
        or len(values) != count
        or not all(type(v) in (int, float) and abs(v) < MAX_PX for v in values)
    ):
        raise TemplateError(f"{name[:40]!r} must be a list of {count} numbers, in film pixels.")
    return tuple(float(value) for value in values)


def enlarged(box: Box) -> Box:
    """Return a box around the same centre, as large as the coarse one around fine."""
    cx, cy = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    w, h = COARSE_MARGIN * (box[2] - box[0]) / 2, COARSE_MARGIN * (box[3] - box[1]) / 2
    return cx - w, cy - h, cx + w, cy + h
