"""Compare the rows of two runs of `kneematch detect` on the same films.

    python lab/rows.py BEFORE AFTER [--limit PX]

BEFORE and AFTER are folders that `kneematch detect` wrote.

Prints the knees that both runs found and those that only one of them found, how far the margins of
the tibial plateau moved in film pixels (median and largest), how many knees have another `review`
or `reason`, and how many films without a result (failures.csv) differ, then every difference. Exits
with 1 if any margin moved by more than the limit or anything else differs.
"""

import argparse
import csv
import math
import statistics
from pathlib import Path

POINTS = ("plateau_medial", "plateau_lateral")
JUDGED = ("review", "reason")
MOST_SHOWN = 30

Knee = tuple[str, str]  # film and side
Row = dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, help="folder of a run")
    parser.add_argument("after", type=Path, help="folder of another run")
    parser.add_argument(
        "--limit", type=float, default=0.05, help="largest move of a margin that is accepted, in px"
    )
    args = parser.parse_args()
    return compare(args.before, args.after, args.limit)


def compare(before: Path, after: Path, limit: float) -> int:
    """Print how two runs differ; return 1 if they do."""
    (knees, failures), (other_knees, other_failures) = read_run(before), read_run(after)
    common = sorted(knees.keys() & other_knees.keys())
    moves = {knee: move(knees[knee], other_knees[knee]) for knee in common}
    judged = [
        knee for knee in common if any(knees[knee][k] != other_knees[knee][k] for k in JUDGED)
    ]
    found = list(moves.values()) or [math.nan]
    print(
        f"{len(common)} knees in both runs; margins moved by {statistics.median(found):.4f} px "
        f"(median), {max(found):.4f} px (largest); {len(judged)} with another review or reason; "
        f"{len(failures)} and {len(other_failures)} films without a result."
    )
    lines = [f"only before: {' '.join(knee)}" for knee in sorted(knees.keys() - other_knees.keys())]
    lines += [f"only after: {' '.join(knee)}" for knee in sorted(other_knees.keys() - knees.keys())]
    lines += [
        f"moved by {px:.3f} px: {' '.join(knee)}" for knee, px in moves.items() if not px <= limit
    ]
    for knee in judged:
        texts = (" / ".join(run[knee][k] for k in JUDGED) for run in (knees, other_knees))
        lines.append(f"judged otherwise: {' '.join(knee)}: {' -> '.join(texts)}")
    for film in sorted(failures ^ other_failures):
        lines.append(f"without a result only {'before' if film in failures else 'after'}: {film}")
    for line in lines[:MOST_SHOWN]:
        print(line)
    if len(lines) > MOST_SHOWN:
        print(f"... and {len(lines) - MOST_SHOWN} more differences.")
    return 1 if lines else 0


def read_run(folder: Path) -> tuple[dict[Knee, Row], set[str]]:
    """Return the rows of the knees of a run, and the films without a result."""
    rows, failed = read_rows(folder / "detections.csv"), folder / "failures.csv"
    knees = {(row["film"], row["image_side"]): row for row in rows}
    return knees, {row["film"] for row in read_rows(failed)} if failed.exists() else set()


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def move(before: Row, after: Row) -> float:
    """Return how far the margin that moved farther is away, in px; NaN counts as a mismatch."""
    names = [point for point in POINTS if f"{point}_x_px" in before]
    names = names or [name.removesuffix("_x_px") for name in before if name.endswith("_x_px")]
    return max(math.dist(at(before, name), at(after, name)) for name in names)


def at(row: Row, name: str) -> tuple[float, float]:
    return float(row[f"{name}_x_px"] or "nan"), float(row[f"{name}_y_px"] or "nan")


if __name__ == "__main__":
    raise SystemExit(main())
