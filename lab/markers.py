"""How reliably the letters R and L on films are read.

    python lab/markers.py [--films 200] [--labels REAL/markers.csv]

Letters: of those read, the share that is right (precision), and of those on the films, the share
that is read (recall). Films: how many films of two knees have their sides told by markers, and how
many of them wrongly. Phantoms are of all framings; their letters are known. With --labels also real
films: a CSV with the columns film (path, relative to the CSV), letters ("R", "RL" or empty) and
knees. Times are of one CPU core.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from films import table
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee.preparation import resolve_laterality
from kneematch.models.markers import Marker, read_markers
from kneephantoms import render
from kneephantoms.film_plan import plan_film

FIRST_SEED = 60_000_000  # disjoint from those of the training

Case = tuple[Radiograph, str, int]  # film, letters on it, number of frontal knees


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=200, help="number of phantoms")
    parser.add_argument("--labels", type=Path, help="letters of real films")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [score("phantoms", phantoms(args.films))] if args.films else []
    if args.labels is not None:
        rows.append(score("real films", labelled(args.labels)))
    columns = "letters", "read", "wrong", "precision", "recall", "two knees", "told", "told wrongly"
    table(("films", "number", *columns, "ms, median"), rows)


def phantoms(count: int) -> Iterator[Case]:
    """Yield phantoms that are not mirrored, so that R lies at the picture's left."""
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        plan = plan_film(seed, "any")
        letters = "".join(label.text for label in plan.overlays.markers if not label.mirrored)
        yield Radiograph(render(plan).numpy()), letters, len(plan.framing.places)


def labelled(path: Path) -> Iterator[Case]:
    """Yield real films, all of which are hung in the usual way."""
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield read(path.parent / row["film"]), row["letters"], int(row["knees"] or 0)


def score(name: str, cases: Iterable[Case]) -> list[str]:
    films = total = seen = right = two = told = wrong = 0
    seconds = []
    for film, letters, knees in cases:
        started = time.process_time()
        (markers,) = read_markers([torch.from_numpy(film.pixels)])
        seconds.append(time.process_time() - started)
        films, total, seen = films + 1, total + len(letters), seen + len(markers)
        right += sum(min(letters.count(side), _count(markers, side)) for side in "RL")
        if knees == 2:
            first, _ = resolve_laterality(film, (True, False), markers=markers)
            two, told, wrong = two + 1, told + bool(first.side), wrong + (first.side == "L")
    counts = [films, total, seen, seen - right]
    shares = [f"{right / max(seen, 1):.3f}", f"{right / max(total, 1):.3f}"]
    milliseconds = f"{1000 * statistics.median(seconds):.1f}"
    return [name, *map(str, counts), *shares, *map(str, (two, told, wrong)), milliseconds]


def _count(markers: Iterable[Marker], side: str) -> int:
    return sum(marker.letter == side for marker in markers)


if __name__ == "__main__":
    main()
