from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kneematch.errors import SettingsError
from kneematch.measures.network import OutlineNetwork
from kneematch.measures.outline_file import load_network, prepare_for_cpu, save_network


@pytest.fixture
def network() -> OutlineNetwork:
    torch.manual_seed(0)
    network = OutlineNetwork((4, 4, 4, 4, 8))
    network.train()(torch.randn(4, 1, 64, 64))  # so that the normalisation has statistics
    return network.eval()


def test_load_network_returns_what_was_saved(network: OutlineNetwork, tmp_path: Path) -> None:
    path = tmp_path / "network.safetensors"
    save_network(path, network, {"trained_on": "nothing"})
    crops = torch.randn(1, 1, 64, 64)
    again = load_network(path)
    assert torch.allclose(again(crops), network(crops), atol=0.02)  # half precision
    quick = prepare_for_cpu(again)
    found = quick(crops.to(quick.head.weight.dtype)).float()
    assert torch.allclose(found, network(crops), atol=0.05)  # bfloat16, where the CPU has it


def test_load_network_refuses_other_files(network: OutlineNetwork, tmp_path: Path) -> None:
    missing = tmp_path / "missing.safetensors"
    with pytest.raises(SettingsError, match=r"no such file; expected the outline network"):
        load_network(missing)
    other = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(2)}, other)
    with pytest.raises(SettingsError, match="not an outline network"):
        load_network(other)
    with torch.no_grad():
        network.head.weight[:] = torch.nan
    save_network(other, network, {})
    with pytest.raises(SettingsError, match="NaN"):
        load_network(other)
