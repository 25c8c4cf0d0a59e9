"""Does geometry hold on many phantoms? The axis between the knees, the way home, the minimum.

Run it as `python benchmarks/phantoms.py` (`--help` lists the options); it prints a Markdown table
and the seeds that failed, and ends with 1 if there are any.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.geometry.split import SIDES, split, symmetry_axis
from kneematch.geometry.view import View, transform
from kneematch.matching.annotation import Annotation, Box
from kneematch.matching.energy import energy, printed
from kneematch.matching.template import cut_from_half
from kneematch.synthetic.phantom import Knee, Phantom, phantom

FINE = (1.3, 1.2)  # the box around a joint, in widths of its plateau
EDGE_SHARE = 0.12  # half the width of a window at the joint's margin, in widths of the box
STEPS = (0.02, 0.02, 0.02, 0.03)  # to either side, in scale, x, y and rotation
EXACT_PX = 1e-3
ZERO = 1e-4


def axis_separates(made: Phantom) -> bool:
    """Whether the symmetry axis lies between the plateaus of the two knees."""
    left, right = made.knees
    axis = symmetry_axis(torch.from_numpy(made.radiograph.pixels))
    return left.plateau_right[0] < axis < right.plateau_left[0]


def way_home_is_exact(halves: View) -> bool:
    """Whether points of the halves come back from the film to where they were."""
    points = 2 * torch.rand(100, 2, dtype=torch.float64) - 1
    there = transform(halves.to_film, points)
    back = transform(torch.linalg.inv(halves.to_film), there)
    half_px = torch.tensor([halves.size[1], halves.size[0]]) / 2
    return bool(((back - points).abs() * half_px).max() < EXACT_PX)


def true_pose_is_lowest(halves: View, made: Phantom, side: int) -> bool | None:
    """Whether the energy of a template is 0 where it was cut and higher at 80 poses around.

    None where the box is too large a part of the half to serve as a template.
    """
    half = View(halves.pixels[side], halves.to_film[side])
    try:
        template, theta = cut_from_half(half, annotate(made.knees[side], half))
    except TemplateError:
        return None
    signs = torch.cartesian_prod(*[torch.tensor([-1, 0, 1])] * 4)
    around = (theta + signs * torch.tensor(STEPS)).to(half.pixels)[:, None]  # (81, 1, 4)
    found: Tensor = energy(printed(half.pixels.expand(81, 1, *half.size), template), around)
    middle = found[40]
    others = torch.cat([found[:40], found[41:]])
    return bool(middle.abs() < ZERO) and bool(others.min() > ZERO)


def annotate(knee: Knee, half: View) -> Annotation:
    """The boxes that one would draw on a knee, kept inside its half."""
    plateau = math.dist(knee.plateau_left, knee.plateau_right)
    corners = transform(half.to_film, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    (left, top), (right, bottom) = corners.sort(dim=0).values.tolist()
    (x, y), across, down = knee.centre, FINE[0] * plateau / 2, FINE[1] * plateau / 2
    fine = max(x - across, left), max(y - down, top), min(x + across, right), min(y + down, bottom)
    reach = EDGE_SHARE * (fine[2] - fine[0])

    def window(at: float) -> Box:
        return max(at - reach, fine[0]), y - 2 * reach, min(at + reach, fine[2]), y

    windows = window(knee.plateau_left[0]), window(knee.plateau_right[0])
    return Annotation(Path("phantom"), knee.side, fine, fine, *windows)


def main() -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first phantom")
    parser.add_argument("--height", type=int, default=400)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict[str, list[tuple[str, bool]]] = {"axis": [], "home": [], "lowest": []}
    refused = []
    for seed in range(options.first, options.first + options.count):
        made = phantom(seed, size=(options.height, options.width))
        halves = split(made.radiograph)
        results["axis"].append((str(seed), axis_separates(made)))
        results["home"].append((str(seed), way_home_is_exact(halves)))
        for side, name in enumerate(SIDES):
            lowest = true_pose_is_lowest(halves, made, side)
            if lowest is None:
                refused.append(f"{seed} {name}")
            else:
                results["lowest"].append((f"{seed} {name}", lowest))
    report(results, refused)
    return int(any(not good for rows in results.values() for _, good in rows))


def report(results: dict[str, list[tuple[str, bool]]], refused: list[str]) -> None:
    """The table, then whatever failed."""
    wording = {
        "axis": "axis between the knees",
        "home": f"half, film, half within {EXACT_PX:g} px",
        "lowest": "energy of a knee's own template lowest at its true pose",
    }
    print("| property | holds | of |\n|---|---:|---:|")
    for key, rows in results.items():
        print(f"| {wording[key]} | {sum(good for _, good in rows)} | {len(rows)} |")
    for key, rows in results.items():
        failed = [name for name, good in rows if not good]
        if failed:
            print(f"\nfailed, {wording[key]}: {', '.join(failed)}")
    if refused:
        print(f"\nno template (box refused): {', '.join(refused)}")


if __name__ == "__main__":
    raise SystemExit(main())
