"""Compare the detections of two runs on the same films, such as two versions of kneematch.

    python benchmarks/unchanged.py BEFORE AFTER [--labels CSV]

BEFORE and AFTER are folders written by `kneematch detect`. For every knee that both runs found, the
move is the mean distance between the two runs' landmarks at the plateau's margins, in percent
of the plateau's width in BEFORE. The first table has the median and the largest move, the knees
that only one run found, and the knees whose `review` flag differs.

With labels, a second table scores each run: mean IoU of the knee areas, and recall, the share of
knees whose IoU reaches a limit; a missing knee counts as 0. A knee's area is the axis-aligned
square around the midpoint of the margins, 1.5 times as wide as they are apart. Labels are a
labels.csv (id,knee,x1,y1,x2,y2,flag; knee L or R is the half of the picture; flagged knees are left
out) or the truth.csv of `kneematch synth`.

Exits with 1 if the median or the largest move is above its limit, or a knee is missing.
"""

import argparse
import csv
import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from films import area_iou, table

# Landmarks at the margins; those of version 0.1 come second.
LANDMARKS = (("plateau_medial", "plateau_lateral"), ("plateau_left", "plateau_right"))
RECALL_AT = (0.5, 0.75, 0.9)

Knee = tuple[str, str]  # film and side
Margins = tuple[tuple[float, float], tuple[float, float]]  # left and right, film pixels
Row = Mapping[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, help="run folder")
    parser.add_argument("after", type=Path, help="run folder on the same films")
    parser.add_argument("--labels", type=Path, help="labels.csv or truth.csv")
    parser.add_argument("--median", type=float, default=0.1, help="limit of the median move, %%")
    parser.add_argument("--largest", type=float, default=0.5, help="limit of the largest move, %%")
    options = parser.parse_args()
    before, after = (read_run(folder) for folder in (options.before, options.after))
    common = sorted(before.keys() & after.keys())
    if not common:
        raise SystemExit("no knee in both runs; expected runs on films of the same paths")
    moves = {knee: move(margins(before[knee]), margins(after[knee])) for knee in common}
    median, largest = statistics.median(moves.values()), max(moves.values())
    missing = len(before.keys() - after.keys()), len(after.keys() - before.keys())
    flags = sum(before[knee]["review"] != after[knee]["review"] for knee in common)
    columns = ("knees in both", "only before", "only after", "median move, %", "largest, %")
    counts = [str(len(common)), *map(str, missing), f"{median:.4f}", f"{largest:.4f}"]
    table((*columns, "review differs"), [[*counts, str(flags)]])
    for (film, side), moved in sorted(moves.items(), key=lambda item: -item[1]):
        if moved > options.largest:
            print(f"moved by {moved:.2f} %: {film} {side}")
    if options.labels:
        labels = read_labels(options.labels)
        rows = [[name, *score(labels, run)] for name, run in (("before", before), ("after", after))]
        table(("run", "knees", "mean IoU", *(f"recall at {at}" for at in RECALL_AT)), rows)
    return int(median > options.median or largest > options.largest or any(missing))


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_run(folder: Path) -> dict[Knee, dict[str, str]]:
    """Return the rows of the knees that a run found."""
    rows = read_rows(folder / "detections.csv")
    return {(row["film"], row["side"]): row for row in rows if row["x0_px"]}


def read_labels(path: Path) -> dict[Knee, Margins]:
    """Return the true margins by the film's name, without its suffix, and side."""
    rows = read_rows(path)
    if "film" in rows[0]:
        return {(Path(row["film"]).stem, row["side"]): margins(row) for row in rows}
    sides = {"L": "left", "R": "right"}
    return {
        (row["id"], sides[row["knee"]]): pair(
            (float(row[f"x{k}"]), float(row[f"y{k}"])) for k in (1, 2)
        )
        for row in rows
        if row["x1"] and not row["flag"]
    }


def margins(row: Row) -> Margins:
    names = next(names for names in LANDMARKS if f"{names[0]}_x_px" in row)
    return pair((float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])) for name in names)


def pair(points: Iterable[tuple[float, float]]) -> Margins:
    """Return two points, the left one in the picture first."""
    left, right = sorted(points)
    return left, right


def move(before: Margins, after: Margins) -> float:
    """Return the mean distance of the margins in percent of the plateau's width."""
    apart = sum(math.dist(one, other) for one, other in zip(before, after, strict=True)) / 2
    return 100 * apart / math.dist(*before)


def score(labels: Mapping[Knee, Margins], run: Mapping[Knee, Row]) -> list[str]:
    """Return the number of labelled knees, the mean IoU and the recalls of a run."""
    found = {(Path(film).stem, side): margins(row) for (film, side), row in run.items()}
    ious = [
        float(area_iou(torch.tensor(found[knee]), torch.tensor(true))) if knee in found else 0.0
        for knee, true in labels.items()
    ]
    recall = (sum(value >= at for value in ious) / len(ious) for at in RECALL_AT)
    return [str(len(ious)), f"{statistics.mean(ious):.4f}", *(f"{share:.3f}" for share in recall)]


if __name__ == "__main__":
    raise SystemExit(main())
