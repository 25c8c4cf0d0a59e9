"""The outline network on a CPU: it sees what the network does in float32."""

import numpy as np
import pytest
import torch

from kneematch.knee.crop import cut
from kneematch.knee.measuring import crop_place
from kneematch.models import outline_inference
from kneematch.models.cpu_inference import bytes_are_exact
from kneematch.models.outline_inference import ByteOutlineNetwork, cpu_outline_network
from kneematch.models.outlines import JOINT_FRAME, LEG_FRAME, load_network, locate, standardize
from kneephantoms.rendering import phantom
from phantom_films import radiograph

needs_bytes = pytest.mark.skipif(not bytes_are_exact(), reason="no exact 8-bit convolutions")


def crops(frame: object) -> torch.Tensor:
    """Return standardised crops (2, 1, H, W) of the knees of a phantom."""
    made = phantom(4, size=(600, 720))
    views = []
    for knee in made.knees:
        left, right = sorted([knee.plateau_left, knee.plateau_right])
        across = np.subtract(right, left)
        place = crop_place(np.add(left, right) / 2, across, frame)
        views.append(torch.from_numpy(cut(radiograph(made), place, "border")))
    return standardize(torch.stack(views))


@needs_bytes
def test_byte_outline_network_finds_the_borders_of_float32() -> None:
    network = cpu_outline_network(load_network())
    assert isinstance(network, ByteOutlineNetwork)
    wanted, found = (locate(each(crops(JOINT_FRAME))) for each in (load_network(), network))
    seen = wanted.border_sd < 2  # where the network is sure
    assert seen.float().mean() > 0.5
    assert (found.borders - wanted.borders)[seen].abs().quantile(0.95) < 0.2  # pixels of the crop
    assert (found.margins - wanted.margins).abs().max() < 1
    legs = crops(LEG_FRAME)
    assert (network(legs)[0].argmax(-1) == network(legs[:1])[0].argmax(-1)).all()


@needs_bytes
def test_byte_outline_network_bears_layers_that_are_never_active() -> None:
    network = load_network()
    for layer in network.encoder[2].children():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.weight.data.zero_()
            layer.bias.data.zero_()
    assert cpu_outline_network(network)(crops(JOINT_FRAME)).isfinite().all()


def test_cpu_outline_network_is_exact_where_the_cpu_has_no_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outline_inference, "bytes_are_exact", lambda: False)
    network = load_network()
    wanted, found = (each(crops(LEG_FRAME)) for each in (network, cpu_outline_network(network)))
    assert torch.allclose(found, wanted, atol=1e-3)
