"""python run_onnx.py FILM ... prints the knees of films, found with the ONNX files beside it.

It finds the areas and landmarks that `kneematch detect` finds, in float32, and the borders of bones
as the outline network sees them. It leaves out reasons for review, the patient's sides, measures,
odd DICOM files and limits for hostile ones. Without a visible fibula, a side may be wrong.
"""

import json
import math
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pydicom
from PIL import Image, ImageOps

# Quarter turns, pixels of the longer side, and how far the edges of a crop are continued.
LOOKS: list[Any] = [(turns, side, (0, 0)) for turns in range(4) for side in (256, 896)]
LOOKS[2:2] = [(0, 256, edges) for edges in ((0.5, 1.0), (0.35, 0.85), (0.0, 0.65))]
HERE, NETWORKS = Path(__file__).parent, ("locator", "pose", "outlines")
LOCATOR, POSE, OUTLINES = (onnxruntime.InferenceSession(HERE / f"{k}.onnx") for k in NETWORKS)
LANDMARKS = json.loads(POSE.get_modelmeta().custom_metadata_map["landmarks"])


def read(path: str) -> tuple[Any, int]:
    """Return a film (H, W) in [0, 1], bones bright, and how many times smaller it is searched."""
    if Path(path).read_bytes()[128:132] == b"DICM":
        film = pydicom.dcmread(path)
        is_dark = film.PhotometricInterpretation == "MONOCHROME1", film.get("RescaleSlope", 1) < 0
        pixels = film.pixel_array.astype(np.float32) * (-1 if sum(is_dark) == 1 else 1)
    else:
        pixels = np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("F"))
    times = 1 << int(math.log2(max(min(pixels.shape) / 480, 1)))
    return (pixels - pixels.min()) / (pixels.max() - pixels.min()), times


def resize(film: Any, rows: Any, columns: Any, size: tuple[int, int]) -> Any:
    """Resize a rectangle, given by its first and last lines, with a triangle filter."""
    filters, lines = [], []
    for (start, stop), count, length in zip((rows, columns), size, film.shape, strict=True):
        scale = (stop - start) / count
        apart = np.abs(np.arange(stop - start) + 0.5 - scale * (np.arange(count)[:, None] + 0.5))
        weights = np.maximum(1 - apart / max(scale, 1.0), 0)
        filters.append((weights / weights.sum(1, keepdims=True)).astype(np.float32))
        lines.append(np.arange(start, stop).clip(0, length - 1))  # edges are continued
    return filters[0] @ film[np.ix_(*lines)] @ filters[1].T


def look(film: Any, long_side: int, edges: tuple[float, float]) -> list[Any]:
    """Return the knee or pair seen: x, y, plateau's width, rotation, lateral_left, score each."""
    height, width = film.shape
    left, top = edges[0] * width, max(edges[1] * width - height / 2, 0.0)
    factor = long_side / max(height + 2 * top, width + 2 * left)
    size = max(round(height * factor), 1), max(round(width * factor), 1)
    thin = film[:: max(1, math.floor(0.5 / factor))]
    copy = resize(thin, (0, len(thin)), (0, width), size)
    left, top = round(left * factor), round(top * factor)
    (cells,) = LOCATOR.run(None, {"image": np.pad(copy, ((top, top), (left, left)), "edge")})
    seen: list[Any] = []
    for knee in (cells - [left, top, 0, 0, 0, 0]).tolist():
        if all(math.dist(knee[:2], k[:2]) >= 0.6 * max(knee[2], k[2]) for k in seen):
            seen.append(knee)
    wide = [k for k in seen[:8] if 0 <= k[1] <= size[0] and k[2] >= 0.03 * size[1]]
    seen = [k for k in wide if min(k[0], size[1] - k[0]) >= 0.35 * k[2]]  # mostly on the film
    pairs = [sorted(pair) for pair in combinations(seen, 2) if is_pair(*pair)]
    alone = [k for k in seen[:1] if k[5] >= 0.3]
    chosen = max(pairs, key=lambda pair: pair[0][5] + pair[1][5], default=alone)
    scale = [width / size[1], height / size[0], max(height, width) / max(size), 1, 1, 1]
    return [np.multiply(knee, scale) for knee in chosen]


def is_pair(better: Any, other: Any) -> bool:
    """Return whether two knees can be those of one person."""
    left, right = np.array(sorted((better, other)))
    (x, y), (_, _, width, angle, *_) = right[:2] - left[:2], (left + right) / 2
    cos, sin = math.cos(angle), math.sin(angle)
    side_by_side = cos * x + sin * y > 0.9 * width and abs(cos * y - sin * x) < 2.5 * width
    alike = max(left[2], right[2]) < 1.5 * min(left[2], right[2]) and left[4] - right[4] > -0.3
    return bool(better[5] >= 0.3 and other[5] >= 0.2 and side_by_side and alike)


