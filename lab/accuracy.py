"""Measure accuracy: recall, IoU and margin errors by kind of film, flags and expected errors.

    python lab/accuracy.py [--films 200] [--real FOLDER] [--method METHOD] [--template FILE]
    python lab/accuracy.py --onnx --real FOLDER

Prints a table for each set of films: phantoms of every framing, phantoms with metal, and, with
--real, the labelled films as they are and altered (turned, rotated, halved, laid into a screenshot,
shrunk), films of other kinds, and squares cut out of films without knees; films.py describes the
folder. Rows are kinds of films. Columns:
films; share with the right number of knees; flagged rows, and those without metal; knees with known
margins; share of these whose area has an IoU of at least 0.75 and 0.9; mean IoU; wrong rows that
are not flagged; median distance of the margins in percent of the plateau's width; share of errors
below `expected_error_px`, which should be 0.9; knees with metal that are flagged for it, and
without metal that are.

With --onnx, it prints instead how far the corners and landmarks of each real film that the exported
`run_onnx.py` finds are from those of `detect` in float32 and in this CPU's own precision.
"""

import argparse
import math
import runpy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from films import (
    KNEE_FRAMINGS,
    Case,
    Points,
    find_knees,
    iou,
    kind_cases,
    labelled_cases,
    margin_error,
    metal_cases,
    more_cases,
    phantom_case,
    square_cases,
    table,
)
from kneematch import Detection, Detector
from kneematch.knee.onnx_export import export_onnx
from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.two_stage import network_solver

METAL = "metal"  # in the reason of a knee that is flagged for it
Altered = tuple[NDArray[np.float32], Points]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=200, help="number of phantoms")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first phantom")
    parser.add_argument("--real", type=Path, help="folder of labelled real films")
    parser.add_argument("--method", default="auto", help="as for `kneematch detect`")
    parser.add_argument("--template", type=Path, help="template.json, for the search")
    parser.add_argument("--onnx", action="store_true", help="compare run_onnx.py with detect")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.onnx:
        print_agreement(args.real)
        return
    detector = Detector.load(template=args.template, method=args.method)
    for title, cases in sets(args.real, args.films, args.seed):
        print(f"### {title}\n")
        report(detector, cases)


def print_agreement(real: Path) -> None:
    """Print how far the knees of run_onnx.py are from those of `detect`, by precision."""
    model, quick = load_model(builtin_model()), Detector.load(device="cpu")
    solver = network_solver(model.networks(located=True, float32=True))
    precise = replace(quick.preparation, precise=True)
    detectors = {"float32": replace(quick, solver=solver, preparation=precise), "CPU": quick}
    with TemporaryDirectory() as folder:
        export_onnx(Path(folder) / "made")
        program = runpy.run_path(f"{folder}/made/run_onnx.py")
        paths = sorted((real / "films").iterdir())
        answers = [program["detect"](*program["read"](str(path))) for path in paths]
    rows, differing = [], 0
    for name, detector in detectors.items():
        apart = []
        for path, answer in zip(paths, answers, strict=True):
            found = detector.detect(path)
            differing += [knee.side for knee in found] != [each["image_side"] for each in answer]
            for knee, other in zip(found, answer, strict=False):
                here = [*knee.corners, *(knee.landmarks[each] for each in other["landmarks"])]
                there = np.array([*other["corners"], *other["landmarks"].values()])
                apart.append(np.linalg.norm(here - there, axis=1).max())
        rows.append(
            [name, str(len(apart)), *(f"{np.quantile(apart, q):.4f}" for q in (0.5, 0.95, 1))]
        )
    table(("detect computes in", "knees", "median, px", "95 %", "largest"), rows)
    print(f"Films with other knees: {differing}.")


def sets(real: Path | None, films: int, seed: int) -> Iterator[tuple[str, Iterable[Case]]]:
    """Yield titles and films."""
    if real is not None:
        yield "Labelled real films, as they are and altered", altered_cases(real)
        if (real / "kinds").exists():
            yield "Other kinds of real films", kind_cases(real / "kinds")
        if (real / "more").exists():
            yield "More kinds of real films", more_cases(real / "more")
            yield "Squares cut out of films without a frontal knee", square_cases(real)
    if films:
        framings, seeds = (*KNEE_FRAMINGS, "other"), range(seed, seed + films)
        yield "Phantoms", (phantom_case(framing, k) for framing in framings for k in seeds)
        yield "Phantoms with metal", metal_cases(films // 2, seed)


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
    alterations["screenshot, half black"] = both, screenshot
    alterations["shrunk to a plateau of 5 % of the width"] = both, shrunk
    for case in labelled_cases(folder):
        yield case
        for group, (shown, alter) in alterations.items():
            pixels, margins = alter(case.film.pixels, case.margins)
            film, scored = replace(case.film, pixels=pixels), case.scored[shown]
            yield Case(group, film, len(scored), margins[shown], scored)


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
    return made, (margins - old[::-1]) @ back.T + new[::-1]


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


@dataclass(eq=False)
class Tally:
    """What was found on the films of a group."""

    films: int = 0
    counts: list[bool] = field(default_factory=list)  # by film: the number of knees is right
    flagged: list[bool] = field(default_factory=list)  # by row
    flagged_without_metal: list[bool] = field(default_factory=list)  # by row known to have none
    ious: list[float] = field(default_factory=list)  # by knee
    errors: list[tuple[float, float]] = field(
        default_factory=list
    )  # margins: true and expected error
    wrong: list[bool] = field(default_factory=list)  # by row: the area is wrong and not flagged
    metal: list[tuple[bool, bool]] = field(default_factory=list)  # by knee: true, found


def report(detector: Detector, cases: Iterable[Case]) -> None:
    """Print a table with a row per group."""
    tallies: dict[str, Tally] = {}
    for case in cases:
        add(tallies.setdefault(case.group, Tally()), case, find_knees(detector, case.film))
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
        seen = [METAL in knee.reasons for knee in found]
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
