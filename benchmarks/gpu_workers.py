"""Compare the rows of runs with many processes on a GPU with the rows of one process.

    python benchmarks/gpu_workers.py [--films N] [--distinct N] [--workers N] [--ray]

The films of a run are links to phantoms of 2048 x 2494 pixels, so that each phantom is found many
times, in other batches and by other processes. Columns: films, rows of detections.csv, the largest
distance of a row's points from those of the same phantom in a run of one process, in film pixels,
and how many values of `review`, `laterality` and other columns of text differ. Exits with 1 if a
row is missing, a text differs or a distance exceeds 0.05 px.
"""

import argparse
import csv
import shutil
import sys
from pathlib import Path

from films import table
from kneematch.run.config import DetectConfig
from kneematch.run.pipeline import detect_folder
from scaling import links, phantom_folder

SIZE = "2048x2494"
LARGEST_PX = 0.05
CORNERS = tuple(f"{axis}{k}_px" for k in range(4) for axis in "xy")
TEXTS = ("laterality", "laterality_source", "status", "polarity", "method", "review", "reason")

Row = dict[str, str]


def run(films: Path, out: Path, config: DetectConfig) -> dict[tuple[str, str], Row]:
    """Return the rows of a new run, by film and side."""
    shutil.rmtree(out, ignore_errors=True)
    detect_folder(films, out, config)
    with (out / "detections.csv").open(newline="") as file:
        return {(row["film"], row["side"]): row for row in csv.DictReader(file)}


def compare(row: Row, expected: Row) -> tuple[float, int]:
    """Return the largest distance of the points of two rows, and how many texts differ."""
    points = [name for name in row if name.endswith(("_x_px", "_y_px")) or name in CORNERS]
    far = max(abs(float(row[name]) - float(expected[name])) for name in points)
    return far, sum(row[name] != expected[name] for name in TEXTS)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=1024)
    parser.add_argument("--distinct", type=int, default=64)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ray", action="store_true", help="also on a Ray cluster of this machine")
    parser.add_argument("--work", type=Path, default=Path("scaling-films"))
    args = parser.parse_args()
    folder = phantom_folder(args.work, SIZE, args.distinct)
    alone = DetectConfig(device=args.device, workers=0)
    expected = run(links(folder, args.distinct), args.work / "out", alone)
    configs = {
        f"{args.workers} workers": DetectConfig(device=args.device, workers=args.workers),
        f"{args.workers} workers, batches of 5": DetectConfig(
            device=args.device, workers=args.workers, batch_size=5
        ),
    }
    if args.ray:
        configs["Ray"] = DetectConfig(device=args.device, engine="ray")
    cells, wrong = [], False
    for name, config in configs.items():
        rows = run(links(folder, args.films), args.work / "out", config)
        far, texts, missing = 0.0, 0, 0
        for k in range(args.films):
            for side in ("left", "right"):
                first = expected.get((_film(folder, args.distinct, k % args.distinct), side))
                row = rows.get((_film(folder, args.films, k), side))
                missing += (first is None) != (row is None)
                if first is not None and row is not None:
                    distance, differing = compare(row, first)
                    far, texts = max(far, distance), texts + differing
        wrong |= bool(missing or texts) or far > LARGEST_PX or not rows
        cells.append([name, str(args.films), str(len(rows)), f"{far:.4f}", str(texts)])
        print(*cells[-1], sep=" | ", file=sys.stderr, flush=True)
    table(["run", "films", "rows", "largest distance, px", "texts that differ"], cells)
    return 1 if wrong else 0


def _film(folder: Path, count: int, k: int) -> str:
    """Return the path of a film as detections.csv has it."""
    return str(folder.with_name(f"{folder.name}-links-{count}") / f"{k:06d}.dcm")


if __name__ == "__main__":
    sys.exit(main())