def see(network: Any, film: Any, knee: Any, reach: Any, size: Any, mirrored: bool = False) -> Any:
    """Return what a network sees within reach of a knee, and the view's map (3, 3) to the film."""
    (x, y, wide, rotation, *_), (across, down) = knee, (each * knee[2] for each in reach)
    cos, sin = math.cos(rotation), math.sin(rotation)
    wide, high = across * cos + down * abs(sin), across * abs(sin) + down * cos
    x0, x1, y0, y1 = (round(v) for v in (x - wide, x + wide, y - high, y + high))
    shape = round(size[0] * high / down), round(size[1] * wide / across)
    frame = np.array([[x1 - x0, 0, x0 + x1], [0, y1 - y0, y0 + y1], [0, 0, 2]]) / 2
    axes = [[across * cos, -down * sin, x], [across * sin, down * cos, y], [0, 0, 1]]
    view = (axes if rotation else frame) @ np.diag([-1.0 if mirrored else 1.0, 1, 1])
    matrix = (np.linalg.inv(frame) @ view)[:2].astype(np.float32)
    part = resize(film, (y0, y1), (x0, x1), shape)
    return network.run(None, {"part": part, "matrix": matrix}), view


def place(to_film: Any, points: Any) -> Any:
    """Return points (K, 2) where a map (3, 3) sends them."""
    return (np.asarray(points) @ to_film[:2, :2].T + to_film[:2, 2]).tolist()


def borders(film: Any, margins: Any, back: Any) -> dict[str, Any]:
    """Return the borders of femur and tibia between the margins of the plateau."""
    (x0, y0), (x1, y1) = sorted(margins)
    knee = (x0 + x1) / 2, (y0 + y1) / 2, math.hypot(x1 - x0, y1 - y0), math.atan2(y1 - y0, x1 - x0)
    seen, view = see(OUTLINES, film, knee, (0.625, 0.625), (256, 256))
    columns, ends = np.arange(256) + 0.5, seen[4][0, :, 0]
    shown = (columns >= ends.min()) & (columns <= ends.max())
    lines = (np.stack([columns, y], 1)[shown] / 128 - 1 for y in seen[0][0])
    return {k: place(back @ view, y) for k, y in zip(("femur", "tibia"), lines, strict=True)}


def detect(film: Any, times: int) -> list[dict[str, Any]]:
    """Return the knees of a film (H, W), left to right, seen in a copy that is `times` smaller."""
    whole = film[: len(film) // times * times, : film.shape[1] // times * times]
    copy = sum(whole[k // times :: times, k % times :: times] for k in range(times**2)) / times**2
    knees, answer, best, turns, back = list[Any](), list[dict[str, Any]](), 0.0, 0, np.eye(3)
    for turn, side, edges in LOOKS:
        if best < 0.5 and (side == 256 or max(copy.shape) > 307):
            seen = look(np.rot90(copy, -turn), side, edges)
            score = max((knee[5] for knee in seen), default=0.0)
            knees, best, turns = (seen, score, turn) if score > best else (knees, best, turns)
    for _ in range(turns):
        back = back @ [[0, 1, 0], [-1, 0, len(whole)], [0, 0, 1]]
        whole, copy = np.rot90(whole, -1), np.rot90(copy, -1)
    for number, knee in enumerate(knees):
        knee[3] *= abs(knee[3]) > 0.05  # the network follows small rotations by itself
        left = number == 0 if len(knees) == 2 else knee[4] > 0.5
        (area, misfit, far, negative), view = see(POSE, copy, knee, (1.25, 2.0), (400, 250), left)
        area = np.diag([times, times, 1]) @ view @ [*area, [0, 0, 1]]
        if misfit > 0.95 or (knee[5] < 0.5 and (misfit > 0.7 or far > 0.05)):
            continue  # not a frontal knee
        points = {name: place(area, point) for name, point in LANDMARKS.items()}
        ends = [point for name, point in points.items() if name.startswith("plateau_")]
        lines = borders(1 - whole if negative else whole, ends, back) if len(ends) == 2 else {}
        answer.append({"image_side": "left" if left else "right", "score": knee[5], **lines})
        answer[-1]["corners"] = place(back @ area, [(-1, -1), (1, -1), (1, 1), (-1, 1)])
        answer[-1]["landmarks"] = {name: place(back, point) for name, point in points.items()}
    least = min((math.dist(*knee["corners"][:2]) for knee in answer), default=0)
    return answer if times == 1 or least > 120 * times else detect(film, 1)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(json.dumps({"film": name, "knees": detect(*read(name))}) + "\n")
