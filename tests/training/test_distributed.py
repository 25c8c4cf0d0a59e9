"""Processes that train together: every film is someone's, once."""

import pytest
import torch

from kneematch.training import distributed as processes
from kneematch.training.distributed import Group, join, leave

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 4, 7, 24])
def test_every_film_of_a_batch_counts_once(count: int, size: int) -> None:
    shares = [Group(rank, size).share(count, CPU) for rank in range(size)]
    counted = [row for rows, counts in shares if counts for row in rows.tolist()]
    assert sorted(counted) == list(range(count))
    assert {counts for _, counts in shares} <= {0.0, 1.0}
    assert all(len(rows) for rows, _ in shares)  # whoever has no film still takes part


@pytest.mark.parametrize("size", [1, 2, 3])
def test_answers_are_put_together_from_every_process(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.dist, "all_reduce", lambda values: None)
    asked: list[list[int]] = []

    def answer(rows: torch.Tensor) -> torch.Tensor:
        asked.append(rows.tolist())
        return torch.stack([rows, rows**2], dim=-1).double()

    like = torch.zeros(2, dtype=torch.float64)
    parts = [Group(rank, size).each(7, 3, answer, like) for rank in range(size)]
    numbers = torch.arange(7, dtype=torch.float64)
    assert torch.equal(sum(parts), torch.stack([numbers, numbers**2], dim=-1))
    assert sorted(asked) == [[0, 1, 2], [3, 4, 5], [6]]  # the same batches, whoever does them


def test_alone_nothing_is_sent_or_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "dist", None)
    alone, network = Group(), torch.nn.Linear(1, 1)
    alone.wait_for_first()
    alone.first_is_done()
    leave(alone)
    assert alone.wrapped(network) is network
    assert float(alone.sum(torch.tensor(3.0))) == 3


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join() == Group(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert join() == Group(0, 1)
