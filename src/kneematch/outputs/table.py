"""detections.csv, a row a knee, and failures.csv, a row a film that has none."""

import csv
import os
from collections.abc import Iterable, Sequence
from typing import Final

from kneematch.detection.detection import Detection
from kneematch.files import write_aside

COLUMNS: Final = (
    "film",
    "side",
    "laterality",
    "status",
    "energy",
    "loss",
    "polarity",
    "method",
    "centre_x_px",
    "centre_y_px",
    "width_px",
    "height_px",
    "rotation_deg",
    "x0_px",
    "y0_px",
    "x1_px",
    "y1_px",
    "x2_px",
    "y2_px",
    "x3_px",
    "y3_px",
    "mm_per_px",
    "review",
    "reason",
)
FAILURE_COLUMNS: Final = ("film", "reason")
# Decimals: of a pixel, of an angle, of an energy, of a spacing.
PIXEL, DEGREE, ENERGY, SPACING = 3, 4, 6, 6


def write_detections(rows: Sequence[tuple[str, Detection]], path: str | os.PathLike[str]) -> None:
    """Write detections, each with the name of its film; landmarks follow the fixed columns."""
    landmarks = list(dict.fromkeys(name for _, found in rows for name in found.landmarks))
    extra = [f"{name}_{axis}_px" for name in landmarks for axis in "xy"]
    lines = ([*_fixed(film, found), *_points(found, landmarks)] for film, found in rows)
    _write(path, [*COLUMNS, *extra], lines)


def write_failures(rows: Sequence[tuple[str, str]], path: str | os.PathLike[str]) -> None:
    """Write films without detections, and why."""
    _write(path, FAILURE_COLUMNS, rows)


def _fixed(film: str, found: Detection) -> list[str]:
    return [
        film,
        found.side,
        found.laterality,
        found.status,
        _number(found.energy, ENERGY),
        _number(found.loss, ENERGY),
        found.polarity,
        found.method,
        *(_number(value, PIXEL) for value in (*found.centre, found.width_px, found.height_px)),
        _number(found.rotation_deg, DEGREE),
        *(_number(value, PIXEL) for value in found.corners.flatten().tolist()),
        "" if found.mm_per_px is None else _number(found.mm_per_px, SPACING),
        found.review,
        found.reason,
    ]


def _points(found: Detection, landmarks: Iterable[str]) -> list[str]:
    places = (found.landmarks.get(name) for name in landmarks)
    return [
        "" if place is None else _number(place[axis], PIXEL) for place in places for axis in (0, 1)
    ]


def _number(value: float, decimals: int) -> str:
    # Adding 0 turns a negative zero, which rounding leaves, into plain zero.
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def _write(
    path: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    # surrogateescape writes names that are not UTF-8 as the bytes they are.
    with (
        write_aside(path) as aside,
        aside.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(rows)
