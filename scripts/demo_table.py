"""Print how well the runs of `make demo` found the knees of phantoms.

    python scripts/demo_table.py FILMS RUN...

FILMS is a folder with the films and truth.csv of `kneematch synth`, at any depth; each RUN is a
folder written by `kneematch detect`. Columns: knees found, films that failed, knees flagged for
review, the median margin error in percent of the plateau's width, and seconds per film.
"""

import argparse
import csv
import json
import math
import statistics
from pathlib import Path

LANDMARKS = ("plateau_medial", "plateau_lateral")
Margins = list[tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("films", type=Path, help="folder of films and truth.csv")
    parser.add_argument("runs", type=Path, nargs="+", metavar="run", help="output of detect")
    args = parser.parse_args()
    truth = {
        (str(table.parent / row["film"]), row["side"]): margins(row)
        for table in sorted(args.films.rglob("truth.csv"))
        for row in read_rows(table)
    }
    print(f"{'method':16}{'knees':>6}{'failed':>8}{'review':>8}{'median error':>14}{'s/film':>8}")
    for run in args.runs:
        rows = read_rows(run / "detections.csv")
        errors = [100 * margin_error(margins(row), truth[row["film"], row["side"]]) for row in rows]
        timings = json.loads((run / "run.json").read_text(encoding="utf-8"))["timings_s"]
        failed = len(read_rows(run / "failures.csv"))
        flagged = sum(bool(row["review"]) for row in rows)
        print(
            f"{rows[0]['method']:16}{len(rows):6}{failed:8}{flagged:8}"
            f"{statistics.median(errors):12.1f} %{timings['search'] / (len(rows) / 2):8.2f}"
        )


def read_rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def margins(row: dict[str, str]) -> Margins:
    """Return the plateau's margins (x, y), the left one in the picture first."""
    return sorted((float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])) for name in LANDMARKS)


def margin_error(found: Margins, true: Margins) -> float:
    """Return the mean distance of the margins, over the plateau's width."""
    apart = sum(math.dist(one, other) for one, other in zip(found, true, strict=True)) / 2
    return apart / math.dist(*true)


if __name__ == "__main__":
    main()
