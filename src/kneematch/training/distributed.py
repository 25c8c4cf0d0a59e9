"""The processes that train together: who does which films, and what all of them know."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

PATIENCE: Final = timedelta(days=2)  # while the first process prepares films, the others wait


@dataclass(frozen=True, slots=True)
class Group:
    """One of `size` processes."""

    rank: int = 0
    size: int = 1

    def share(self, count: int, device: torch.device) -> tuple[Tensor, float]:
        """Which films of a batch are this process's, and whether they count.

        A process without a film of a small last batch takes part, but does not count.
        """
        if self.rank < count:
            return torch.arange(self.rank, count, self.size, device=device), 1.0
        return torch.zeros(1, dtype=torch.long, device=device), 0.0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, which each of them gets."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def wait_for_first(self) -> None:
        """Let the first process go ahead, whose work the others then find done."""
        if self.rank:
            dist.barrier()

    def first_is_done(self) -> None:
        """The other end of `wait_for_first`."""
        if self.size > 1 and not self.rank:
            dist.barrier()

    def wrapped(self, network: nn.Module) -> nn.Module:
        """The network whose gradients are the mean of all processes'."""
        if self.size == 1:
            return network
        return nn.parallel.DistributedDataParallel(network, broadcast_buffers=True)

    def each(
        self, count: int, batch_size: int, answer: Callable[[Tensor], Tensor], like: Tensor
    ) -> Tensor:
        """Answers (count, ...) about all films, each process giving its own batch by batch.

        Args:
            count: number of films.
            batch_size: films that are answered at once.
            answer: from rows (K,) to answers (K, ...).
            like: (...), of the answers' shape, type and device.
        """
        found = like.new_zeros(count, *like.shape)
        # Each batch is the same whoever does it, so that answers do not depend on the group.
        for rows in self.batches(torch.split(torch.arange(count), batch_size)):
            found[rows.to(found.device)] = answer(rows)
        return self.sum(found)

    def batches(self, batches: Sequence[Tensor]) -> Sequence[Tensor]:
        """Whole batches of this process."""
        return batches[self.rank :: self.size]


def join() -> Group:
    """The group that torchrun started, or this process alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Group()
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
    return Group(dist.get_rank(), size)


def leave(group: Group) -> None:
    """End the group, if there is one."""
    if group.size > 1:
        dist.destroy_process_group()
