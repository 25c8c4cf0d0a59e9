"""Names of devices, and what they stand for."""

import pytest
import torch

from kneematch.devices import most_processes, resolve_device
from kneematch.errors import SettingsError


def test_resolve_device_keeps_names_chooses_for_auto_and_refuses_others() -> None:
    assert resolve_device("cpu") == resolve_device(torch.device("cpu")) == "cpu"
    assert resolve_device("auto") in ("cpu", "cuda")
    for name in ("", "gpu", "cpu:0", "mps", "cuda:x"):
        with pytest.raises(SettingsError, match="not auto, cpu, cuda or cuda:N"):
            resolve_device(name)
    with pytest.raises(SettingsError, match=r"'cuda:99': \d+ NVIDIA GPUs were found"):
        resolve_device("cuda:99")


def test_most_processes_is_what_the_memory_of_a_gpu_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert most_processes("cpu", 16) > 10_000
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8_000_000_000, 0))
    assert most_processes("cuda", 16) == 2
    assert most_processes("cuda:1", 8) == 4
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1_000_000_000, 0))
    assert most_processes("cuda", 16) == 0
