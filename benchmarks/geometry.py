"""Check geometric properties on many phantoms.

    python benchmarks/geometry.py [--count N]

Rows of the table: the symmetry axis lies between the knees; mapping points from a half to the film
and back is exact; the energy of a template cut from a knee is 0 at its own pose and higher at 80
poses around it. Columns: on how many phantoms (or knees) the property holds, and of how many. Seeds
that fail are listed, and the exit code is then 1.
"""

import argparse
import math
from pathlib import Path

import torch
from kneephantoms.phantom import Knee, Phantom, phantom
from torch import Tensor

from kneematch.errors import TemplateError
from kneematch.films.annotation import Annotation, Box
from kneematch.knee.knee_images import film_tensor
from kneematch.paper.energy import energy, paper_terms
from kneematch.paper.split import SIDES, split, symmetry_axis
from kneematch.paper.template import cut_from_view
from kneematch.sampling import View, transform

FINE = (1.3, 1.2)  # width and height of the box around a joint, in plateau widths
EDGE_SHARE = 0.12  # half width of the windows at the margins, in widths of the box
STEPS = (0.02, 0.02, 0.02, 0.03)  # in scale, x, y and rotation
EXACT_PX = 1e-3
ZERO = 1e-4


def axis_separates(made: Phantom) -> bool:
    """Return whether the symmetry axis lies between the two plateaus."""
    left, right = made.knees
    axis = symmetry_axis(torch.from_numpy(made.radiograph.pixels))
    return left.plateau_right[0] < axis < right.plateau_left[0]


def round_trip_is_exact(halves: View) -> bool:
    """Return whether points of the halves map to the film and back to themselves."""
    points = 2 * torch.rand(100, 2, dtype=torch.float64) - 1
    there = transform(halves.to_film, points)
    back = transform(torch.linalg.inv(halves.to_film), there)
    half_px = torch.tensor([halves.size[1], halves.size[0]]) / 2
    return bool(((back - points).abs() * half_px).max() < EXACT_PX)


def true_pose_is_lowest(halves: View, made: Phantom, side: int) -> bool | None:
    """Return whether a template's energy is 0 at its own pose and higher at 80 poses around it.

    None if the boxes leave the half.
    """
    half = View(halves.pixels[side], halves.to_film[side])
    try:
        template, theta = cut_from_view(half, annotate(made.knees[side], half))
    except TemplateError:
        return None
    signs = torch.cartesian_prod(*[torch.tensor([-1, 0, 1])] * 4)
    around = (theta + signs * torch.tensor(STEPS)).to(half.pixels)[:, None]  # (81, 1, 4)
    found: Tensor = energy(paper_terms(half.pixels.expand(81, 1, *half.size), template), around)
    middle = found[40]
    others = torch.cat([found[:40], found[41:]])
    return bool(middle.abs() < ZERO) and bool(others.min() > ZERO)


def annotate(knee: Knee, half: View) -> Annotation:
    """Return boxes around a knee, clipped to its half."""
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
    """Check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first phantom")
    parser.add_argument("--height", type=int, default=400)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results: dict[str, list[tuple[str, bool]]] = {"axis": [], "round trip": [], "lowest": []}
    refused = []
    for seed in range(args.first, args.first + args.count):
        made = phantom(seed, size=(args.height, args.width))
        halves = split(film_tensor(made.radiograph))
        results["axis"].append((str(seed), axis_separates(made)))
        results["round trip"].append((str(seed), round_trip_is_exact(halves)))
        for side, name in enumerate(SIDES):
            lowest = true_pose_is_lowest(halves, made, side)
            if lowest is None:
                refused.append(f"{seed} {name}")
            else:
                results["lowest"].append((f"{seed} {name}", lowest))
    report(results, refused)
    return int(any(not good for rows in results.values() for _, good in rows))


def report(results: dict[str, list[tuple[str, bool]]], refused: list[str]) -> None:
    """Print the table, then the failures."""
    wording = {
        "axis": "symmetry axis between the knees",
        "round trip": f"half to film to half within {EXACT_PX:g} px",
        "lowest": "energy of a knee's own template lowest at its pose",
    }
    print("| property | holds | of |\n|---|---:|---:|")
    for key, rows in results.items():
        print(f"| {wording[key]} | {sum(good for _, good in rows)} | {len(rows)} |")
    for key, rows in results.items():
        failed = [name for name, good in rows if not good]
        if failed:
            print(f"\nfailed, {wording[key]}: {', '.join(failed)}")
    if refused:
        print(f"\nno template (boxes leave the half): {', '.join(refused)}")


if __name__ == "__main__":
    raise SystemExit(main())
