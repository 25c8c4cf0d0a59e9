"""Films of every kind, out of the box: number of knees, recall, metal, flags and expected errors.

    python benchmarks/kinds.py --real FOLDER [--films 200]

The folder holds labelled bilateral films as `films.py` describes them and, in kinds/, other films
with kinds.csv (id, kind, knees, note: the number of frontal knees, empty where it is unclear; the
note names joint replacements). Labelled films are also altered: turned, rotated, halved, laid into
a screenshot, and shrunk. Phantoms are drawn in every framing, and once more with metal in a knee,
which few of them have.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from kneephantoms.phantom import exposed_legs, phantom
from numpy.typing import NDArray
from PIL import ExifTags, Image
from scipy import ndimage

from films import SQUARE_WIDTHS, benchmark_parser, table
from kneematch import Detection, Detector
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee.quality import METAL
from kneephantoms.film_plan import plan_film

KNEE_FRAMINGS = ("bilateral", "single", "full_leg", "offcentre", "lateral")
FRAMINGS = (*KNEE_FRAMINGS, "other")
METAL_SEED = 10_000  # of the first film that is drawn for its metal
Points = NDArray[np.float64]  # (K, 2, 2): ends of K plateaus, (x, y) in film pixels
Altered = tuple[NDArray[np.float32], Points]


@dataclass(frozen=True, eq=False)
class Case:
    """A film and its true knees."""

    group: str
    film: Radiograph
    knees: int | None  # how many frontal knees it shows, if that is clear
    margins: Points | None = None
    scored: tuple[bool, ...] = ()  # by knee: its margins are certain enough to be scored
    metal: tuple[bool, ...] | None = None  # by knee, from the left to the right
    path: Path | None = None  # of the film's file, if it is not altered


def main() -> None:
    parser = benchmark_parser(__doc__ or "", films=200)
    parser.add_argument("--model", help="model file; the built-in one if left out")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    detector = Detector.load(args.model, device=args.device)
    for title, cases in sets(args.real, args.films, args.seed):
        print(f"### {title}\n")
        report(detector, cases)


def sets(real: Path | None, films: int, seed: int) -> Iterator[tuple[str, Iterable[Case]]]:
    """Yield titles and films."""
    if real is not None:
        yield "Other kinds of real films", kind_cases(real / "kinds")
        yield "Labelled real films, as they are and altered", altered_cases(real)
    if films:
        seeds = range(seed, seed + films)
        yield "Phantoms", (phantom_case(framing, k) for framing in FRAMINGS for k in seeds)
        yield "Phantoms with metal", metal_cases(films // 2, seed)


def kind_cases(folder: Path) -> Iterator[Case]:
    """Yield films of other kinds; replacements are named by the half of the picture."""
    with (folder / "kinds.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            film = read(folder / f"{row['id']}.jpg")
            count = int(row["knees"]) if row["knees"] else None
            metal = tuple(side in row["note"] for side in ("left", "right")) if count == 2 else None
            if count == 1:
                metal = (False,)
            yield Case(row["kind"], film, count, metal=metal)


def labelled_cases(folder: Path) -> Iterator[Case]:
    """Yield the labelled films; doubtful knees count, but are not scored."""
    labels: dict[str, list[dict[str, str]]] = defaultdict(list)
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        for row in sorted(csv.DictReader(file), key=lambda row: (row["id"], row["knee"])):
            labels[row["id"]].append(row)
    for name, rows in labels.items():
        path = folder / "films" / f"{name}.jpg"
        ends = [[[float(row[f"{axis}{k}"]) for axis in "xy"] for k in (1, 2)] for row in rows]
        scored = tuple(not row["flag"] for row in rows)
        yield Case("as they are", read(path), len(rows), np.array(ends), scored, path=path)


def altered_cases(folder: Path) -> Iterator[Case]:
    """Yield the labelled films, as they are and altered."""
    both = slice(None)
    alterations: dict[str, tuple[slice, Callable[..., Altered]]] = {}
    for quarter in (1, 2, 3):
        alterations[f"turned by {90 * quarter} degrees"] = both, partial(turned, quarter)
    for degrees in (-30, -20, 20, 30):
        alterations[f"rotated by {degrees} degrees"] = both, partial(rotated, degrees)
    for side, name in enumerate(("left", "right")):
        alterations[f"{name} half alone"] = slice(side, side + 1), partial(halved, side)
    alterations["JPEG stored turned, with an EXIF orientation"] = both, with_orientation
    alterations["screenshot, half black"] = both, screenshot
    alterations["shrunk to a plateau of 5 % of the width"] = both, shrunk
    for case in labelled_cases(folder):
        yield case
        for group, (shown, alter) in alterations.items():
            pixels, margins = alter(case.film.pixels, case.margins)
            film, scored = replace(case.film, pixels=pixels), case.scored[shown]
            yield Case(group, film, len(scored), margins[shown], scored)


def with_orientation(pixels: NDArray[np.float32], margins: Points) -> Altered:
    """Store a film turned, as a JPEG whose EXIF orientation turns it back, and read that."""
    image = Image.fromarray((255 * pixels).round().astype(np.uint8))
    image = image.transpose(Image.Transpose.ROTATE_90)
    exif = image.getexif()
    exif[ExifTags.Base.Orientation] = 6
    with TemporaryDirectory() as folder:
        path = Path(folder) / "film.jpg"
        image.save(path, quality=95, exif=exif)
        return read(path).pixels, margins


def turned(quarter: int, pixels: NDArray[np.float32], margins: Points) -> Altered:
    """Turn a film by quarter turns, anticlockwise."""
    for _ in range(quarter):
        x, y = margins[..., 0], margins[..., 1]
        margins = np.stack([y, pixels.shape[1] - x], -1)
        pixels = np.rot90(pixels)
    return np.ascontiguousarray(pixels), margins


def rotated(degrees: float, pixels: NDArray[np.float32], margins: Points) -> Altered:
    """Rotate a film clockwise about its middle; it grows so that nothing is cut off."""
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    height, width = pixels.shape
    size = np.array([abs(height * cos) + abs(width * sin), abs(height * sin) + abs(width * cos)])
    size = size.round().astype(int)  # (height, width)
    old, new = np.array([height, width]) / 2, size / 2
    back = np.array([[cos, -sin], [sin, cos]])  # (row, column) of the new film to the old one
    offset = old - 0.5 - back @ (new - 0.5)
    made = ndimage.affine_transform(pixels, back, offset, tuple(size), order=1)
    turn = np.array([[cos, -sin], [sin, cos]])
    return made, (margins - old[::-1]) @ turn.T + new[::-1]


def halved(side: int, pixels: NDArray[np.float32], margins: Points) -> Altered:
    """Keep one half of a film, split in the middle between its knees."""
    middle = round(margins[..., 0].mean((0, 1)))
    if side == 0:
        return np.ascontiguousarray(pixels[:, :middle]), margins
    return np.ascontiguousarray(pixels[:, middle:]), margins - [middle, 0]


def screenshot(pixels: NDArray[np.float32], margins: Points) -> Altered:
    """Lay a film into the right half of a black picture."""
    height, width = pixels.shape
    made = np.zeros((height + height // 5, 2 * width), np.float32)
    made[height // 10 : height // 10 + height, width:] = pixels
    return made, margins + np.array([width, height // 10])


def shrunk(pixels: NDArray[np.float32], margins: Points) -> Altered:
    """Lay a film, smaller, into a black picture, so that a plateau has 5 % of its width."""
    height, width = pixels.shape
    plateau = np.linalg.norm(margins[:, 1] - margins[:, 0], axis=-1).mean()
    large = round(plateau / 0.05)
    made = np.zeros((2 * large, large), np.float32)
    x, y = (large - width) // 2, large - height // 2
    made[y : y + height, x : x + width] = pixels
    return made, margins + np.array([x, y])


def phantom_case(framing: str, seed: int) -> Case:
    """Return a phantom in a framing."""
    made = phantom(seed, framing=framing)
    knees = sorted(made.knees, key=lambda knee: knee.centre)
    margins = np.array(
        [sorted((knee.plateau_medial, knee.plateau_lateral)) for knee in knees]
    ).reshape(-1, 2, 2)
    metal = tuple(bool(knee.implant) for knee in knees)
    return Case(framing, made.radiograph, len(knees), margins, (True,) * len(knees), metal)


def metal_cases(films: int, seed: int) -> Iterator[Case]:
    """Yield phantoms with metal in a knee, this many of every framing."""
    for framing in KNEE_FRAMINGS:
        with_metal = (
            k
            for k in count(METAL_SEED + seed)
            if any(leg.implant for leg in exposed_legs(plan_film(k, framing)))
        )
        yield from (phantom_case(framing, k) for k in islice(with_metal, films))


@dataclass(eq=False)
class Tally:
    """What was found on the films of a group."""

    films: int = 0
    counts: list[bool] = field(default_factory=list)  # by film: the number of knees is right
    flagged: list[bool] = field(default_factory=list)  # by row
    flagged_without_metal: list[bool] = field(default_factory=list)  # by row known to have none
    ious: list[float] = field(default_factory=list)  # by knee
    errors: list[tuple[float, float]] = field(default_factory=list)  # of margins: true, expected
    wrong: list[bool] = field(default_factory=list)  # by row: the area is wrong and not flagged
    metal: list[tuple[bool, bool]] = field(default_factory=list)  # by knee: true, found


def report(detector: Detector, cases: Iterable[Case]) -> None:
    """Print a table with a row per group."""
    tallies: dict[str, Tally] = {}
    for case in cases:
        (result,) = detector.detect_each([case.film])
        add(tallies.setdefault(case.group, Tally()), case, result.detections)
    columns = (
        *("films", "right number", "flagged", "flagged without metal", "knees", "recall at 0.75"),
        *("recall at 0.9", "mean IoU", "wrong, not flagged", "margin error, median %"),
        *("below expected error", "metal found", "metal where none is"),
    )
    table(("kind", *columns), ([group, *cells(tally)] for group, tally in tallies.items()))


def add(tally: Tally, case: Case, found: Sequence[Detection]) -> None:
    """Count what was found on a film; a knee that was not found is a miss."""
    tally.films += 1
    if case.knees is not None:
        tally.counts.append(len(found) == case.knees)
    tally.flagged += [knee.needs_review for knee in found]
    if case.metal is not None:
        seen = [METAL in knee.reason for knee in found]
        seen = seen if len(seen) == len(case.metal) else [False] * len(case.metal)
        tally.metal += zip(case.metal, seen, strict=True)
    if case.metal is None or len(found) == len(case.metal):
        metal = case.metal or [False] * len(found)
        tally.flagged_without_metal += [
            knee.needs_review for knee, has in zip(found, metal, strict=True) if not has
        ]
    if case.margins is not None:
        add_scores(tally, found, case.margins, case.scored)


def add_scores(
    tally: Tally, found: Sequence[Detection], margins: Points, scored: Sequence[bool]
) -> None:
    """Compare what was found on a film with its true margins."""
    overlaps = np.array([[iou(knee, ends) for knee in found] for ends in margins])
    overlaps = overlaps.reshape(len(margins), len(found))
    certain = np.array(scored, bool)
    for ends, row in zip(margins[certain], overlaps[certain], strict=True):
        tally.ious.append(row.max(initial=0.0))
        if tally.ious[-1] >= 0.5:
            knee, width = found[row.argmax()], float(np.linalg.norm(ends[1] - ends[0]))
            expected = knee.expected_error_px or math.nan
            tally.errors.append((margin_error(knee, ends) / width, expected / width))
    for knee, column in zip(found, overlaps.T, strict=True):
        if not column.any() or scored[column.argmax()]:
            tally.wrong.append(column.max(initial=0.0) < 0.75 and not knee.needs_review)


def iou(knee: Detection, ends: Points) -> float:
    """Return the overlap of the squares around found and true margins (2, 2)."""
    boxes = []
    for points in (np.array(list(knee.landmarks.values())), ends):
        middle, reach = points.mean(0), SQUARE_WIDTHS / 2 * np.linalg.norm(points[1] - points[0])
        boxes.append((middle - reach, middle + reach))
    (low, high), (other_low, other_high) = boxes
    sides = np.clip(np.minimum(high, other_high) - np.maximum(low, other_low), 0, None)
    common = sides.prod()
    return float(common / ((high - low).prod() + (other_high - other_low).prod() - common))


def margin_error(knee: Detection, ends: Points) -> float:
    """Return the mean distance of found and true margins, in film pixels."""
    points = np.array(list(knee.landmarks.values()))
    return float(
        min(np.linalg.norm(order - ends, axis=-1).mean() for order in (points, points[::-1]))
    )


def cells(tally: Tally) -> list[str]:
    """Return the cells of a group."""

    def share(values: Sequence[bool] | NDArray[np.generic]) -> str:
        return f"{np.mean(values):.3f}" if len(values) else "-"

    def count(values: Sequence[bool]) -> str:
        return f"{sum(values)} of {len(values)}" if values else "-"

    ious, errors = np.array(tally.ious), np.array(tally.errors).reshape(-1, 2)
    return [
        str(tally.films),
        share(tally.counts),
        count(tally.flagged),
        count(tally.flagged_without_metal),
        str(len(ious)) if len(ious) else "-",
        share(ious >= 0.75),
        share(ious >= 0.9),
        share(ious),
        str(sum(tally.wrong)) if tally.wrong else "-",
        f"{100 * np.median(errors[:, 0]):.2f}" if len(errors) else "-",
        share(errors[:, 0] <= errors[:, 1]),
        count([found for true, found in tally.metal if true]),
        count([found for true, found in tally.metal if not true]),
    ]


if __name__ == "__main__":
    main()
