"""The search against the grid of the paper's appendix, on the paper's energy.

The grid descends from some ten thousand starts a film: on a CPU that is hours a film, so run it on
a GPU (`--device cuda`) or on smaller halves (`--shrink 4`) and fewer starts.

Run it as `python benchmarks/grid.py --films 4 --device cuda` (`--real FOLDER` adds labelled real
films, `--help` lists the options); it prints a Markdown table, and the time left on stderr.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from films import Film, halves_of, options, sets_of_films, share_worse, table, timed
from kneematch.matching.template import Template
from kneematch.solvers.adam import STEPS
from kneematch.solvers.exhaustive_search import search
from kneematch.solvers.grid_search import CHUNK, N_SCALES, STRIDE, grid, grid_starts
from kneematch.solvers.problem import Problem, problem
from kneematch.solvers.pyramid import pyramid

WORSE = 0.005


def question(films: Sequence[Film], template: Template, chosen: argparse.Namespace) -> Problem:
    """The paper's problem at the resolution that was asked for."""
    whole = problem(halves_of(films, chosen.device), template, paper=True)
    return pyramid(whole, (chosen.shrink,))[chosen.shrink]


def tell(start: float, done: int, total: int) -> None:
    """Progress and time left, on stderr."""
    left = (time.perf_counter() - start) * (total - done) / done
    print(f"\r{done} of {total} starts, {left:.0f} s left   ", end="", file=sys.stderr, flush=True)
    if done == total:
        print(file=sys.stderr)


def by_search(films: Sequence[Film], template: Template, chosen: argparse.Namespace) -> Tensor:
    """Energies (N,)."""
    return search(question(films, template, chosen)).energy


def by_grid(films: Sequence[Film], template: Template, chosen: argparse.Namespace) -> Tensor:
    """Energies (N,)."""
    start = time.perf_counter()
    asked = question(films, template, chosen)
    return grid(
        asked,
        starts=some_starts(asked, chosen),
        steps=chosen.steps,
        chunk=chosen.chunk,
        progress=lambda done, total: tell(start, done, total),
    ).energy


def some_starts(asked: Problem, chosen: argparse.Namespace) -> Tensor:
    """All starts of the appendix, or as many random ones of them as asked for."""
    starts = grid_starts(asked, chosen.scales, chosen.stride)
    order = torch.randperm(len(starts), generator=torch.Generator().manual_seed(chosen.seed))
    return starts[order[: chosen.sample]] if chosen.sample else starts


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, films=4)
    parser.add_argument("--scales", type=int, default=N_SCALES, help="N_s")
    parser.add_argument("--stride", type=float, default=STRIDE, help="r")
    parser.add_argument("--steps", type=int, default=STEPS, help="of Adam")
    parser.add_argument("--chunk", type=int, default=CHUNK, help="starts at once")
    parser.add_argument("--shrink", type=int, default=1, help="halves this many times smaller")
    parser.add_argument("--sample", type=int, help="descend from so many random starts only")
    parser.add_argument("--real-films", type=int, help="of the real films only the first ones")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    rows, energies = [], []
    for label, films, template in sets_of_films(chosen):
        if label == "real":
            films = films[: chosen.real_films]
        by_search(films[:1], template, chosen)  # to warm up
        fast, fast_seconds = timed(lambda f=films, t=template: by_search(f, t, chosen))
        slow, slow_seconds = timed(lambda f=films, t=template: by_grid(f, t, chosen))
        first = question(films[:1], template, chosen)
        starts = len(grid_starts(first, chosen.scales, chosen.stride))
        slow_seconds *= starts / len(some_starts(first, chosen))
        rows.append(
            [
                label,
                str(len(films)),
                str(starts),
                f"{fast.mean():.4f}",
                f"{slow.mean():.4f}",
                f"{100 * share_worse(fast, slow, WORSE):.0f} %",
                f"{100 * share_worse(slow, fast, WORSE):.0f} %",
                f"{fast_seconds / len(films):.3f}",
                f"{slow_seconds / len(films):.1f}",
                f"{slow_seconds / fast_seconds:.0f}",
            ]
        )
        energies += [
            [film.name, f"{one:.4f}", f"{other:.4f}"]
            for film, one, other in zip(films, fast.tolist(), slow.tolist(), strict=True)
        ]
    print(
        f"Device {chosen.device}, {chosen.scales} scales, stride {chosen.stride}, {chosen.steps} "
        f"steps, halves {chosen.shrink} times smaller than 800 x 500.\n"
    )
    if chosen.sample:
        print(f"The grid's time is that of {chosen.sample} starts, scaled to all of them.\n")
    table(
        (
            "films",
            "number",
            "starts a film",
            "search, mean energy",
            "grid, mean energy",
            f"search worse by > {WORSE}",
            f"grid worse by > {WORSE}",
            "search s a film",
            "grid s a film",
            "times faster",
        ),
        rows,
    )
    table(("film", "search", "grid"), energies)


if __name__ == "__main__":
    main()
