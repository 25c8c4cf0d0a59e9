"""Names of devices, and what they stand for."""

import pytest

from kneematch.devices import resolve_device
from kneematch.errors import SettingsError


@pytest.mark.parametrize("name", ["", "gpu", "cpu:0", "auto:1", "mps:0", "cuda:", "cuda:x", "CPU"])
def test_resolve_device_refuses_other_names(name: str) -> None:
    with pytest.raises(SettingsError, match="expected auto, cpu, cuda, cuda:N or mps"):
        resolve_device(name)


def test_resolve_device_says_how_many_gpus_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'cuda:99': \d+ NVIDIA GPUs found"):
        resolve_device("cuda:99")


def test_resolve_device_keeps_a_name_and_chooses_for_auto() -> None:
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") in ("cpu", "cuda")
