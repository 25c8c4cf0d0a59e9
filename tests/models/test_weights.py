"""Weights of all networks: damaged files, 8-bit steps, folding of BatchNorm."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

from kneematch.errors import SettingsError
from kneematch.models.weights import fold_batchnorm, quantize_weights, read_safetensors


def test_read_safetensors_refuses_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(SettingsError, match=r"^No such file: .*weights\.safetensors$"):
        read_safetensors(path)
    whole = save({"a": torch.zeros(100)})
    for content in (b"", b"no model", b"\xff" * 1000, whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match="cannot be read as a safetensors file"):
            read_safetensors(path)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/"])
def test_read_safetensors_refuses_what_is_not_a_regular_file(device: str) -> None:
    with pytest.raises(SettingsError, match=r"\(not a regular file\)"):
        read_safetensors(device)


def test_quantize_weights_is_right_to_half_a_step() -> None:
    weight = torch.randn(3, 4, 2, 2, generator=torch.Generator().manual_seed(0))
    weight[1] = 0
    levels, steps = quantize_weights(weight)
    error = (levels * steps[:, None, None, None] - weight).abs().amax((1, 2, 3))
    assert (error <= 0.501 * steps).all()
    assert levels.flatten(1).abs().amax(1).tolist() == [127, 0, 127]


def test_fold_batchnorm_leaves_the_results() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    )
    network.train()(torch.rand(8, 2, 9, 9))  # so that the normalisation has statistics
    images = torch.rand(2, 2, 9, 9)
    before = network.eval()(images)
    fold_batchnorm(network)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())
    assert torch.allclose(network(images), before, atol=1e-5)
