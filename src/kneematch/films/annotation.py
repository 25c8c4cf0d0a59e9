"""The annotation, template.json: boxes and landmarks drawn on one knee of one film."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kneematch.errors import TemplateError
from kneematch.films.files import write_file
from kneematch.films.limits import read_text_bytes
from kneematch.films.radiograph import Point
from kneematch.paper.split import SIDES

FORMAT: Final = "kneematch-template/1"
BOXES: Final = ("fine", "coarse", "red", "green")
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

Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in film pixels


@dataclass(frozen=True, slots=True)
class Annotation:
    """Four boxes on one knee of one film, in film pixels, and any named points."""

    film: Path
    side: str  # which half of the picture the knee is in: "left" or "right"
    fine: Box  # the joint area, T~
    coarse: Box  # T, around it
    red: Box  # at the two outer borders of the joint, inside fine
    green: Box
    landmarks: Mapping[str, Point] = field(default_factory=dict)


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
        data = json.loads(read_text_bytes(path).decode("utf-8"))
    except OSError as error:
        raise TemplateError(
            f"{path}: cannot be read ({error.strerror}); expected a template.json; check the path"
        ) from error
    except (ValueError, RecursionError) as error:  # the latter from thousands of brackets
        raise TemplateError(
            f"{path}: not JSON ({error}); expected a {FORMAT} file; draw the template again"
        ) from error
    return _parse(data, path)


def save_annotation(annotation: Annotation, path: str | Path) -> None:
    """Write a template.json; the film is stored as a path relative to the file's folder."""
    path = Path(path)
    boxes = {name: list(getattr(annotation, name)) for name in BOXES}
    data = {
        "format": FORMAT,
        "film": Path(os.path.relpath(annotation.film, path.parent)).as_posix(),
        "side": annotation.side,
        "boxes": boxes,
        "landmarks": {name: list(point) for name, point in annotation.landmarks.items()},
    }
    write_file(path, f"{json.dumps(data, indent=1)}\n".encode())


def annotation_problems(annotation: Annotation) -> Iterator[tuple[str, str]]:
    """Yield every geometric fault of an annotation.

    Whether the boxes can be cut from the film is checked by `cut_from_view`.

    Yields:
        The name of the box to correct (or "landmarks"), and what was found, what was expected and
        what to do.
    """
    boxes: dict[str, Box] = {name: getattr(annotation, name) for name in BOXES}
    for name, (x0, y0, x1, y1) in boxes.items():
        if min(x1 - x0, y1 - y0) < SMALLEST_BOX_PX:
            yield (
                name,
                f"{name} box {[x0, y0, x1, y1]} is empty; expected x0 < x1 and y0 < y1; "
                "draw it again",
            )
    for inner, outer in (("red", "fine"), ("green", "fine"), ("fine", "coarse")):
        if not _contains(boxes[outer], boxes[inner]):
            yield (
                "coarse" if outer == "coarse" else inner,
                f"{inner} box {list(boxes[inner])} leaves the {outer} box {list(boxes[outer])}; "
                "expected it inside; move it",
            )
    if RESERVED_LANDMARK in annotation.landmarks:
        yield (
            "landmarks",
            f"a landmark is called {RESERVED_LANDMARK}, as the middle of an area is; "
            "expected another name; rename it",
        )


def _contains(outer: Box, inner: Box) -> bool:
    """Return whether a box lies inside another one, up to the slack."""
    return all(inner[k] >= outer[k] - SLACK_PX for k in (0, 1)) and all(
        inner[k] <= outer[k] + SLACK_PX for k in (2, 3)
    )


def _parse(data: Any, path: Path) -> Annotation:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise TemplateError(
            f"{path}: format is {found!r}; expected {FORMAT!r}; draw the template again"
        )
    boxes = data.get("boxes")
    if not isinstance(boxes, dict):
        raise TemplateError(f"{path}: no boxes; expected fine, red and green; draw them")
    side = data.get("side")
    if side not in SIDES:
        raise TemplateError(
            f"{path}: side is {side!r}; expected 'left' or 'right', the half of the picture that "
            "the knee is in; correct it"
        )
    if not isinstance(data.get("film"), str):
        raise TemplateError(f"{path}: no film; expected the path of the annotated film; add it")
    fine, red, green = (_box(boxes, name, path) for name in ("fine", "red", "green"))
    coarse = _box(boxes, "coarse", path) if "coarse" in boxes else enlarged(fine)
    points = data.get("landmarks", {})
    if not isinstance(points, dict):
        raise TemplateError(
            f"{path}: landmarks is {points!r}; expected names and their [x, y]; correct it"
        )
    landmarks = {name: _numbers(point, 2, repr(name), path) for name, point in points.items()}
    film = path.parent / data["film"]
    if not film.exists():
        raise TemplateError(
            f"{path}: its film {film} is not there; expected the film that it was drawn on; put it "
            "there, or correct 'film', a path from the template's own folder"
        )
    annotation = Annotation(film, side, fine, coarse, red, green, landmarks)
    for _, problem in annotation_problems(annotation):
        raise TemplateError(f"{path}: {problem}")
    return annotation


def _numbers(values: Any, count: int, name: str, path: Path) -> Any:
    if (
        not isinstance(values, list)
        or len(values) != count
        or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values)
        or not all(abs(v) < 1e6 for v in values)
    ):
        raise TemplateError(
            f"{path}: {name} is {values!r}; expected {count} numbers in film pixels; correct it"
        )
    return tuple(float(value) for value in values)


def _box(boxes: Mapping[str, Any], name: str, path: Path) -> Box:
    if name not in boxes:
        raise TemplateError(f"{path}: no {name} box; expected [x0, y0, x1, y1]; draw it")
    box: Box = _numbers(boxes[name], 4, name, path)
    return box


def enlarged(box: Box) -> Box:
    """Return a box around the same centre, as large as the coarse one around fine."""
    cx, cy = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    w, h = COARSE_MARGIN * (box[2] - box[0]) / 2, COARSE_MARGIN * (box[3] - box[1]) / 2
    return cx - w, cy - h, cx + w, cy + h
