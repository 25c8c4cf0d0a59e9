"""Tests of the process group: every film is computed by one process, once."""

import pytest
import torch

from kneematch.training import distributed
from kneematch.training.distributed import Group, process_group

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 4, 7, 24])
def test_share_counts_every_film_of_a_batch_once(count: int, size: int) -> None:
    shares = [Group(rank, size).share(count, CPU) for rank in range(size)]
    counted = [row for rows, weight in shares if weight for row in rows.tolist()]
    assert sorted(counted) == list(range(count))
    assert {weight for _, weight in shares} <= {0.0, 1.0}
    assert all(len(rows) for rows, _ in shares)  # a process without a film still takes part


@pytest.mark.parametrize("size", [1, 2, 3])
def test_map_films_uses_the_same_batches_for_any_number_of_processes(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed.dist, "all_reduce", lambda values: None)
    monkeypatch.setattr(distributed, "FILMS_AT_ONCE", 3)
    batches: list[list[int]] = []

    def powers(rows: torch.Tensor) -> torch.Tensor:
        batches.append(rows.tolist())
        return torch.stack([rows, rows**2], dim=-1).double()

    like = torch.zeros(2, dtype=torch.float64)
    parts = [Group(rank, size).map_films(7, powers, like) for rank in range(size)]
    numbers = torch.arange(7, dtype=torch.float64)
    assert torch.equal(sum(parts), torch.stack([numbers, numbers**2], dim=-1))
    assert sorted(batches) == [[0, 1, 2], [3, 4, 5], [6]]


def test_group_of_one_process_does_not_communicate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "dist", None)
    alone, network = Group(), torch.nn.Linear(1, 1)
    with alone.main_first():
        assert alone.is_main
    assert alone.parallel(network) is network
    assert float(alone.sum(torch.tensor(3.0))) == 3


@pytest.mark.parametrize("size", [None, "1"])
def test_process_group_without_torchrun_is_this_process_alone(
    size: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)
    with process_group("cpu") as group:
        assert group == Group(0, 1, "cpu")
