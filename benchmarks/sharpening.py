"""Compare Gauss-Newton with 300 steps of Adam from the same starts, on the paper's energy.

    python benchmarks/sharpening.py [--films N] [--real FOLDER]

Gauss-Newton is the anchored refinement without its anchor (trust 0).

Two kinds of starts. "near the truth": the true pose with its scale off by up to 12 %, its centre by
up to 20 % of the half-width of a half (50 of its 250 pixels) across and as many pixels down, and
its rotation by up to 0.05 rad, each uniformly and independently for each side. "coarse search": the
best pair of minima of the NCC bank. Columns: mean energies, the share of films on which either
method ends higher by more than 0.005, and the times per film of one run.
"""

import argparse
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from films import (
    Film,
    benchmark_parser,
    halves_of,
    known,
    sets_of_films,
    share_worse,
    table,
    timed,
    true_vectors,
)
from kneematch.paper.energy import losses, symmetry_penalty
from kneematch.paper.pose import pose_from_vector, vector_from_pose
from kneematch.paper.problem import Problem, Refiner, make_problem, pyramid
from kneematch.paper.sharpening import adam
from kneematch.paper.template import Template
from kneematch.search.anchored_refinement import refine_anchored
from kneematch.search.ncc_bank import bank_minima
from kneematch.search.settings import STEPS

SCALE_OFF, CENTRE_OFF, ROTATION_OFF = 0.12, 0.2, 0.05
WORSE = 0.005
CANDIDATES = 16  # minima of the NCC bank per side
SHRINK = 8  # reduction of the halves on which pairs of them are compared


def near_truth(films: Sequence[Film], template: Template, problem: Problem, seed: int) -> Tensor:
    """Return perturbed true vectors (N, 2, 4)."""
    theta = pose_from_vector(true_vectors(films, template), problem.height_ratio)
    generator = torch.Generator().manual_seed(seed)
    off = 2 * torch.rand(theta.shape, generator=generator, dtype=torch.float64) - 1
    scale = theta[..., :1] * (1 + SCALE_OFF * off[..., :1])
    shift = CENTRE_OFF * off[..., 1:3] / torch.tensor([1.0, problem.image_aspect])
    rotation = theta[..., 3:] + ROTATION_OFF * off[..., 3:]
    theta = torch.cat([scale, theta[..., 1:3] + shift, rotation], dim=-1)
    return vector_from_pose(theta, problem.height_ratio).to(problem.halves)


def from_coarse_search(problem: Problem) -> Tensor:
    """Return the best pair of the NCC bank's minima (N, 2, 4)."""
    theta = bank_minima(problem, CANDIDATES)  # (N, 2, K, 4)
    small = pyramid(problem, (SHRINK,))[SHRINK]
    loss = torch.stack([losses(small.terms, theta[:, :, k]) for k in range(CANDIDATES)], dim=-1)
    left, right = torch.cartesian_prod(*[torch.arange(CANDIDATES, device=loss.device)] * 2).T
    pairs = torch.stack([theta[:, 0, left], theta[:, 1, right]], dim=2)  # (N, K^2, 2, 4)
    value = loss[:, 0, left] + loss[:, 1, right] + symmetry_penalty(pairs)
    best = pairs[torch.arange(len(pairs), device=loss.device), value.argmin(1)]
    return vector_from_pose(best, problem.height_ratio)


def compare(
    films: Sequence[Film], template: Template, args: argparse.Namespace, kind: str
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the energies (N,) of the starts and of each method, and each method's seconds."""
    methods: dict[str, Refiner] = {
        "gauss_newton": functools.partial(refine_anchored, trust=0.0),
        "adam": functools.partial(adam, steps=args.steps),
    }
    energies: dict[str, list[Tensor]] = {name: [] for name in ("start", *methods)}
    seconds = dict.fromkeys(methods, 0.0)
    for first in range(0, len(films), args.batch):
        some = films[first : first + args.batch]
        problem = make_problem(halves_of(some, args.device), template, paper=True)
        near = kind == "near the truth"
        start = near_truth(some, template, problem, first) if near else from_coarse_search(problem)
        energies["start"].append(problem.energy(start).cpu())
        for name, method in methods.items():
            if first == 0:  # to warm up
                method(problem, start)
            found, taken = timed(functools.partial(method, problem, start))
            energies[name].append(found.energy.cpu())
            seconds[name] += taken
    return {name: torch.cat(parts) for name, parts in energies.items()}, seconds


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__, films=200)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of Adam")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for label, films, template in sets_of_films(args):
        films = known(films)
        for kind in ("near the truth", "coarse search"):
            energies, seconds = compare(films, template, args, kind)
            newton, plain = energies["gauss_newton"], energies["adam"]
            milliseconds = {name: 1000 * taken / len(films) for name, taken in seconds.items()}
            rows.append(
                [
                    f"{label}, {kind}",
                    str(len(films)),
                    f"{energies['start'].mean():.4f}",
                    f"{newton.mean():.4f}",
                    f"{plain.mean():.4f}",
                    f"{100 * share_worse(newton, plain, WORSE):.1f} %",
                    f"{100 * share_worse(plain, newton, WORSE):.1f} %",
                    f"{milliseconds['gauss_newton']:.1f}",
                    f"{milliseconds['adam']:.1f}",
                    f"{seconds['adam'] / seconds['gauss_newton']:.1f}",
                ]
            )
    print(f"Device {args.device}, batches of {args.batch}, {args.steps} steps of Adam.\n")
    table(
        (
            "starts",
            "films",
            "mean energy of the starts",
            "Gauss-Newton's",
            "Adam's",
            f"Gauss-Newton worse by > {WORSE}",
            f"Adam worse by > {WORSE}",
            "Gauss-Newton ms per film",
            "Adam ms per film",
            "times faster",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
