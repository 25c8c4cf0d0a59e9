"""Gauss-Newton against 300 steps of Adam, from the same starts, on the paper's energy.

Two kinds of starts. Near the truth: the true pose with its scale off by up to 12 %, its centre by
up to 20 % of the half-width of a half image (50 of its 250 pixels) across and as many pixels down,
its rotation by up to 0.05 rad, each uniformly and for each side on its own. From a coarse search:
the best pair of minima of the correlation bank, before any sharpening.

Run it as `python benchmarks/sharpening.py` (`--real FOLDER` adds labelled real films, `--help`
lists the options); it prints a Markdown table. Times are those of one run, method after method on
each batch.
"""

import argparse
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from films import (
    Film,
    halves_of,
    known,
    options,
    sets_of_films,
    share_worse,
    table,
    timed,
    true_vectors,
)
from kneematch.geometry.pose import pose_from_vector, vector_from_pose
from kneematch.matching.energy import losses, symmetry_penalty
from kneematch.matching.template import Template
from kneematch.solvers.adam import STEPS, adam
from kneematch.solvers.gauss_newton import gauss_newton
from kneematch.solvers.ncc_bank import minima
from kneematch.solvers.problem import Problem, Sharpener, problem
from kneematch.solvers.pyramid import pyramid

SCALE_OFF, CENTRE_OFF, ROTATION_OFF = 0.12, 0.2, 0.05
WORSE = 0.005
CANDIDATES, SHRINK = 16, 8  # of each side; the resolution at which pairs are judged


def near_truth(films: Sequence[Film], template: Template, question: Problem, seed: int) -> Tensor:
    """True vectors, perturbed: (N, 2, 4)."""
    theta = pose_from_vector(true_vectors(films, template), question.height_ratio)
    generator = torch.Generator().manual_seed(seed)
    off = 2 * torch.rand(theta.shape, generator=generator, dtype=torch.float64) - 1
    scale = theta[..., :1] * (1 + SCALE_OFF * off[..., :1])
    shift = CENTRE_OFF * off[..., 1:3] / torch.tensor([1.0, question.image_aspect])
    rotation = theta[..., 3:] + ROTATION_OFF * off[..., 3:]
    theta = torch.cat([scale, theta[..., 1:3] + shift, rotation], dim=-1)
    return vector_from_pose(theta, question.height_ratio).to(question.halves)


def from_coarse_search(question: Problem) -> Tensor:
    """The best pair of the bank's minima: (N, 2, 4)."""
    theta = minima(question, CANDIDATES)  # (N, 2, K, 4)
    small = pyramid(question, (SHRINK,))[SHRINK]
    loss = torch.stack([losses(small.terms, theta[:, :, k]) for k in range(CANDIDATES)], dim=-1)
    left, right = torch.cartesian_prod(*[torch.arange(CANDIDATES, device=loss.device)] * 2).T
    pairs = torch.stack([theta[:, 0, left], theta[:, 1, right]], dim=2)  # (N, K^2, 2, 4)
    value = loss[:, 0, left] + loss[:, 1, right] + symmetry_penalty(pairs)
    best = pairs[torch.arange(len(pairs), device=loss.device), value.argmin(1)]
    return vector_from_pose(best, question.height_ratio)


def compare(
    films: Sequence[Film], template: Template, chosen: argparse.Namespace, kind: str
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Energies (N,) and seconds of each method, the start among them."""
    methods: dict[str, Sharpener] = {
        "gauss_newton": gauss_newton,
        "adam": functools.partial(adam, steps=chosen.steps),
    }
    energies: dict[str, list[Tensor]] = {name: [] for name in ("start", *methods)}
    seconds = dict.fromkeys(methods, 0.0)
    for first in range(0, len(films), chosen.batch):
        some = films[first : first + chosen.batch]
        question = problem(halves_of(some, chosen.device), template, paper=True)
        near = kind == "near the truth"
        start = (
            near_truth(some, template, question, first) if near else from_coarse_search(question)
        )
        energies["start"].append(question.energy(start).cpu())
        for name, method in methods.items():
            if first == 0:  # to warm up
                method(question, start)
            found, taken = timed(functools.partial(method, question, start))
            energies[name].append(found.energy.cpu())
            seconds[name] += taken
    return {name: torch.cat(parts) for name, parts in energies.items()}, seconds


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, films=200)
    parser.add_argument("--steps", type=int, default=STEPS, help="of Adam")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    rows = []
    for label, films, template in sets_of_films(chosen):
        films = known(films)
        for kind in ("near the truth", "coarse search"):
            energies, seconds = compare(films, template, chosen, kind)
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
    print(f"Device {chosen.device}, batches of {chosen.batch}, {chosen.steps} steps of Adam.\n")
    table(
        (
            "starts",
            "films",
            "mean energy of the starts",
            "Gauss-Newton's",
            "Adam's",
            f"Gauss-Newton worse by > {WORSE}",
            f"Adam worse by > {WORSE}",
            "Gauss-Newton ms a film",
            "Adam ms a film",
            "times faster",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
