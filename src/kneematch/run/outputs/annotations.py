"""Detections for annotation programs: coco.json, and landmarks for 3D Slicer and as .pts files."""

import json
import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np

from kneematch.films.files import atomic_write, make_folder
from kneematch.films.shapes import MARKUPS, POINTS, write_markups, write_points
from kneematch.knee.detection import Detection
from kneematch.paper.split import SIDES
from kneematch.run.outputs.tables import json_list

LANDMARK_EXPORTS: Final = ("markups", "pts")
CATEGORY_ID: Final = 1
DECIMALS: Final = 3
ABSENT, OUTSIDE, VISIBLE = 0, 1, 2  # COCO's visibility of a keypoint

CocoFilm = tuple[str, tuple[int, int], Sequence[Detection]]  # name, (height, width), knees


def write_coco(
    films: Iterable[CocoFilm], path: str | os.PathLike[str], *, landmarks: Sequence[str] = ()
) -> None:
    """Write the films and their detections without holding them in memory.

    Args:
        films: name, (height, width) in pixels, and detections of each film.
        path: the JSON file.
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
        atomic_write(path) as temp,
        temp.open("w", encoding="ascii", newline="\n") as file,
        # The annotations follow all images in the JSON, so they are kept on disk meanwhile.
        tempfile.TemporaryFile("w+", encoding="ascii", newline="\n") as annotations,
    ):
        file.write('{"info": {"description": "kneematch: knee joint areas"},\n"licenses": [],\n')
        file.write(f'"categories": [{json.dumps(category)}],\n"images": [')
        add_image, add_annotation, ids = json_list(file), json_list(annotations), count(1)
        for number, (name, (height, width), found) in enumerate(films, start=1):
            add_image({"id": number, "file_name": name, "height": height, "width": width})
            for knee in found:
                content = _annotation(knee, (height, width), landmarks)
                add_annotation({"id": next(ids), "image_id": number, **content})
        file.write('],\n"annotations": [')
        annotations.seek(0)
        file.writelines(annotations)
        file.write("]}\n")


def _annotation(knee: Detection, size: tuple[int, int], landmarks: Sequence[str]) -> dict[str, Any]:
    outline = np.round(knee.corners, DECIMALS) + 0.0  # which makes a negative zero positive
    (x0, y0), (x1, y1) = outline.min(0), outline.max(0)
    x, y = outline.T
    area = abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2  # the shoelace formula
    keypoints = [_keypoint(knee, name, size) for name in landmarks]
    return {
        "category_id": CATEGORY_ID,
        "bbox": [_rounded(value) for value in (x0, y0, x1 - x0, y1 - y0)],
        "area": _rounded(area),
        "segmentation": [outline.flatten().tolist()],
        "iscrowd": 0,
        "keypoints": [value for keypoint in keypoints for value in keypoint],
        "num_keypoints": sum(keypoint[2] > ABSENT for keypoint in keypoints),
        **({"score": round(1 - knee.loss, 6)} if math.isfinite(knee.loss) else {}),
        "attributes": {
            "side": knee.side,
            "laterality": knee.laterality,
            "laterality_source": knee.laterality_source,
            "rotation_deg": round(knee.rotation_deg, 4),
            "review": knee.review,
            "reason": knee.reason,
            "decision": knee.decision,
        },
    }


def _keypoint(knee: Detection, name: str, size: tuple[int, int]) -> tuple[float, float, int]:
    """Return x, y and visibility; COCO wants zeros for a keypoint that is not known."""
    if name not in knee.landmarks:
        return 0, 0, ABSENT
    x, y = knee.landmarks[name]
    inside = 0 <= x <= size[1] and 0 <= y <= size[0]
    return _rounded(x), _rounded(y), VISIBLE if inside else OUTSIDE


def _rounded(value: float) -> float:
    return round(float(value), DECIMALS) + 0.0


def landmark_files(name: str) -> dict[str, str]:
    """Return the names of all files that a film may have, and the side of each."""
    return {f"{name}-{side}{ending}": side for side in SIDES for ending in (MARKUPS, POINTS)}


def write_landmarks(
    films: Iterable[tuple[str, Sequence[Detection]]], folder: Path, kinds: Iterable[str]
) -> None:
    """Write the landmarks of each knee as NAME-SIDE.mrk.json, NAME-SIDE.pts, or both.

    Args:
        films: the name of each film among the run's artifacts, and its knees; files of knees that
            it no longer has are removed.
        folder: for the files; it is made if need be.
        kinds: "markups", "pts" or both.
    """
    make_folder(folder)
    wanted = set(kinds)
    for name, knees in films:
        sides = {knee.side for knee in knees}
        for file, side in landmark_files(name).items():
            if side not in sides:
                (folder / file).unlink(missing_ok=True)
        for knee in knees:
            path = folder / f"{name}-{knee.side}"
            if "markups" in wanted:
                write_markups(f"{path}{MARKUPS}", knee.landmarks, knee.mm_per_px)
            if "pts" in wanted:
                write_points(f"{path}{POINTS}", knee.landmarks)
