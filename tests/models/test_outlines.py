from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kneematch.errors import SettingsError
from kneematch.models.outlines import (
    OUTPUTS,
    OutlineNetwork,
    load_network,
    locate,
    save_network,
    standardize,
)


def test_standardize_removes_brightness_and_contrast() -> None:
    crops = torch.rand(2, 32, 32)
    assert torch.allclose(standardize(crops), standardize(0.2 + 0.3 * crops), atol=1e-4)
    assert standardize(torch.zeros(1, 32, 32)).isfinite().all()


def peaks(places: torch.Tensor, length: int, sd: float) -> torch.Tensor:
    """Logits (..., length) of Gaussians at places (...)."""
    centres = torch.arange(length) + 0.5
    return -0.5 * ((centres - places[..., None]) / sd).square()


def test_locate_finds_places_between_pixels() -> None:
    generator = torch.Generator().manual_seed(0)
    size, sd = 64, 1.3
    borders, sides = 15 + 30 * torch.rand(2, 1, 2, size, generator=generator)
    borders[:, 1] = 30 + 14 * torch.sin(torch.arange(size) / 10)  # one line, unlike the femur's
    margins = torch.tensor([[[10.3, 40.7], [50.9, 31.2]]])
    places = (
        peaks(margins[..., 0], size, sd)[..., None, :] + peaks(margins[..., 1], size, sd)[..., None]
    )
    logits = torch.cat([peaks(borders, size, sd).mT, peaks(sides, size, sd), places], dim=1)
    found = locate(logits)
    assert (found.borders - borders).abs().max() < 0.01
    assert (found.sides - sides).abs().max() < 0.01
    assert (found.margins - margins).abs().max() < 0.01
    assert (found.border_sd - sd).abs().max() < 0.05


def test_locate_takes_the_better_of_two_candidates_and_says_that_it_doubts() -> None:
    size = 64
    near, far = (peaks(torch.full((1, OUTPUTS, size), place), size, 1.0) for place in (20.25, 50.0))
    found = locate(torch.logaddexp(near, far - 1.0).mT)
    assert (found.borders - 20.25).abs().max() < 0.05
    assert found.border_sd.min() > 5


def test_locate_follows_the_tibia_past_another_edge() -> None:
    """Some columns prefer another edge, to which no continuous line leads and back."""
    size = 64
    logits = peaks(torch.full((1, OUTPUTS, size), 45.25), size, 1.0)
    logits[..., 30:36, :] = torch.logaddexp(
        logits[..., 30:36, :], peaks(torch.tensor(20.0), size, 1.0) + 1.0
    )
    found = locate(logits.mT)
    femur, tibia = found.borders[0, :, 33]
    assert abs(femur - 20.0) < 0.05
    assert abs(tibia - 45.25) < 0.05
    assert found.border_sd[0, 1, 33] > 10


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


def test_load_network_refuses_other_files(network: OutlineNetwork, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(2)}, other)
    with pytest.raises(SettingsError, match="instead of 'kneematch-outline-network/1'"):
        load_network(other)
    with torch.no_grad():
        network.head.weight[:] = torch.nan
    save_network(other, network, {})
    with pytest.raises(SettingsError, match="NaN"):
        load_network(other)
