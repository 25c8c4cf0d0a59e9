"""coco.json: detections in the format of COCO, which annotation programs read."""

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import numpy as np

from kneematch.knee.detection import Detection
from kneematch.run.film_record import FilmRecord
from kneematch.run.outputs.tables import json_list, open_json, review_text

KNEE: Final = "knee_joint"  # category of knees; that of another part is the template's name
DECIMALS: Final = 3
ABSENT, OUTSIDE, VISIBLE = 0, 1, 2  # COCO's visibility of a keypoint


@contextmanager
def open_coco(
    path: str | os.PathLike[str], landmarks: Mapping[str, Sequence[str]]
) -> Iterator[Callable[[FilmRecord], None]]:
    """Yield a function that adds a film to coco.json, without holding films in memory.

    Films that failed are left out. `landmarks` are the names of the keypoints of each category, by
    template, "" for knees.
    """
    categories = [
        {
            "id": number,
            "name": template or KNEE,
            "supercategory": "joint",
            "keypoints": list(names),
            "skeleton": [],
        }
        for number, (template, names) in enumerate(landmarks.items(), start=1)
    ]
    category_ids = {template: number for number, template in enumerate(landmarks, start=1)}
    with (
        open_json(path) as file,
        # The annotations follow all images in the JSON, so they are kept on disk meanwhile.
        tempfile.TemporaryFile("w+", encoding="ascii", newline="\n") as annotations,
    ):
        about = "areas" if any(landmarks) else "knee joint areas"
        file.write(f'{{"info": {{"description": "kneematch: {about}"}},\n"licenses": [],\n')
        file.write(f'"categories": {json.dumps(categories)},\n"images": [')
        add_image, add_annotation = json_list(file), json_list(annotations)
        numbers, ids = count(1), count(1)

        def add(film: FilmRecord) -> None:
            if film.size is None or film.has_failed:
                return
            number, (height, width) = next(numbers), film.size
            add_image({"id": number, "file_name": film.path, "height": height, "width": width})
            for knee in film.kept:
                content = _annotation(knee, film.size, landmarks[knee.template])
                kind = {"image_id": number, "category_id": category_ids[knee.template]}
                add_annotation({"id": next(ids), **kind, **content})

        yield add
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
        "bbox": [_rounded(value) for value in (x0, y0, x1 - x0, y1 - y0)],
        "area": _rounded(area),
        "segmentation": [outline.flatten().tolist()],
        "iscrowd": 0,
        "keypoints": [value for keypoint in keypoints for value in keypoint],
        "num_keypoints": sum(keypoint[2] > ABSENT for keypoint in keypoints),
        **({"score": round(1 - knee.loss, 6)} if math.isfinite(knee.loss) else {}),
        "attributes": {
            "image_side": knee.side,
            "laterality": knee.laterality,
            "laterality_source": knee.laterality_source,
            "rotation_deg": round(knee.rotation_deg, 4),
            "review": review_text(knee),
            "reason": "; ".join(knee.reasons),
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
