"""CUDA graphs of a solver and of a training step.

On small batches a GPU spends more time on launching thousands of small kernels than on running
them; a recorded graph launches them all at once.
"""

from collections.abc import Callable, MutableMapping
from typing import Final

import torch
from torch import Tensor

from kneematch.solvers.problem import Solution

Solve = Callable[[Tensor], Solution]  # halves (N, S, H, W) to poses; reads nothing off the GPU
Step = Callable[[Tensor], Tensor]  # indices (B,) of a batch's films to their loss

WARM_UPS: Final = 3  # eager runs before recording, in which libraries choose and cache their plans


class SolverGraph:
    """A solver recorded for halves of one shape on one GPU."""

    def __init__(self, solve: Solve, halves: Tensor) -> None:
        self._halves = halves.clone()
        side = torch.cuda.Stream(halves.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(halves.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                solve(self._halves)
        torch.cuda.current_stream(halves.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._solution = solve(self._halves)

    def __call__(self, halves: Tensor) -> Solution:
        """Return the solution for halves (N, S, H, W) of the recorded shape."""
        self._halves.copy_(halves)
        self._graph.replay()
        return Solution(self._solution.v.clone(), self._solution.energy.clone())


def solve_with_graph(
    solve: Solve, halves: Tensor, graphs: MutableMapping[torch.Size, SolverGraph | None]
) -> Solution:
    """Solve for halves (N, S, H, W), recording a graph when a shape comes for the second time.

    Args:
        solve: the solver.
        halves: on a GPU.
        graphs: what was recorded so far, by shape; None for a shape that was seen once. It is
            updated.
    """
    if halves.shape not in graphs:
        graphs[halves.shape] = None
        return solve(halves)
    graph = graphs[halves.shape] or SolverGraph(solve, halves)
    graphs[halves.shape] = graph
    return graph(halves)


class StepGraphs:
    """A training step, recorded once for each batch size."""

    def __init__(self, generator: torch.Generator) -> None:
        self.on = False  # to be set where all that a step reads stays in place on one GPU
        self._generator = generator
        self._seen: dict[int, int] = {}
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, step: Step, rows: Tensor) -> Tensor:
        """Take a step on the films rows (B,) and return its loss."""
        count = len(rows)
        if not self.on:
            return step(rows)
        if count in self._graphs:
            graph, batch, loss = self._graphs[count]
            batch.copy_(rows)
            graph.replay()
            return loss.clone()
        self._seen[count] = self._seen.get(count, 0) + 1
        if self._seen[count] <= WARM_UPS:
            return self._warm_up(step, rows)
        return self._record(step, rows)

    def _warm_up(self, step: Step, rows: Tensor) -> Tensor:
        """Take an eager step on the stream on which a later one is recorded."""
        self._stream = self._stream or torch.cuda.Stream(rows.device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = step(rows)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _record(self, step: Step, rows: Tensor) -> Tensor:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        batch = rows.clone()
        with torch.cuda.graph(graph):
            loss = step(batch)
        self._graphs[len(rows)] = graph, batch, loss
        graph.replay()
        return loss.clone()
