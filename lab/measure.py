"""Measure how exact outlines, joint-space widths and angles are.

    python lab/measure.py phantoms [--films N]
    python lab/measure.py masks --real FOLDER

`phantoms` compares films that were not seen in training with their exact outlines. `masks` takes
crops of single real knees (FOLDER/joint-space) on which experts drew the joint space. Widths are in
percent of the tibial plateau's width; 1 % is about 0.75 mm.
"""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from films import radiograph, table
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee import measure
from kneematch.knee.measure import ANGLE, COMPARTMENTS, FIXED, UNITS, measure_outlines
from kneematch.knee.measuring import find_outlines, outline_network
from kneematch.knee.outlines import Outlines
from kneematch.models.outlines import JOINT_FRAME, OutlineNetwork
from kneematch.training.outline_crops import true_outlines
from kneematch.training.outline_training import SUFFIX, DrawnKnee, read_masks
from kneephantoms import phantom, true_knees
from kneephantoms.film_plan import plan_film

Array = NDArray[np.float64]

FIRST_SEED = 700_000  # disjoint from those of training
WHOLE = 0.7  # of a crop's width that a mask of the whole joint spans


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["phantoms", "masks"])
    parser.add_argument("--real", type=Path, help="folder of real films")
    parser.add_argument("--films", type=int, default=60, help="number of films")
    parser.add_argument("--network", help="outline network; default: the built-in one")
    args = parser.parse_args()
    torch.set_num_threads(1)
    (phantoms if args.what == "phantoms" else masks)(args)


def phantoms(args: argparse.Namespace) -> None:
    """Print errors, biases and coverage of every kind of measure on unseen phantoms."""
    network = outline_network(args.network)
    errors: dict[str, list[tuple[float, float | None]]] = {name: [] for name in UNITS}
    left_out: Counter[str] = Counter()
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
                if each.value is None or true is None:
                    left_out[each.reason or known[name].reason] += 1
                else:
                    errors[name].append((each.value - true, each.sd))
    reasons = ", ".join(f"{count} ({reason})" for reason, count in left_out.most_common())
    print(
        f"{len(errors['joint_line_angle'])} knees of phantoms; left out: {reasons or 'nothing'}.\n"
    )
    groups = {
        "minimum JSW": [f"jsw_{name}_minimum" for name in COMPARTMENTS],
        "orthogonal minimum JSW": [name for name in UNITS if "orthogonal" in name],
        "mean JSW": [name for name in UNITS if name.endswith("_mean")],
        "area": [name for name in UNITS if name.endswith("_area")],
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


def score_crops(crops: list[DrawnKnee], network: OutlineNetwork) -> dict[str, Array]:
    """Return Dice, widths and minimum widths, of the experts (0) and of the network (1)."""
    names = ("dice", "widths", "minimum", "sd")
    scores: dict[str, list[object]] = {name: [] for name in names}
    for crop in crops:
        height, width = crop.pixels.shape
        # The whole crop is what the network sees, as the crop of a detection would be.
        across = np.array([width * JOINT_FRAME.px / JOINT_FRAME.size[1], 0.0])
        centre = np.array([width / 2, height / 2])
        found = find_outlines(Radiograph(crop.pixels), centre, across, network, medial="left")
        both = (crop.outlines, found)
        mask, drawn = mask_of_outlines(found, (height, width)), drawn_mask(crop)
        scores["dice"].append(2 * (mask & drawn).sum() / (mask.sum() + drawn.sum()))
        scores["widths"].append([measure.widths_at(each, np.array(FIXED)) for each in both])
        scores["minimum"].append(
            [[measure.minimum_width(each, name) for name in COMPARTMENTS] for each in both]
        )
        scores["sd"].append(
            [measure_outlines(found)[f"jsw_x{round(1000 * x):03d}"].sd or np.nan for x in FIXED]
        )
    return {name: np.array(values) for name, values in scores.items()}


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


MASK_HEAD = (
    *("crops", "Dice", "JSW error, %", "bias, %", "JSW correlation", "minimum JSW correlation"),
    *("within 1 sd, %", "2 sd, %"),
)


def masks(args: argparse.Namespace) -> None:
    """Print how the network agrees with experts: on all crops, and on those of whole joints."""
    crops = list(read_masks(args.real / "joint-space"))
    scores = score_crops(crops, outline_network(args.network))
    whole = np.array([crop.outlines.width_px > WHOLE * crop.pixels.shape[1] for crop in crops])
    rows = []
    for label, chosen in (("all", np.ones_like(whole)), ("mask spans the joint", whole)):
        expert, found = scores["widths"][chosen].swapaxes(0, 1)
        low, low_found = scores["minimum"][chosen].swapaxes(0, 1)
        error, sd = found - expert, scores["sd"][chosen]
        correlations = (np.corrcoef(expert.ravel(), found.ravel())[0, 1],)
        correlations += (np.corrcoef(low.ravel(), low_found.ravel())[0, 1],)
        cells = [f"{scores['dice'][chosen].mean():.3f}", f"{np.abs(error).mean():.2f}"]
        cells += [f"{error.mean():+.2f}", *(f"{value:.3f}" for value in correlations)]
        cells += [f"{100 * np.mean(np.abs(error) < k * sd):.0f}" for k in (1, 2)]
        rows.append([f"{chosen.sum()} ({label})", *cells])
    table(MASK_HEAD, rows)


if __name__ == "__main__":
    main()
