"""CUDA graphs of a training step.

On small batches a GPU spends more time on launching thousands of small kernels than on running
them; a recorded graph launches them all at once.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

Step = Callable[[Tensor], Tensor]  # indices (B,) of a batch's films to their loss

WARM_UPS: Final = 3  # eager runs before recording, in which libraries choose and cache their plans


class StepGraphs:
    """A training step, recorded once for each batch size.

    All that the step reads, besides the indices, has to stay in place on one GPU.
    """

    def __init__(self, step: Step, generator: torch.Generator) -> None:
        self._step, self._generator = step, generator
        self._seen: dict[int, int] = {}
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """Take a step on the films rows (B,) and return its loss."""
        count = len(rows)
        if count in self._graphs:
            graph, batch, loss = self._graphs[count]
            batch.copy_(rows)
            graph.replay()
            return loss.clone()
        self._seen[count] = self._seen.get(count, 0) + 1
        return self._warm_up(rows) if self._seen[count] <= WARM_UPS else self._record(rows)

    def _warm_up(self, rows: Tensor) -> Tensor:
        """Take an eager step on the stream on which a later one is recorded."""
        self._stream = self._stream or torch.cuda.Stream(rows.device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._step(rows)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _record(self, rows: Tensor) -> Tensor:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        batch = rows.clone()
        with torch.cuda.graph(graph):
            loss = self._step(batch)
        self._graphs[len(rows)] = graph, batch, loss
        graph.replay()
        return loss.clone()
