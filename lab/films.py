"""Films with known knees, and scores of what is found on them, for the benchmarks.

Films are phantoms, or a folder of real films: films/, labels.csv (id,knee,x1,y1,x2,y2,flag: the
outermost points of the tibial plateau, the left one in the picture first; knee L or R is the half
of the picture; flagged knees are not scored), template.json with the two margins as its landmarks,
and kinds/ with films of other kinds and kinds.csv (id, kind, knees, note: the number of frontal
knees, empty where it is unclear; the note names joint replacements), and more/ with more.csv (metal
in a column of its own) and labels.csv; heads/ has films of heads.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, product
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kneematch import Detection, Detector, Radiograph, read
from kneematch.errors import FilmError
from kneematch.evaluation.scores import plateau_iou, require_margins
from kneematch.sampling import resize
from kneephantoms import Phantom, phantom, plan_film, true_knees

KNEE_FRAMINGS = ("bilateral", "single", "full_leg", "offcentre", "lateral")
METAL_SEED = 10_000  # seed of the first film that is drawn for its metal
HEADS = 40  # films of heads that squares are cut out of
SQUARES = 8  # that are cut out of each film
EMPTY = 0.02  # standard deviation of a square that shows nothing
Points = NDArray[np.float64]  # (K, 2, 2): ends of K plateaus, (x, y) in film pixels


@dataclass(frozen=True, eq=False)
class Case:
    """A film and its true knees."""

    group: str
    film: Radiograph
    knees: int | None  # how many frontal knees it shows, if that is clear
    margins: Points | None = None
    scored: tuple[bool, ...] = ()  # by knee: its margins are certain enough to be scored
    metal: tuple[bool, ...] | None = None  # by knee, from the left to the right
    path: Path | None = None  # the film's file, if it is not altered


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table whose first column is text and whose others are numbers."""
    print(f"| {' | '.join(columns)} |")
    print(f"|---|{'---:|' * (len(columns) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    print(flush=True)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def radiograph(made: Phantom) -> Radiograph:
    """Return the film of a phantom as if it had been read from a DICOM file."""
    return Radiograph(
        made.pixels, made.mm_per_px, laterality=made.laterality, polarity_tag="MONOCHROME2"
    )


def kind_cases(folder: Path) -> Iterator[Case]:
    """Yield films of other kinds; replacements are named by the half of the picture."""
    for row in read_rows(folder / "kinds.csv"):
        film = read(folder / f"{row['id']}.jpg")
        count = int(row["knees"]) if row["knees"] else None
        metal = tuple(side in row["note"] for side in ("left", "right")) if count == 2 else None
        if count == 1:
            metal = (False,)
        yield Case(row["kind"], film, count, metal=metal)


def labelled_cases(folder: Path, films: str = "films") -> Iterator[Case]:
    """Yield the labelled films; doubtful knees count, but are not scored."""
    labels: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in sorted(read_rows(folder / "labels.csv"), key=itemgetter("id", "knee")):
        labels[row["id"]].append(row)
    for name, rows in labels.items():
        path = folder / films / f"{name}.jpg"
        ends = [[[float(row[f"{axis}{k}"]) for axis in "xy"] for k in (1, 2)] for row in rows]
        scored = tuple(not row["flag"] for row in rows)
        yield Case("as they are", read(path), len(rows), np.array(ends), scored, path=path)


def more_cases(folder: Path) -> Iterator[Case]:
    """Yield films of more kinds; where a film has no frontal knee, every area is wrong.

    The first rows are those of all films with and without frontal knees.
    """
    margins = {case.path.stem: case for case in labelled_cases(folder, "") if case.path}
    for row in read_rows(folder / "more.csv"):
        film, count = read(folder / f"{row['id']}.jpg"), int(row["knees"] or -1)
        metal = (row["metal"] == "1",) * count if count > 0 else None
        known = margins.get(row["id"])
        ends = np.zeros((0, 2, 2)) if count == 0 else None if known is None else known.margins
        scored = () if known is None else known.scored
        case = Case(row["kind"], film, count if count >= 0 else None, ends, scored, metal)
        total = (
            "any frontal knee" if count > 0 else "no frontal knee" if count == 0 else "not clear"
        )
        yield replace(case, group=total)
        yield case


def square_cases(folder: Path) -> Iterator[Case]:
    """Yield squares of 224 x 224 pixels cut out of films without a frontal knee, and turned."""
    random = np.random.default_rng(0)
    films = [
        case.film
        for cases in (kind_cases(folder / "kinds"), more_cases(folder / "more"))
        for case in cases
        if case.knees == 0 and case.group != "no frontal knee"
    ]
    films += [read(path) for path in sorted((folder / "heads").glob("*.jpg"))[:HEADS]]
    for film, k in product(films, range(SQUARES)):
        side = round(min(film.size) * random.uniform(0.35, 1.0))
        top, left = (int(random.integers(0, length - side + 1)) for length in film.size)
        square = torch.from_numpy(film.pixels[top : top + side, left : left + side].copy())
        pixels = np.rot90(resize(square, (224, 224)).numpy(), k % 4).copy()
        if pixels.std() > EMPTY:
            group = f"squares, turned by {90 * (k % 4)} degrees"
            yield Case(group, replace(film, pixels=pixels), 0, np.zeros((0, 2, 2)))


def phantom_case(framing: str, seed: int) -> Case:
    """Return a phantom in a framing."""
    made = phantom(seed, framing=framing)
    knees = sorted(made.knees, key=lambda knee: knee.centre)
    margins = np.array(
        [sorted((knee.plateau_medial, knee.plateau_lateral)) for knee in knees]
    ).reshape(-1, 2, 2)
    metal = tuple(bool(knee.implant) for knee in knees)
    return Case(framing, radiograph(made), len(knees), margins, (True,) * len(knees), metal)


def metal_cases(films: int, seed: int) -> Iterator[Case]:
    """Yield phantoms with metal in a knee, this many of every framing."""
    for framing in KNEE_FRAMINGS:
        with_metal = (
            k
            for k in count(METAL_SEED + seed)
            if any(knee.implant for knee in true_knees(plan_film(k, framing)))
        )
        yield from (phantom_case(framing, k) for k in islice(with_metal, films))


def find_knees(detector: Detector, film: Radiograph) -> tuple[Detection, ...]:
    """Return the knees that are found on a film, none where it cannot be used."""
    (found,) = detector.detect_each([film])
    return () if isinstance(found, FilmError) else found


def iou(knee: Detection, ends: Points) -> float:
    """Return the overlap of the squares around found and true margins (2, 2)."""
    (left, right), (true_left, true_right) = require_margins(knee.landmarks), ends.tolist()
    return plateau_iou((left, right), (tuple(true_left), tuple(true_right)))


def margin_error(knee: Detection, ends: Points) -> float:
    """Return the mean distance of found and true margins, in film pixels."""
    points = np.array(list(knee.landmarks.values()))
    return float(
        min(np.linalg.norm(order - ends, axis=-1).mean() for order in (points, points[::-1]))
    )
