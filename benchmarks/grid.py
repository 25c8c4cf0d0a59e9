"""Compare the exhaustive search with the grid search of the paper's appendix, on its energy.

    python benchmarks/grid.py --films 4 --device cuda [--real FOLDER]

The grid search descends from some ten thousand starts per film, which takes hours per film on a
CPU; run it on a GPU, or on smaller halves (`--shrink 4`) and fewer starts (`--sample`). Columns:
mean energies, the share of films on which either ends higher by more than 0.005, and seconds per
film; a second table has the energies of every film. Progress is shown on stderr.
"""

import argparse
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from films import Film, benchmark_parser, halves_of, sets_of_films, share_worse, table, timed
from kneematch.paper.grid_search import CHUNK, grid_starts, lowest_descent
from kneematch.paper.problem import Problem, make_problem, pyramid
from kneematch.paper.template import Template
from kneematch.search.exhaustive_search import exhaustive_search
from kneematch.search.settings import N_SCALES, STEPS, STRIDE

WORSE = 0.005


def shrunk_problem(films: Sequence[Film], template: Template, args: argparse.Namespace) -> Problem:
    """Return the paper's problem at the resolution of --shrink."""
    whole = make_problem(halves_of(films, args.device), template, paper=True)
    return pyramid(whole, (args.shrink,))[args.shrink]


def by_search(films: Sequence[Film], template: Template, args: argparse.Namespace) -> Tensor:
    """Return the energies (N,) of the exhaustive search."""
    problem = shrunk_problem(films, template, args)
    return problem.energy(exhaustive_search(problem))


def by_grid(films: Sequence[Film], template: Template, args: argparse.Namespace) -> Tensor:
    """Return the energies (N,) of the grid search."""
    found = []
    for number, film in enumerate(films):
        print(f"\r{number} of {len(films)} films   ", end="", file=sys.stderr, flush=True)
        problem = shrunk_problem([film], template, args)
        starts = some_starts(problem, args)
        v = lowest_descent(problem, starts, steps=args.steps, chunk=args.chunk)
        found.append(problem.energy(v))
    return torch.cat(found)


def some_starts(problem: Problem, args: argparse.Namespace) -> Tensor:
    """Return all starts of the appendix, or a random sample of --sample."""
    starts = grid_starts(problem, args.scales, args.stride)
    order = torch.randperm(len(starts), generator=torch.Generator().manual_seed(args.seed))
    return starts[order[: args.sample]] if args.sample else starts


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__, films=4)
    parser.add_argument("--scales", type=int, default=N_SCALES, help="N_s")
    parser.add_argument("--stride", type=float, default=STRIDE, help="r")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of Adam")
    parser.add_argument("--chunk", type=int, default=CHUNK, help="starts per batch")
    parser.add_argument("--shrink", type=int, default=1, help="factor by which halves are reduced")
    parser.add_argument("--sample", type=int, help="number of random starts instead of all")
    parser.add_argument("--real-films", type=int, help="number of real films")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows, energies = [], []
    for label, films, template in sets_of_films(args):
        if label == "real":
            films = films[: args.real_films]
        by_search(films[:1], template, args)  # to warm up
        fast, fast_seconds = timed(lambda f=films, t=template: by_search(f, t, args))
        slow, slow_seconds = timed(lambda f=films, t=template: by_grid(f, t, args))
        first = shrunk_problem(films[:1], template, args)
        starts = len(grid_starts(first, args.scales, args.stride))
        slow_seconds *= starts / len(some_starts(first, args))
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
        f"Device {args.device}, {args.scales} scales, stride {args.stride}, {args.steps} "
        f"steps, halves {args.shrink} times smaller than 800 x 500.\n"
    )
    if args.sample:
        print(f"The grid's time is that of {args.sample} starts, scaled to all of them.\n")
    table(
        (
            "films",
            "number",
            "starts per film",
            "search, mean energy",
            "grid, mean energy",
            f"search worse by > {WORSE}",
            f"grid worse by > {WORSE}",
            "search, s per film",
            "grid, s per film",
            "times faster",
        ),
        rows,
    )
    table(("film", "search", "grid"), energies)


if __name__ == "__main__":
    main()
