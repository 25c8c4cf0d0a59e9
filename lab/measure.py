"""Measure how exact outlines, joint-space widths and angles are.

    python lab/measure.py phantoms [--films N]
    python lab/measure.py masks --real FOLDER
    python lab/measure.py crops --real FOLDER

`phantoms` compares films that were not seen in training with their exact outlines. The others take
crops of single real knees as `detect --measure` does. `masks`: experts drew the joint space
(FOLDER/joint-space); widths are compared between the experts' margins. `crops`: knees with a
Kellgren-Lawrence grade and the picture's medial side (FOLDER/crops, crops.csv: id, kl, medial).
Widths are in percent of the tibial plateau's width; 1 % is about 0.75 mm.
"""

import argparse
import csv
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, spearmanr

from films import find_knees, radiograph, table
from kneematch import Detection, Detector
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee import measure
from kneematch.knee.measure import ANGLE, COMPARTMENTS, UNITS, Outlines, measure_outlines
from kneematch.knee.measuring import find_outlines, measure_knees, outline_network
from kneematch.training.outline_training import SUFFIX, DrawnKnee, read_masks
from kneephantoms import phantom, true_knees
from kneephantoms.film_plan import plan_film

sys.path.append(str(Path(__file__).parent / "networks"))
from phantom_outlines import true_outlines

Array = NDArray[np.float64]

FIRST_SEED = 700_000  # disjoint from those of training
SEVERE = 3  # Kellgren-Lawrence grade
DETECTOR = cache(Detector.load)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["phantoms", "masks", "crops"])
    parser.add_argument("--real", type=Path, help="folder of real films")
    parser.add_argument("--films", type=int, default=60, help="number of films")
    parser.add_argument("--network", help="outline network; default: the built-in one")
    args = parser.parse_args()
    torch.set_num_threads(1)
    {"phantoms": phantoms, "masks": masks, "crops": crops}[args.what](args)


def phantoms(args: argparse.Namespace) -> None:
    """Print errors, biases and coverage of every kind of measure on unseen phantoms."""
    network = outline_network(args.network)
    errors: dict[str, list[tuple[float, float | None]]] = {name: [] for name in UNITS}
    for seed in range(FIRST_SEED, FIRST_SEED + args.films):
        plan = plan_film(seed)
        if any(leg.implant for leg in plan.legs):
            continue
        film, detector_error = radiograph(phantom(seed)), np.random.default_rng(seed)
        for knee, truth in zip(true_knees(plan), true_outlines(plan), strict=True):
            left, right = np.array(knee.plateau_left), np.array(knee.plateau_right)
            across = right - left
            # About as far off as detections are.
            centre = (left + right) / 2 + detector_error.normal(0, 0.01, 2) * np.hypot(*across)
            pixels = film.pixels if not plan.negative else 1 - film.pixels
            found = find_outlines(
                replace(film, pixels=pixels), centre, across, network, medial=truth.medial
            )
            known = measure_outlines(truth)
            for name, each in measure_outlines(found).items():
                true = known[name].value
                if each.value is not None and true is not None:
                    errors[name].append((each.value - true, each.sd))
    print(f"{len(errors['joint_line_angle'])} knees of phantoms.\n")
    groups = {
        "minimum JSW": [f"jsw_{name}_minimum" for name in COMPARTMENTS],
        "JSW at the fixed locations": [name for name in UNITS if name.startswith("jsw_x")],
        "joint-line angle": ["joint_line_angle"],
        "tibiofemoral angle": ["tibiofemoral_angle"],
    }
    rows = []
    for label, names in groups.items():
        values = np.array([(error, sd or np.nan) for name in names for error, sd in errors[name]])
        if len(values):
            (error, sd), size = values.T, np.abs(values[:, 0])
            cells = [f"{np.median(size):.3f}", f"{size.mean():.3f}", f"{np.median(error):+.3f}"]
            cells += [f"{np.quantile(size, 0.95):.2f}"]
            cells += [f"{100 * np.mean(size < k * sd):.0f}" for k in (1, 2)]
            unit = "degrees" if UNITS[names[0]] == ANGLE else "%"
            rows.append([f"{label}, {unit}", *cells])
    head = ("phantoms", "median error", "mean error", "bias", "95 %", "within 1 sd, %", "2 sd, %")
    table(head, rows)


def drawn_mask(crop: DrawnKnee) -> NDArray[np.bool_]:
    """Return the mask (H, W) that an expert drew."""
    mask = read(crop.path.with_name(f"{crop.path.stem}{SUFFIX}{crop.path.suffix}")).pixels
    return np.asarray(mask > mask.max() / 2)


