"""Measure how exact outlines, joint-space widths and angles are.

    python benchmarks/measure.py phantoms [--films N]
    python benchmarks/measure.py masks --real FOLDER
    python benchmarks/measure.py repeat --real FOLDER [--films N]
    python benchmarks/measure.py tuned --real FOLDER [--device cuda] [--steps N]
    python benchmarks/measure.py speed

`phantoms` compares films that were not seen in training with their exact outlines. `masks` takes
crops of single real knees (FOLDER/joint-space) on which experts drew the joint space. `repeat`
measures real films (FOLDER/films) again after they were shifted, turned, rescaled and darkened.
`tuned` trains on two thirds of the masks and tests on the others, in three folds. Widths are in
percent of the tibial plateau's width; 1 % is about 0.75 mm.
"""

import argparse
import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import affine_transform

from films import table
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee.detector import Detector
from kneematch.knee.measure import (
    ANGLE,
    COMPARTMENTS,
    FIXED,
    UNITS,
    measure_outlines,
    minimum_width,
    widths_at,
)
from kneematch.knee.measuring import find_outlines, measure_knees, outline_network
from kneematch.knee.outlines import Outlines
from kneematch.models.outlines import JOINT_FRAME, OutlineNetwork
from kneematch.training.drawn_knees import SUFFIX, DrawnKnee, read_masks
from kneematch.training.phantom_crops import true_outlines
from kneephantoms.film_plan import plan_film
from kneephantoms.phantom import phantom, true_knees

Array = NDArray[np.float64]

FIRST_SEED = 700_000  # disjoint from those of training
FOLDS = 3
WHOLE = 0.7  # of a crop's width that a mask of the whole joint spans
VIEWS = {  # shift in pixels, rotation in degrees, scale, gamma
    "as it is": (0.0, 0.0, 1.0, 1.0),
    "shifted": (3.3, 0.0, 1.0, 1.0),
    "turned by 3 degrees": (0.0, 3.0, 1.0, 1.0),
    "turned by -3 degrees": (0.0, -3.0, 1.0, 1.0),
    "rescaled by 0.7": (0.0, 0.0, 0.7, 1.0),
    "rescaled by 1.3": (0.0, 0.0, 1.3, 1.0),
    "gamma 0.7": (0.0, 0.0, 1.0, 0.7),
    "gamma 1.4": (0.0, 0.0, 1.0, 1.4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["phantoms", "masks", "repeat", "tuned", "speed"])
    parser.add_argument("--real", type=Path, help="folder of real films")
    parser.add_argument("--films", type=int, default=60, help="number of films")
    parser.add_argument("--network", help="outline network; default: the built-in one")
    parser.add_argument("--device", default="cpu", help="of the training")
    parser.add_argument("--steps", type=int, default=600, help="of the training")
    parser.add_argument("--each", action="store_true", help="print every crop")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = {"phantoms": phantoms, "masks": masks, "repeat": repeat, "tuned": tuned, "speed": speed}
    run[args.what](args)


def phantoms(args: argparse.Namespace) -> None:
    """Print errors, biases and coverage of every kind of measure on unseen phantoms."""
    network = outline_network(args.network)
    errors: dict[str, list[tuple[float, float | None]]] = {name: [] for name in UNITS}
    left_out: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + args.films):
        plan = plan_film(seed)
        if not plain(plan):
            continue
        film, detector_error = phantom(seed).radiograph, np.random.default_rng(seed)
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
        if not len(values):
            continue
        error, sd = values.T
        unit = "degrees" if UNITS[names[0]] == ANGLE else "%"
        rows.append(
            [
                f"{label}, {unit}",
                f"{np.median(np.abs(error)):.3f}",
                f"{np.abs(error).mean():.3f}",
                f"{np.median(error):+.3f}",
                f"{np.quantile(np.abs(error), 0.95):.2f}",
                f"{100 * np.mean(np.abs(error) < sd):.0f}",
                f"{100 * np.mean(np.abs(error) < 2 * sd):.0f}",
            ]
        )
    head = ("phantoms", "median error", "mean error", "bias", "95 %", "within 1 sd, %", "2 sd, %")
    table(head, rows)


