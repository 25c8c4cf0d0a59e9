"""Data-parallel training in several processes that torchrun started."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kneematch.devices import resolve_device

TIMEOUT: Final = timedelta(days=2)  # the other processes wait while the first one prepares films
FILMS_AT_ONCE: Final = 16  # on a CPU, in `map_films`
BYTES_PER_FILM: Final = 60_000_000  # on a GPU, in `map_films`


@dataclass(frozen=True, slots=True)
class Group:
    """The processes that train together, as one of them sees them."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"  # of this process

    @property
    def is_main(self) -> bool:
        """Whether this process reports and writes files."""
        return self.rank == 0

    def share(self, count: int, device: torch.device) -> tuple[Tensor, float]:
        """Return the films (K,) of a batch that this process works on, and their losses' weight.

        A process that gets none of a small last batch still takes part in the step, because
        gradients are exchanged: it works on the first film with weight 0, all others with 1.
        """
        if self.rank < count:
            return torch.arange(self.rank, count, self.size, device=device), 1.0
        return torch.zeros(1, dtype=torch.long, device=device), 0.0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the body in the main process first, and then in the others."""
        if not self.is_main:
            dist.barrier()
        yield
        if self.size > 1 and self.is_main:
            dist.barrier()

    def parallel(self, network: nn.Module) -> nn.Module:
        """Return the network with gradients averaged over all processes."""
        if self.size == 1:
            return network
        return nn.parallel.DistributedDataParallel(network, broadcast_buffers=True)

    def map_films(self, count: int, function: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
        """Apply a function to all N films, whole batches at a time, shared among the processes.

        The batches do not depend on the number of processes, and so neither do the results. The
        function takes indices of films (K,) to values (K, ...); `like` (...) has one value's shape,
        dtype and device. Returns values (N, ...) in every process.
        """
        values = like.new_zeros(count, *like.shape)
        batches = torch.split(torch.arange(count), _films_at_once(like.device))
        for rows in batches[self.rank :: self.size]:
            values[rows.to(values.device)] = function(rows)
        return self.sum(values)


@contextmanager
def process_group(device: str) -> Iterator[Group]:
    """Join the process group of torchrun, or give a group of this process alone.

    Every process on a machine gets a GPU of its own.
    """
    device, size = resolve_device(device), int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Group(device=device)
        return
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield Group(dist.get_rank(), size, device)
    finally:
        dist.destroy_process_group()


def _films_at_once(device: torch.device) -> int:
    """Return how many films the memory of a device holds during a refinement."""
    if device.type != "cuda":
        return FILMS_AT_ONCE
    free, _ = torch.cuda.mem_get_info(device)
    return min(max(free // BYTES_PER_FILM, 8), 512)
