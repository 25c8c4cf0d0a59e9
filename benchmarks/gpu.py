"""Measure the throughput of every method on a GPU at several batch sizes.

    python benchmarks/gpu.py [--robust] [--batches N ...]    # --device cpu tries it without a GPU

Columns: "ms per call" is the time between two CUDA events around a call, the halves being on the
GPU already; "launch overhead" is the share of it in which no kernel runs, one minus the sum of the
kernels' own times, as PyTorch's profiler reports them for another call, over the time of a call.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from films import benchmark_parser, halves_of, phantom_films
from kneematch.matching.template import Template
from kneematch.networks.cuda_graph import SolverGraph
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.networks.two_stage import TwoStageNetworks, network_solver, refined_network_solver
from kneematch.solvers.adam import adam
from kneematch.solvers.anchored_refinement import refine_anchored
from kneematch.solvers.exhaustive_search import exhaustive_search
from kneematch.solvers.problem import Problem, Solution, make_problem
from kneematch.solvers.settings import STEPS

GRAPHED = ("search", "neural", "neural+sharpen")
COLUMNS = (
    "method",
    "batch",
    "ms per call",
    "films per second",
    "launch overhead",
    "peak memory GB",
)


def repeated_problem(halves: Tensor, template: Template, batch: int, *, paper: bool) -> Problem:
    """Return a problem of `batch` films, repeating a few."""
    copies = -(-batch // len(halves))
    return make_problem(halves.repeat(copies, 1, 1, 1)[:batch].contiguous(), template, paper=paper)


def milliseconds(call: Callable[[], object], repeats: int, *, cuda: bool) -> float:
    """Return the median time of a call."""
    call()  # to warm up
    times = []
    for _ in range(repeats):
        if cuda:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            call()
            after.record()
            torch.cuda.synchronize()
            times.append(before.elapsed_time(after))
        else:
            start = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def kernel_milliseconds(call: Callable[[], object]) -> float:
    """Return the summed time of all kernels that a call launches."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1000


def methods(
    args: argparse.Namespace, networks: TwoStageNetworks
) -> dict[str, Callable[[Problem, Tensor], Solution]]:
    """Return functions of a problem and a start, which only refinements use."""
    ask = network_solver(networks)
    return {
        "adam": functools.partial(adam, steps=args.steps),
        "gauss_newton": functools.partial(refine_anchored, trust=0.0),
        "search": lambda problem, _: exhaustive_search(problem),
        "neural": lambda problem, _: ask(problem),
        "neural+sharpen": lambda problem, _: refined_network_solver(networks, refine_anchored)(
            problem
        ),
    }


def graphed(
    problem: Problem, method: Callable[[Problem, Tensor], Solution], *, paper: bool
) -> Callable[[], Solution]:
    """Capture a method for films of one shape as a CUDA graph; return its replay."""
    start = problem.halves.new_zeros(len(problem.halves), 2, 4)

    def solve(halves: Tensor) -> Solution:
        return method(make_problem(halves, problem.template, paper=paper), start)

    replay = SolverGraph(solve, problem.halves)
    return lambda: replay(problem.halves)


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(__doc__, films=32)
    parser.set_defaults(device="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--repeats", type=int, default=5, help="calls to take the median of")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of Adam")
    names = ["adam", "gauss_newton", "search", "neural", "neural+sharpen"]
    parser.add_argument("--methods", nargs="+", default=names)
    parser.add_argument("--robust", action="store_true", help="minimise the robust energy")
    parser.add_argument("--graph-up-to", type=int, default=64, help="largest batch with a graph")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cuda = torch.device(args.device).type == "cuda"
    model = load_model(shipped_model())
    template = model.fine_template
    ways = methods(args, model.networks(args.device))
    films = phantom_films(range(args.seed, args.seed + min(args.films, max(args.batches))))
    halves = halves_of(films, args.device)
    name = torch.cuda.get_device_name() if cuda else "CPU"
    energy = "the robust" if args.robust else "the paper's"
    print(f"{name}, {energy} energy, template of {template.size[1]} x {template.size[0]}.\n")
    print(f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}")
    paper = not args.robust
    for batch in args.batches:
        problem = repeated_problem(halves, template, batch, paper=paper)
        start = problem.halves.new_zeros(batch, 2, 4)
        calls = {
            name: functools.partial(method, problem, start)
            for name, method in ways.items()
            if name in args.methods
        }
        if cuda and batch <= args.graph_up_to:
            for name in GRAPHED:
                call = graphed(problem, ways[name], paper=paper)
                calls[f"{name}, as a CUDA graph"] = call
        for name, call in calls.items():
            print(f"| {' | '.join(row(name, batch, call, args.repeats, cuda=cuda))} |", flush=True)


def row(
    name: str, batch: int, call: Callable[[], object], repeats: int, *, cuda: bool
) -> tuple[str, ...]:
    """Measure a call and return its cells."""
    if not cuda:
        taken = milliseconds(call, repeats, cuda=False)
        return name, str(batch), f"{taken:.1f}", f"{1000 * batch / taken:.0f}", "-", "-"
    torch.cuda.reset_peak_memory_stats()
    taken = milliseconds(call, repeats, cuda=True)
    memory = torch.cuda.max_memory_allocated() / 1e9
    overhead = 100 * max(0.0, 1 - kernel_milliseconds(call) / taken)
    speed = f"{taken:.1f}", f"{1000 * batch / taken:.0f}"
    return name, str(batch), *speed, f"{overhead:.0f} %", f"{memory:.1f}"


if __name__ == "__main__":
    main()