def plain(plan: object) -> bool:
    """Return whether a phantom has no implant."""
    return not any(getattr(leg, "implant", "") for leg in getattr(plan, "legs", ()))


def score_crops(crops: list[DrawnKnee], network: OutlineNetwork) -> dict[str, Array]:
    """Return Dice, widths and minimum widths, of the experts (0) and of the network (1)."""
    names = ("dice", "widths", "minimum", "sd", "widths_there", "minimum_there")
    scores: dict[str, list[object]] = {name: [] for name in names}
    for crop in crops:
        height, width = crop.pixels.shape
        # The whole crop is what the network sees, as the crop of a detection would be.
        across = np.array([width * JOINT_FRAME.px / JOINT_FRAME.size[1], 0.0])
        centre = np.array([width / 2, height / 2])
        found = find_outlines(Radiograph(crop.pixels), centre, across, network, medial="left")
        both = (crop.outlines, found)
        there = (crop.outlines, with_margins_of(crop.outlines, found))
        mask, drawn = mask_of_outlines(found, (height, width)), drawn_mask(crop)
        scores["dice"].append(2 * (mask & drawn).sum() / (mask.sum() + drawn.sum()))
        for suffix, pair in (("", both), ("_there", there)):
            scores[f"widths{suffix}"].append([widths_at(each, np.array(FIXED)) for each in pair])
            scores[f"minimum{suffix}"].append(
                [[minimum_width(each, name) for name in COMPARTMENTS] for each in pair]
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


def with_margins_of(expert: Outlines, found: Outlines) -> Outlines:
    """Return outlines that are measured between an expert's margins instead of their own."""
    left, right = expert.tibia[[0, -1]]
    inside = found.tibia[(found.tibia[:, 0] > left[0]) & (found.tibia[:, 0] < right[0])]
    return replace(found, tibia=np.concatenate([left[None], inside, right[None]]))


MASK_HEAD = (
    "crops",
    "Dice",
    "JSW error, %",
    "bias, %",
    "JSW correlation",
    "minimum JSW correlation",
    "smaller of both",
    "within 1 sd, %",
    "2 sd, %",
)


def mask_row(label: str, scores: dict[str, Array], suffix: str = "") -> list[str]:
    """Return a row of the table of crops; the suffix "_there" is between the experts' margins."""
    expert, found = scores[f"widths{suffix}"].swapaxes(0, 1)
    low, low_found = scores[f"minimum{suffix}"].swapaxes(0, 1)
    error = found - expert
    return [
        label,
        f"{scores['dice'].mean():.3f}",
        f"{np.abs(error).mean():.2f}",
        f"{error.mean():+.2f}",
        f"{correlation(expert, found):.3f}",
        f"{correlation(low, low_found):.3f}",
        f"{correlation(low.min(1), low_found.min(1)):.3f}",
        f"{100 * np.mean(np.abs(error) < scores['sd']):.0f}",
        f"{100 * np.mean(np.abs(error) < 2 * scores['sd']):.0f}",
    ]


def mask_rows(crops: list[DrawnKnee], scores: dict[str, Array]) -> list[list[str]]:
    """Return the rows of all crops, and of those whose mask spans the whole joint."""
    whole = np.array([crop.outlines.width_px > WHOLE * crop.pixels.shape[1] for crop in crops])
    part = {name: values[whole] for name, values in scores.items()}
    return [
        mask_row(f"{len(crops)}, each between its own margins", scores),
        mask_row(f"{len(crops)}, between the experts' margins", scores, "_there"),
        mask_row(f"{whole.sum()} whose mask spans the joint, own margins", part),
    ]


def correlation(one: Array, two: Array) -> float:
    """Return Pearson's correlation of all values."""
    return float(np.corrcoef(one.ravel(), two.ravel())[0, 1])


def masks(args: argparse.Namespace) -> None:
    """Print how the network agrees with experts."""
    crops = list(read_masks(args.real / "joint-space"))
    scores = score_crops(crops, outline_network(args.network))
    table(MASK_HEAD, mask_rows(crops, scores))
    if args.each:
        for number, (dice, widths) in enumerate(zip(scores["dice"], scores["widths"], strict=True)):
            error = widths[1] - widths[0]
            print(f"crop {number}: Dice {dice:.3f}, JSW error {np.abs(error).mean():.2f}")


def repeat(args: argparse.Namespace) -> None:
    """Print how much medial widths vary between views of the same films."""
    detector, network = Detector.load(), outline_network(args.network)
    films = sorted((args.real / "films").glob("dev-knee-*"))[: args.films]
    names = [f"jsw_x{round(1000 * x):03d}" for x in FIXED if x < 0.5]
    deviations, flagged = [], 0
    for path in films:
        film = read(path)
        values: dict[str, list[list[float]]] = {}
        for view in VIEWS.values():
            changed = transformed(film, *view)
            (found,) = detector.detect_each([changed])
            for knee in measure_knees(changed, found.detections, network):
                widths = [knee.measures[name].value for name in names]
                if any(width is None for width in widths):
                    flagged += 1
                else:
                    values.setdefault(knee.side, []).append(widths)  # type: ignore[arg-type]
        deviations += [np.std(v, axis=0) for v in values.values() if len(v) > len(VIEWS) // 2]
    spread = np.array(deviations)
    print(f"{len(films)} films, {len(spread)} knees, {len(VIEWS)} views; {flagged} flagged.\n")
    rows = [["medial JSW", f"{math.sqrt((spread**2).mean()):.3f}", f"{np.median(spread):.3f}"]]
    table(("standard deviation between views, %", "root mean square", "median"), rows)


def transformed(
    film: Radiograph, shift: float, degrees: float, scale: float, gamma: float
) -> Radiograph:
    """Return a film that was shifted, turned, rescaled and darkened."""
    height, width = film.size
    size = round(scale * height), round(scale * width)
    angle = math.radians(degrees)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    matrix = turn / scale
    middle = (np.array(film.size) - 1) / 2
    offset = middle - matrix @ ((np.array(size) - 1) / 2) + shift
    pixels = film.pixels
    if (shift, degrees, scale) != (0.0, 0.0, 1.0):
        smooth = torch.nn.functional.interpolate if scale < 1 else None
        if smooth is not None:
            small = smooth(torch.from_numpy(pixels)[None, None], size, mode="area")
            pixels = small[0, 0].numpy()
        else:
            pixels = affine_transform(pixels, matrix, offset, size, order=1)
    return replace(film, pixels=np.clip(pixels, 0, 1).astype(np.float32) ** gamma)


def tuned(args: argparse.Namespace) -> None:
    """Print the scores of networks that were tuned on two thirds of the masks, on the others."""
    from kneematch.training.outline_training import OutlineConfig, tune_network

    crops = list(read_masks(args.real / "joint-space"))
    config = OutlineConfig(steps=args.steps, start=args.network, device=args.device)
    parts = []
    for fold in range(FOLDS):
        test = crops[fold::FOLDS]
        others = [crop for number, crop in enumerate(crops) if number % FOLDS != fold]
        network = tune_network(others, config)
        parts.append(score_crops(test, network.cpu().eval()))
    scores = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = [crop for fold in range(FOLDS) for crop in crops[fold::FOLDS]]
    table(MASK_HEAD, mask_rows(order, scores))


def speed(args: argparse.Namespace) -> None:
    """Print the CPU time of one knee."""
    network = outline_network(args.network)
    film = phantom(FIRST_SEED).radiograph
    found = Detector.load().detect(film)
    measure_knees(film, found, network)
    times = []
    for _ in range(15):
        started = time.process_time()
        measure_knees(film, found, network)
        times.append((time.process_time() - started) / len(found))
    print(f"{1000 * np.median(times):.0f} ms of CPU time a knee, median of {len(times)}.")


if __name__ == "__main__":
    main()
