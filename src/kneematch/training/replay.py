"""A training step recorded as a CUDA graph: for small batches, launching takes longer than work."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

Step = Callable[[Tensor], Tensor]  # from the films (B,) of a batch to their loss

WARM_UPS: Final = 3  # steps that are taken one by one before the next one is recorded


class Replay:
    """Take a step on a batch, replaying what earlier steps on batches of its size did."""

    def __init__(self, generator: torch.Generator) -> None:
        self.on = False  # everything that the step reads stays where it is, on one GPU
        self._generator = generator
        self._seen: dict[int, int] = {}
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, step: Step, rows: Tensor) -> Tensor:
        """The step's result; what it changed it has changed."""
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
            return self._aside(step, rows)
        return self._record(step, rows)

    def _aside(self, step: Step, rows: Tensor) -> Tensor:
        """A step on the stream on which the next one is recorded."""
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
