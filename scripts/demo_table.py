"""How well the runs of `make demo` found the knees of phantoms, whose truth is known.

python scripts/demo_table.py FILMS RUN...
"""

import csv
import json
import math
import statistics
import sys
from pathlib import Path

LANDMARKS = ("plateau_left", "plateau_right")
Knee = tuple[str, str]  # film and side
Margins = list[tuple[float, float]]


def main() -> None:
    folder, *runs = (Path(name) for name in sys.argv[1:])
    truth = {
        (str(table.parent / row["film"]), row["side"]): margins(row)
        for table in sorted(folder.rglob("truth.csv"))
        for row in rows_of(table)
    }
    print(f"{'':16}{'knees':>6}{'failed':>8}{'review':>8}{'off by, median':>16}{'s a film':>10}")
    for run in runs:
        rows = rows_of(run / "detections.csv")
        off = [100 * error(margins(row), truth[row["film"], row["side"]]) for row in rows]
        told = json.loads((run / "run.json").read_text(encoding="utf-8"))
        failed = len(rows_of(run / "failures.csv"))
        review = sum(bool(row["review"]) for row in rows)
        seconds = told["timings_s"]["search"] / (len(rows) / 2)
        print(
            f"{rows[0]['method']:16}{len(rows):6}{failed:8}{review:8}"
            f"{statistics.median(off):14.1f} %{seconds:10.2f}"
        )


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def margins(row: dict[str, str]) -> Margins:
    """The plateau's margins, the picture's left one first."""
    return sorted((float(row[f"{name}_x_px"]), float(row[f"{name}_y_px"])) for name in LANDMARKS)


def error(found: Margins, true: Margins) -> float:
    """Mean distance of the margins, over the plateau's width."""
    apart = sum(math.dist(one, other) for one, other in zip(found, true, strict=True)) / 2
    return apart / math.dist(*true)


if __name__ == "__main__":
    main()
