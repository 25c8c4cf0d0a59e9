"""Films a second of every method on a GPU, at several batch sizes.

The time of a call is that between two CUDA events around it, the halves being on the GPU already.
What of it no kernel runs is the overhead of launching kernels: one less the sum of the kernels' own
times, as PyTorch's profiler has them in another call, over the time of a call.

Run it as `python benchmarks/gpu.py` (`--help` lists the options; `--device cpu` tries it out
without a GPU); it prints a Markdown table.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from films import halves_of, options, phantom_films
from kneematch.matching.template import Template
from kneematch.networks.cuda_graph import Graphed
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.networks.two_stage import TwoPhases, neural, sharpened
from kneematch.solvers.adam import STEPS, adam
from kneematch.solvers.anchored_refinement import nearby
from kneematch.solvers.exhaustive_search import search
from kneematch.solvers.gauss_newton import gauss_newton
from kneematch.solvers.problem import Problem, Solution, problem

GRAPHED = ("search", "neural", "neural+sharpen")
COLUMNS = ("method", "batch", "ms a call", "films a second", "launch overhead", "peak memory GB")


def question(halves: Tensor, template: Template, batch: int, *, paper: bool) -> Problem:
    """As many films as asked for, the same few over and over."""
    copies = -(-batch // len(halves))
    return problem(halves.repeat(copies, 1, 1, 1)[:batch].contiguous(), template, paper=paper)


def milliseconds(call: Callable[[], object], repeats: int, *, cuda: bool) -> float:
    """The median time of a call."""
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
    """The sum of the times of all kernels that a call launches."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1000


def methods(
    chosen: argparse.Namespace, networks: TwoPhases
) -> dict[str, Callable[[Problem, Tensor], Solution]]:
    """Each from a problem and a start, which only the sharpenings need."""
    ask = neural(networks)
    return {
        "adam": functools.partial(adam, steps=chosen.steps),
        "gauss_newton": gauss_newton,
        "search": lambda asked, _: search(asked),
        "neural": lambda asked, _: ask(asked),
        "neural+sharpen": lambda asked, _: sharpened(networks, nearby)(asked),
    }


def graphed(
    asked: Problem, method: Callable[[Problem, Tensor], Solution], *, paper: bool
) -> Callable[[], Solution]:
    """A method on films of one shape, recorded once and replayed."""
    start = asked.halves.new_zeros(len(asked.halves), 2, 4)

    def solve(halves: Tensor) -> Solution:
        return method(problem(halves, asked.template, paper=paper), start)

    replay = Graphed(solve, asked.halves)
    return lambda: replay(asked.halves)


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, films=32)
    parser.set_defaults(device="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--repeats", type=int, default=5, help="calls of which the median counts")
    parser.add_argument("--steps", type=int, default=STEPS, help="of Adam")
    names = ["adam", "gauss_newton", "search", "neural", "neural+sharpen"]
    parser.add_argument("--methods", nargs="+", default=names)
    parser.add_argument("--robust", action="store_true", help="instead of the paper's energy")
    parser.add_argument("--graph-up-to", type=int, default=64, help="films a batch")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    cuda = torch.device(chosen.device).type == "cuda"
    model = load_model(shipped_model())
    template = model.fine_template
    ways = methods(chosen, model.networks(chosen.device))
    films = phantom_films(range(chosen.seed, chosen.seed + min(chosen.films, max(chosen.batches))))
    halves = halves_of(films, chosen.device)
    name = torch.cuda.get_device_name() if cuda else "CPU"
    energy = "the robust" if chosen.robust else "the paper's"
    print(f"{name}, {energy} energy, template of {template.size[1]} x {template.size[0]}.\n")
    print(f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}")
    paper = not chosen.robust
    for batch in chosen.batches:
        asked = question(halves, template, batch, paper=paper)
        start = asked.halves.new_zeros(batch, 2, 4)
        calls = {
            name: functools.partial(method, asked, start)
            for name, method in ways.items()
            if name in chosen.methods
        }
        if cuda and batch <= chosen.graph_up_to:
            for name in GRAPHED:
                call = graphed(asked, ways[name], paper=paper)
                calls[f"{name}, as a CUDA graph"] = call
        for name, call in calls.items():
            print(
                f"| {' | '.join(row(name, batch, call, chosen.repeats, cuda=cuda))} |", flush=True
            )


def row(
    name: str, batch: int, call: Callable[[], object], repeats: int, *, cuda: bool
) -> tuple[str, ...]:
    """What a call costs, as the table has it."""
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
