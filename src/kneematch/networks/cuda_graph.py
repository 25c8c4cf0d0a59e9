"""A minimiser recorded as one CUDA graph, for batches too small to keep a GPU busy.

A search is thousands of small kernels; launched one by one they take longer to start than to run.
"""

from collections.abc import Callable, MutableMapping
from typing import Final

import torch
from torch import Tensor

from kneematch.solvers.problem import Solution

Solve = Callable[[Tensor], Solution]  # from halves (N, S, H, W), and nothing that is not on the GPU

WARM_UPS: Final = 3  # runs before the recording, in which libraries choose and cache their plans


class Graphed:
    """Solve for halves of one shape on one GPU by replaying what solve did."""

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
        """The solution for halves (N, S, H, W) of the recorded shape."""
        self._halves.copy_(halves)
        self._graph.replay()
        return Solution(self._solution.v.clone(), self._solution.energy.clone())


def replayed(
    solve: Solve, halves: Tensor, recorded: MutableMapping[torch.Size, Graphed | None]
) -> Solution:
    """Solve, recording what is done for halves of a shape that is met for the second time."""
    if halves.shape not in recorded:
        recorded[halves.shape] = None
        return solve(halves)
    graph = recorded[halves.shape] or Graphed(solve, halves)
    recorded[halves.shape] = graph
    return graph(halves)
