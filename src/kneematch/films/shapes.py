"""Boxes and points drawn with other programs: COCO (also written by CVAT), 3D Slicer, .pts.

All are returned in film pixels, counted from the top left corner of the first pixel, as in COCO.
Slicer and .pts files count from the centre of the first pixel; Slicer's unit is the millimetre,
with the axes x and y of an image along L and P, as it loads a radiograph.
"""

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

from kneematch.errors import TemplateError
from kneematch.films.annotation import reading
from kneematch.films.files import read_text, write_file
from kneematch.films.radiograph import Point

MARKUPS, POINTS = ".mrk.json", ".pts"  # suffixes
SCHEMA: Final = (
    "https://raw.githubusercontent.com/slicer/slicer/master/Modules/Loadable/Markups/Resources/"
    "Schema/markups-schema-v1.0.3.json#"
)
logger = logging.getLogger("kneematch")


CENTRE_PX: Final = 0.5  # centre of the first pixel
DECIMALS: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """A named box (x0, y0, x1, y1) or point (x, y), in film pixels."""

    name: str
    values: tuple[float, ...]

    @property
    def is_box(self) -> bool:
        """Whether it is a box."""
        return len(self.values) == 4

    @property
    def centre_x(self) -> float:
        """The middle of a box, or the point itself."""
        return (self.values[0] + self.values[-2]) / 2


def read_shapes(
    path: str | os.PathLike[str],
    film: str,
    *,
    mm_per_px: float | None = None,
    point_names: Sequence[str] = (),
) -> list[Shape]:
    """Return the shapes that were drawn on a film; raise TemplateError for other files.

    Args:
        path: a COCO file (.json), a Slicer file (.mrk.json), or a .pts file.
        film: file name of the film, to choose among the images of a COCO file.
        mm_per_px: pixel spacing of the film; without it, millimetres are taken for pixels.
        point_names: names of the points of a .pts file, which has none; default: point_1, ...
    """
    path, spacing = Path(path), mm_per_px or 1.0
    with reading(path, f"valid COCO, {MARKUPS} or {POINTS}"):
        text = read_text(path)
        if path.name.endswith(POINTS):
            return list(_from_points(text, point_names))
        data = json.loads(text)
        if "markups" in data:
            return list(_from_markups(data, spacing))
        return list(_from_coco(data, film))


def write_markups(
    path: str | os.PathLike[str], points: Mapping[str, Point], mm_per_px: float | None = None
) -> None:
    """Write points (x, y) in film pixels as a point list of 3D Slicer."""
    spacing = mm_per_px or 1.0
    controls = [
        {
            "id": str(number),
            "label": name,
            "position": [round((value - CENTRE_PX) * spacing, DECIMALS) for value in point] + [0.0],
            "positionStatus": "defined",
        }
        for number, (name, point) in enumerate(points.items(), start=1)
    ]
    units = {"coordinateSystem": "LPS", "coordinateUnits": "mm"}
    markup = {"type": "Fiducial", **units, "controlPoints": controls}
    text = json.dumps({"@schema": SCHEMA, "markups": [markup]}, indent=1)
    write_file(path, f"{text}\n".encode())


def write_points(path: str | os.PathLike[str], points: Mapping[str, Point]) -> None:
    """Write points (x, y) in film pixels as a .pts file, which holds no names."""
    lines = [
        f"{x - CENTRE_PX:.{DECIMALS}f} {y - CENTRE_PX:.{DECIMALS}f}" for x, y in points.values()
    ]
    text = "\n".join(["version: 1", f"n_points: {len(lines)}", "{", *lines, "}", ""])
    write_file(path, text.encode())


def _from_coco(data: Any, film: str) -> Iterator[Shape]:
    names = {image["id"]: image["file_name"] for image in data["images"]}
    chosen = _image(names, film)
    categories = {category["id"]: category for category in data["categories"]}
    for drawn in data["annotations"]:
        if drawn["image_id"] != chosen:
            continue
        category = categories[drawn["category_id"]]
        x, y, width, height = drawn["bbox"]
        yield _shape(category["name"], x, y, x + width, y + height)
        triples = zip(*[iter(drawn.get("keypoints", ()))] * 3, strict=True)
        for name, (x, y, visibility) in zip(category.get("keypoints", ()), triples, strict=False):
            if visibility > 0:
                yield _shape(name, x, y)


def _from_markups(data: Any, spacing: float) -> Iterator[Shape]:
    for markup in data["markups"]:
        sign = {"LPS": 1, "RAS": -1}[markup["coordinateSystem"]]

        def pixels(position: Sequence[float], sign: int = sign) -> Point:
            x, y = (sign * value / spacing + CENTRE_PX for value in position[:2])
            return x, y

        points = markup["controlPoints"]
        if markup["type"] == "ROI":
            x, y = pixels(markup["center"])
            half = [abs(value) / spacing / 2 for value in markup["size"][:2]]
            name = markup.get("name") or points[0]["label"]
            yield _shape(name, x - half[0], y - half[1], x + half[0], y + half[1])
        else:
            for point in points:
                yield _shape(point["label"], *pixels(point["position"]))


def _from_points(text: str, names: Sequence[str]) -> Iterator[Shape]:
    inside = text[text.index("{") + 1 : text.index("}")]
    lines = [line.split() for line in inside.splitlines() if line.strip()]
    if names and len(names) != len(lines):
        raise TemplateError(f"There are {len(lines)} points, but {len(names)} --names.")
    for number, (x, y) in enumerate(lines):
        name = names[number] if names else f"point_{number + 1}"
        yield _shape(name, *(float(value) + CENTRE_PX for value in (x, y)))


def _image(names: Mapping[Any, str], film: str) -> Any:
    """Return the key of the image that is the film, by name or, converted, by stem."""
    wanted = PurePath(film)
    if not names:
        raise ValueError("no images")
    same_name = [key for key, name in names.items() if PurePath(name).name == wanted.name]
    same_stem = [key for key, name in names.items() if PurePath(name).stem == wanted.stem]
    for found in (same_name, same_stem):
        if len(found) == 1:
            return found[0]
    if len(names) > 1:
        raise TemplateError(f"It has {len(names)} images; none or several are {wanted.name}.")
    ((only, name),) = names.items()
    logger.warning(
        "The drawing names the film %s, and %s is used. Check that they are the same.",
        name,
        wanted.name,
    )
    return only


def _shape(name: Any, *values: Any) -> Shape:
    numbers = tuple(float(value) for value in values)
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("a position is not a finite number")
    return Shape(str(name).strip(), numbers)