def mask_of_outlines(outlines: Outlines, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the pixels (height, width) between both borders and both margins."""
    height, width = size
    x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    femur, tibia = (np.interp(x, *line.T) for line in (outlines.femur, outlines.tibia))
    left, right = outlines.tibia[0, 0], outlines.tibia[-1, 0]
    return np.asarray((y > femur) & (y < tibia) & (x > left) & (x < right))


def measured(film: Radiograph, args: argparse.Namespace) -> Detection | None:
    """Return the knee that is found on a crop, with its measures; None without one."""
    found = find_knees(DETECTOR(), film)
    return measure_knees(film, found, outline_network(args.network))[0] if found else None


def widths_between(outlines: Outlines, x: Array) -> Array:
    """Return the widths (K,) of the joint space at x (K,), all in pixels of an upright crop."""
    femur, tibia = (line[np.argsort(line[:, 0])] for line in (outlines.femur, outlines.tibia))
    return np.asarray(np.interp(x, *tibia.T) - np.interp(x, *femur.T))


def masks(args: argparse.Namespace) -> None:
    """Print how measures agree with experts, by the standard deviation that they state."""
    dice: list[float] = []
    rows: list[tuple[float, float, float, float]] = []
    flagged = missed = 0
    for crop in read_masks(args.real / "joint-space"):
        knee = measured(read(crop.path), args)
        if knee is None or knee.measures is None:
            missed += 1
            continue
        flagged += knee.needs_review
        found, drawn = knee.measures.outlines, drawn_mask(crop)
        mask = mask_of_outlines(found, drawn.shape)
        dice.append(2 * (mask & drawn).sum() / (mask.sum() + drawn.sum()))
        (left, _), (right, _) = crop.outlines.tibia[[0, -1]]
        for number, ends in enumerate(COMPARTMENTS.values()):
            x = left + (right - left) * np.linspace(*ends, 21)
            expert, ours = (
                100 / (right - left) * widths_between(each, x) for each in (crop.outlines, found)
            )
            places = found.in_plateau_widths(np.stack([x, np.full_like(x, found.tibia[0, 1])], 1))
            sd = measure.width_deviations(found, places[:, 0])
            rows += zip(expert, ours, sd, np.full(21, len(dice) * 2 + number), strict=True)
    expert, ours, sd, compartment = np.array(rows).T
    lowest = np.array(
        [[w[compartment == k].min() for w in (expert, ours)] for k in set(compartment)]
    )
    print(
        f"{len(dice)} crops found, {missed} missed, {flagged} flagged. Dice {np.mean(dice):.3f}; "
        f"correlation of JSW {np.corrcoef(expert, ours)[0, 1]:.3f}, of the minima "
        f"{np.corrcoef(*lowest.T)[0, 1]:.3f}.\n"
    )
    table(
        ("standard deviation, %", "places", "mean error, %", "root mean square, %", "bias, %"),
        (
            [f"{low} to {high}", str(chosen.sum()), *(f"{value:.2f}" for value in values)]
            for low, high in ((0, 99), (0, 1), (1, 2), (2, 4), (4, 99))
            if (chosen := (sd >= low) & (sd < high)).any()
            for error in [(ours - expert)[chosen]]
            for values in [(np.abs(error).mean(), np.sqrt((error**2).mean()), error.mean())]
        ),
    )


def crops(args: argparse.Namespace) -> None:
    """Print what is found and measured of graded crops, and how widths follow the grades."""
    with (args.real / "crops" / "crops.csv").open(newline="", encoding="utf-8") as file:
        graded = list(csv.DictReader(file))
    counts: dict[str, Counter[str]] = {row["kl"]: Counter() for row in graded}
    smaller: list[tuple[int, float]] = []
    for row in graded:
        count = counts[row["kl"]]
        count["crops"] += 1
        knee = measured(read(args.real / "crops" / f"{row['id']}.png"), args)
        if knee is None or knee.measures is None:
            continue
        medial, values = knee.measures.outlines.medial, knee.measures.values
        widths = [v.value for name, v in values.items() if name.endswith("_minimum")]
        known = [width for width in widths if width is not None]
        both = len(known) == len(COMPARTMENTS)
        count.update(found=1, flagged=int(knee.needs_review), measured=int(both))
        count["medial side known"] += bool(medial)
        count["wrong and not flagged"] += (
            medial not in ("", row["medial"]) and not knee.needs_review
        )
        smaller += [(int(row["kl"]), min(known))] if both else []
    columns = (
        "crops",
        "found",
        "flagged",
        "measured",
        "medial side known",
        "wrong and not flagged",
    )
    grades, widths = np.array(smaller).T
    rows = [[kl, *(str(n[c]) for c in columns)] for kl, n in sorted(counts.items())]
    rows.append(["all", *(str(sum(n[c] for n in counts.values())) for c in columns)])
    medians = [[f"{np.median(widths[grades == int(kl)]):.2f}"] for kl in sorted(counts)] + [["-"]]
    table(("grade", *columns, "median JSW, %"), map(list.__add__, rows, medians))
    severe = grades >= SEVERE
    area = mannwhitneyu(widths[~severe], widths[severe]).statistic / severe.sum() / (~severe).sum()
    rho = spearmanr(grades, widths).statistic
    print(
        f"Smaller minimum: Spearman {rho:.3f}; area under the curve, grade 3 and above, {area:.3f}."
    )


if __name__ == "__main__":
    main()
