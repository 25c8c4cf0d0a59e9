"""Detections as COCO has them: boxes, outlines and keypoints, in one JSON."""

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, Final, TextIO

import numpy as np
from numpy.typing import NDArray

from kneematch.detection.detection import Detection
from kneematch.io.atomic import write_aside

CATEGORY_ID: Final = 1
DECIMALS: Final = 3
ABSENT, OUTSIDE, VISIBLE = 0, 1, 2  # COCO's v of a keypoint

Films = Iterable[tuple[str, tuple[int, int], Sequence[Detection]]]


def write_coco(
    films: Films, path: str | os.PathLike[str], *, landmarks: Sequence[str] = ()
) -> None:
    """Write films and what was found on them; neither is held in memory.

    Args:
        films: the name of each, its (height, width) in pixels, and its detections.
        path: the JSON.
        landmarks: names of the keypoints.
    """
    category = {
        "id": CATEGORY_ID,
        "name": "knee_joint",
        "supercategory": "joint",
        "keypoints": list(landmarks),
        "skeleton": [],
    }
    with (
        write_aside(path) as aside,
        aside.open("w", encoding="ascii", newline="\n") as file,
        # A JSON's lists follow each other, so the second one waits.
        tempfile.TemporaryFile("w+", encoding="ascii", newline="\n") as waiting,
    ):
        file.write('{"info": {"description": "kneematch: knee joint areas"},\n"licenses": [],\n')
        file.write(f'"categories": [{json.dumps(category)}],\n"images": [')
        annotations = 0
        for number, (name, size, knees) in enumerate(films, start=1):
            _item(file, _image(number, name, size), first=number == 1)
            for found in knees:
                annotations += 1
                item = {"id": annotations, "image_id": number}
                item |= _annotation(found, size, landmarks)
                _item(waiting, item, first=annotations == 1)
        file.write('],\n"annotations": [')
        waiting.seek(0)
        file.writelines(waiting)
        file.write("]}\n")


def _item(file: TextIO, item: dict[str, Any], *, first: bool) -> None:
    file.write(("\n" if first else ",\n") + json.dumps(item))


def _image(number: int, name: str, size: tuple[int, int]) -> dict[str, Any]:
    return {"id": number, "file_name": name, "height": size[0], "width": size[1]}


def _annotation(
    found: Detection, size: tuple[int, int], landmarks: Sequence[str]
) -> dict[str, Any]:
    outline = np.round(found.corners, DECIMALS) + 0.0
    (x0, y0), (x1, y1) = outline.min(0), outline.max(0)
    marked = [_keypoint(found, name, size) for name in landmarks]
    return {
        "category_id": CATEGORY_ID,
        "bbox": [_number(value) for value in (x0, y0, x1 - x0, y1 - y0)],
        "area": _number(_area(outline)),
        "segmentation": [outline.flatten().tolist()],
        "iscrowd": 0,
        "keypoints": [value for point in marked for value in point],
        "num_keypoints": sum(point[2] > ABSENT for point in marked),
        "score": round(1 - found.loss, 6),
        "attributes": {
            "side": found.side,
            "laterality": found.laterality,
            "rotation_deg": round(found.rotation_deg, 4),
            "review": found.review,
            "reason": found.reason,
        },
    }


def _keypoint(found: Detection, name: str, size: tuple[int, int]) -> tuple[float, float, int]:
    """x, y, and whether it is on the film; COCO wants zeros for one that is not known."""
    if name not in found.landmarks:
        return 0, 0, ABSENT
    x, y = found.landmarks[name]
    inside = 0 <= x <= size[1] and 0 <= y <= size[0]
    return _number(x), _number(y), VISIBLE if inside else OUTSIDE


def _area(outline: NDArray[np.float64]) -> float:
    """Of a polygon (K, 2), either way round: the shoelace formula."""
    x, y = outline.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def _number(value: float) -> float:
    return round(float(value), DECIMALS) + 0.0
