"""Measure how exact outlines, joint-space widths and angles are.

    python lab/measure.py phantoms [--films N]
    python lab/measure.py shafts [--films N] [--real FOLDER]
    python lab/measure.py missing --real FOLDER
    python lab/measure.py repeat --real FOLDER
    python lab/measure.py masks --real FOLDER
    python lab/measure.py crops --real FOLDER

`phantoms` compares films that were not seen in training with their exact outlines. `shafts` cuts
films at some distance above or below the joint, and compares the tibiofemoral angle with that of
the whole film (with --real, FOLDER/films and FOLDER/kinds; else phantoms and their true angle).
`missing` counts measures that are left out in knees of these films that are not flagged, and
angles where both shafts are visible for 1.0 plateau widths. `repeat` measures them again on copies
that are rotated by 7 degrees. The others take
crops of single real knees as `detect --measure` does. `masks`: experts drew the joint space
(FOLDER/joint-space); widths are compared between the experts' margins. `crops`: knees with a
Kellgren-Lawrence grade and the picture's medial side (FOLDER/crops, crops.csv: id, kl, medial).
Widths are in percent of the tibial plateau's width; 1 % is about 0.75 mm.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, spearmanr

from accuracy import rotated
from films import find_knees, radiograph, read_rows, table
from kneematch import Detection, Detector
from kneematch.films.radiograph import Radiograph
from kneematch.films.read import read
from kneematch.knee import measure, measuring
from kneematch.knee.measure import ANGLE, COMPARTMENTS, UNITS, Outlines, measure_outlines
from kneematch.knee.measuring import JointOnFilm, find_outlines, measure_knees
from kneematch.knee.quality import exposed_field
from kneematch.models.outlines import load_network
from kneephantoms import phantom, true_knees
from kneephantoms.film_plan import plan_film

sys.path.append(str(Path(__file__).parent / "networks"))
from phantom_outlines import true_outlines

Array = NDArray[np.float64]

FIRST_SEED = 700_000  # disjoint from those of training
TIBIOFEMORAL = "tibiofemoral_angle"
SHOWN = (1.0, 1.05, 1.1, 1.2, 1.3, 1.4)  # plateau widths of a shaft that a cut film shows
FULL_SD = measure.SHAFT_SD[1][-1]  # for an angle whose shafts are seen to the end
REPEAT_DEG = 7.0
# Crops of each grade in the public set that the graded ones are drawn from.
OWN_PROPORTIONS = (3253, 1495, 2175, 1086, 251)
SEVERE = 3  # Kellgren-Lawrence grade
MASK = "-mask"  # NAME.png has its mask in NAME-mask.png
DETECTOR = cache(Detector.load)


def main() -> None:
    tasks = {"shafts": shafts, "missing": missing, "repeat": repeat}
    tasks |= {"phantoms": phantoms, "masks": masks, "crops": crops}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=[*tasks])
    parser.add_argument("--real", type=Path, help="folder of real films")
    parser.add_argument("--films", type=int, default=60, help="number of films")
    parser.add_argument("--network", help="outline network; default: the built-in one")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.network:
        measuring.load_network = partial(load_network, args.network)
    tasks[args.what](args)


def phantoms(args: argparse.Namespace) -> None:
    """Print errors, biases and coverage of every kind of measure on unseen phantoms."""
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
            bright = replace(film, pixels=pixels)
            (found,) = find_outlines([JointOnFilm(bright, centre, across, truth.medial)])
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


def shafts(args: argparse.Namespace) -> None:
    """Print how often films that are cut show an angle, and how far it is off."""
    rows = []
    films = list(real_films(args.real) if args.real else phantom_films(args.films))
    for shown in SHOWN:
        errors: list[tuple[float, float]] = []
        cut_films = 0
        for film, outlines, angle in films:
            for above in (True, False):
                cut_films += 1
                joint = cut_at(film, outlines, shown, above=above)
                (found,) = find_outlines([joint])
                each = measure_outlines(replace(found, medial=outlines.medial))[TIBIOFEMORAL]
                if each.value is not None and each.sd is not None:
                    errors.append((each.value - angle, each.sd))
        error, sd = np.array(errors).reshape(-1, 2).T
        cells = [f"{np.sqrt((error**2).mean()):.2f}", f"{np.median(np.abs(error)):.2f}"]
        cells += [
            f"{error.mean():+.2f}",
            f"{sd.mean():.2f}",
            f"{np.mean(np.abs(error) < 2 * sd):.2f}",
        ]
        rows.append([f"{shown}", str(cut_films), f"{len(error) / cut_films:.2f}", *cells])
    head = ("plateau widths shown", "knees", "share with an angle", "root mean square, degrees")
    table((*head, "median", "bias", "mean sd", "within 2 sd"), rows)


def phantom_films(films: int) -> Iterator[tuple[Radiograph, Outlines, float]]:
    """Yield phantoms without metal, the outlines of one knee each, and its true angle."""
    for seed in range(FIRST_SEED, FIRST_SEED + films):
        plan = plan_film(seed)
        truth = true_outlines(plan)[0]
        angle = measure_outlines(truth)[TIBIOFEMORAL].value
        if angle is not None and not plan.negative and not any(leg.implant for leg in plan.legs):
            yield radiograph(phantom(seed)), truth, angle


def real_films(folder: Path) -> Iterator[tuple[Radiograph, Outlines, float]]:
    """Yield upright films whose shafts are seen to the end, with the angle of one knee each."""
    for film, knees in measured_films(folder):
        for knee in knees[:1]:
            if knee.measures is None or knee.needs_review:
                continue
            angle = knee.measures.values[TIBIOFEMORAL]
            if angle.value is not None and angle.sd == FULL_SD:
                yield film, knee.measures.outlines, angle.value


def measured_films(folder: Path) -> Iterator[tuple[Radiograph, tuple[Detection, ...]]]:
    """Yield the ordinary films and those of other kinds, with their measured knees."""
    for path in sorted([*(folder / "films").glob("*.jpg"), *(folder / "kinds").glob("*.jpg")]):
        film = read(path)
        yield film, measure_knees(film, find_knees(DETECTOR(), film))


def cut_at(film: Radiograph, outlines: Outlines, shown: float, *, above: bool) -> JointOnFilm:
    """Return the joint on a film that is cut above or below it."""
    left, right = outlines.tibia[0], outlines.tibia[-1]
    middle = (left + right) / 2
    edge = round(middle[1] + (-shown if above else shown) * outlines.width_px)
    top = max(edge, 0) if above else 0
    pixels = film.pixels[top:] if above else film.pixels[:edge]
    here = middle - [0, top]
    cut = replace(film, pixels=np.ascontiguousarray(pixels))
    return JointOnFilm(cut, here, right - left, "left")


def missing(args: argparse.Namespace) -> None:
    """Print the share of unflagged knees in which each measure is left out."""
    left_out: Counter[str] = Counter()
    knees = visible = angles = 0
    for film, found in measured_films(args.real):
        for knee in found:
            if knee.needs_review or knee.measures is None:
                continue
            knees += 1
            values, outlines = knee.measures.values, knee.measures.outlines
            left_out.update(name for name in UNITS if values[name].value is None)
            _, y0, _, y1 = exposed_field(film.pixels)
            y = (outlines.tibia[0, 1] + outlines.tibia[-1, 1]) / 2
            if min(y - y0, y1 - y) >= outlines.width_px:
                visible += 1
                angles += values[TIBIOFEMORAL].value is not None
    shares = ([name, f"{100 * left_out[name] / knees:.1f}"] for name in UNITS)
    table((f"{knees} knees", "left out, %"), shares)
    print(f"Both shafts visible for 1.0 plateau widths: {visible}, with an angle: {angles}.")


def repeat(args: argparse.Namespace) -> None:
    """Print how measures differ between films and copies that are rotated."""
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in UNITS}
    for film, found in measured_films(args.real):
        pixels, _ = rotated(REPEAT_DEG, film.pixels, np.zeros((1, 2, 2)))
        copy = replace(film, pixels=pixels.astype(np.float32))
        again = measure_knees(copy, find_knees(DETECTOR(), copy))
        if len(found) != len(again):
            continue
        for one, other in zip(found, again, strict=True):
            if one.measures is None or other.measures is None:
                continue
            for name in UNITS:
                values = one.measures.values[name].value, other.measures.values[name].value
                if None not in values and not (one.needs_review or other.needs_review):
                    pairs[name].append(values)
    rows = []
    for name, both in pairs.items():
        one, other = np.array(both).T
        difference, unit = other - one, UNITS[name]
        sd = np.sqrt((difference**2).mean() / 2)
        cells = [str(len(both)), f"{np.median(np.abs(difference)):.2f}", f"{sd:.2f}"]
        rows.append([f"{name}_{unit}", *cells, f"{np.corrcoef(one, other)[0, 1]:.3f}"])
    table(("measure", "knees", "median difference", "within-knee sd", "correlation"), rows)


def read_masks(folder: Path) -> Iterator[tuple[Radiograph, NDArray[np.bool_]]]:
    """Yield the crops of a folder that have a mask (H, W), by name."""
    for path in sorted(folder.glob(f"*{MASK}.*")):
        mask = read(path).pixels
        crop = path.with_name("".join(path.name.rsplit(MASK, 1)))
        yield read(crop), np.asarray(mask > mask.max() / 2)


def outlines_of_mask(mask: NDArray[np.bool_]) -> Outlines:
    """Return the outlines of a joint space (H, W), column by column; medial is taken as left.

    The plateau reaches from the mask's first to its last column. A column without mask between
    them, where bone touches bone, is interpolated.
    """
    columns = np.flatnonzero(mask.any(0))
    drawn = mask[:, columns]
    top = drawn.argmax(0).astype(np.float64)
    bottom = len(mask) - drawn[::-1].argmax(0).astype(np.float64)
    x = np.concatenate([[columns[0]], columns + 0.5, [columns[-1] + 1.0]])
    femur, tibia = (np.stack([x, np.pad(y, 1, mode="edge")], 1) for y in (top, bottom))
    return Outlines(femur, tibia, "left")


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
    return measure_knees(film, found)[0] if found else None


def widths_between(outlines: Outlines, x: Array) -> Array:
    """Return the widths (K,) of the joint space at x (K,), all in pixels of an upright crop."""
    femur, tibia = (line[np.argsort(line[:, 0])] for line in (outlines.femur, outlines.tibia))
    return np.asarray(np.interp(x, *tibia.T) - np.interp(x, *femur.T))


def masks(args: argparse.Namespace) -> None:
    """Print how measures agree with experts, by the standard deviation that they state."""
    dice: list[float] = []
    rows: list[tuple[float, float, float, float]] = []
    flagged = missed = 0
    for crop, drawn in read_masks(args.real / "joint-space"):
        knee = measured(crop, args)
        if knee is None or knee.measures is None:
            missed += 1
            continue
        flagged += knee.needs_review
        found, truth = knee.measures.outlines, outlines_of_mask(drawn)
        mask = mask_of_outlines(found, drawn.shape)
        dice.append(2 * (mask & drawn).sum() / (mask.sum() + drawn.sum()))
        (left, _), (right, _) = truth.tibia[[0, -1]]
        for number, ends in enumerate(COMPARTMENTS.values()):
            x = left + (right - left) * np.linspace(*ends, 21)
            expert, ours = (
                100 / (right - left) * widths_between(each, x) for each in (truth, found)
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
    graded = read_rows(args.real / "crops" / "crops.csv")
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
    copies = [round(OWN_PROPORTIONS[int(kl)] / (grades == kl).sum()) for kl in grades]
    for text, times in (("balanced", 1), ("in the set's own proportions", copies)):
        kl, width = np.repeat(grades, times), np.repeat(widths, times)
        high, low = width[kl >= SEVERE], width[kl < SEVERE]
        area = mannwhitneyu(low, high).statistic / len(low) / len(high)
        print(
            f"Smaller minimum, grades {text}: Spearman {spearmanr(kl, width).statistic:.3f}; "
            f"area under the curve, grade 3 and above, {area:.3f}."
        )


if __name__ == "__main__":
    main()
