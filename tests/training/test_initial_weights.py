"""Start weights by name: the right ones, in both networks, or one clear error."""

import hashlib
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kneematch.errors import SettingsError
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.networks.pose_network import PoseNetwork, network_of
from kneematch.training import imagenet
from kneematch.training.initial_weights import start_networks


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KNEEMATCH_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """A ResNet18's, all of them other than those that a network begins with."""
    drawn = torch.Generator().manual_seed(1)
    state = PoseNetwork().backbone.state_dict()
    shapes = {**{name: value.shape for name, value in state.items()}, "fc.weight": (1000, 512)}
    return {
        name: torch.tensor(7)
        if name.endswith("tracked")
        else torch.rand(shape, generator=drawn).half().float()
        for name, shape in {**shapes, "fc.bias": (1000,)}.items()
    }


@pytest.fixture
def file(weights: dict[str, Tensor], tmp_path: Path) -> Path:
    save_file(weights, tmp_path / "resnet18.safetensors")
    return tmp_path / "resnet18.safetensors"


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def assert_backbones(networks: tuple[PoseNetwork, PoseNetwork], weights: dict[str, Tensor]) -> None:
    for network in networks:
        for name, value in network.backbone.state_dict().items():
            if name in weights:
                assert torch.equal(value, weights[name]), name
    assert not same(networks[0].regress, networks[1].regress)


def test_synthetic_is_the_model_in_the_box() -> None:
    shipped = load_model(shipped_model())
    coarse, fine = start_networks("synthetic")
    assert same(coarse, network_of(shipped.coarse))
    assert same(fine, network_of(shipped.fine))
    assert not same(coarse, fine)


def test_none_is_random_and_goes_by_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    coarse, fine = start_networks("none", seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    again = start_networks("none", seed=3)
    assert same(coarse, again[0])
    assert same(fine, again[1])
    assert not same(coarse, fine)
    assert not same(coarse, start_networks("none", seed=4)[0])


def test_a_model_gives_both_its_networks() -> None:
    coarse, fine = start_networks(str(shipped_model()))
    wanted = start_networks("synthetic")
    assert same(coarse, wanted[0])
    assert same(fine, wanted[1])


def test_networks_are_on_the_cpu_in_float32_and_evaluation_mode(file: Path) -> None:
    for name in ("synthetic", "none", str(file)):
        for network in start_networks(name):
            assert {(p.dtype, p.device.type) for p in network.parameters()} == {
                (torch.float32, "cpu")
            }
            assert not network.training


def test_a_resnet18_becomes_the_backbone_of_both(file: Path, weights: dict[str, Tensor]) -> None:
    networks = start_networks(str(file), seed=5)
    assert_backbones(networks, weights)
    assert same(networks[1].regress, start_networks("none", seed=5)[1].regress)


def test_half_precision_is_widened(weights: dict[str, Tensor], tmp_path: Path) -> None:
    halved = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
    save_file(halved, tmp_path / "half.safetensors")
    assert_backbones(start_networks(str(tmp_path / "half.safetensors")), weights)


def test_what_torch_saved_is_read_too(weights: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(weights, tmp_path / "weights.pth")
    assert_backbones(start_networks(str(tmp_path / "weights.pth")), weights)


def test_imagenet_is_torchvisions_file_which_has_parameters_and_no_counts(
    weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = OrderedDict(
        (name, nn.Parameter(value)) for name, value in weights.items() if "tracked" not in name
    )
    assert len(kept) == 102
    torch.save(kept, imagenet.imagenet_file())
    found = hashlib.sha256(imagenet.imagenet_file().read_bytes()).hexdigest()
    with pytest.raises(SettingsError, match="SHA-256"):
        start_networks("imagenet")
    monkeypatch.setattr(imagenet, "SHA256", found)
    networks = start_networks("imagenet")
    assert_backbones(networks, {name: value.detach() for name, value in kept.items()})
    assert int(networks[0].backbone.state_dict()["bn1.num_batches_tracked"]) == 0


def test_imagenet_is_not_fetched_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "_opened", lambda url: pytest.fail("the network was used"))
    with pytest.raises(SettingsError, match=r"no such file; .* put it at"):
        start_networks("imagenet")


def test_a_file_up_to_layer3_serves_where_that_is_said(
    weights: dict[str, Tensor], tmp_path: Path
) -> None:
    path = str(tmp_path / "short.safetensors")
    short = {k: v for k, v in weights.items() if not k.startswith(("layer4", "fc"))}
    save_file(short, path)
    with pytest.raises(SettingsError, match=r"nothing under the name layer4\.0"):
        start_networks(path)
    networks = start_networks(path, seed=2, up_to="layer3")
    assert_backbones(networks, short)
    drawn = start_networks("none", seed=2)
    assert same(networks[0].backbone.layer4, drawn[0].backbone.layer4)  # type: ignore[arg-type]
    save_file(weights, path)
    with pytest.raises(SettingsError, match=r"under the name layer4\.0.*expected nothing"):
        start_networks(path, up_to="layer3")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("conv1.weight", None, r"nothing under the name conv1\.weight; expected shape"),
        ("conv1.weight", (64, 1, 7, 7), r"shape \(64, 1, 7, 7\) under the name conv1\.weight"),
        ("layer5.weight", (1,), r"shape \(1,\) under the name layer5\.weight; expected nothing"),
        ("bn1.num_batches_tracked", (2,), r"bn1\.num_batches_tracked; expected shape \(\)"),
    ],
)
def test_weights_that_do_not_fit_are_told(
    weights: dict[str, Tensor],
    tmp_path: Path,
    name: str,
    value: tuple[int, ...] | None,
    told: str,
) -> None:
    wrong = {key: tensor for key, tensor in weights.items() if key != name}
    if value is not None:
        wrong[name] = torch.zeros(value)
    save_file(wrong, tmp_path / "wrong.safetensors")
    with pytest.raises(SettingsError, match=told):
        start_networks(str(tmp_path / "wrong.safetensors"))


def test_an_unknown_name_and_a_broken_file_are_told(file: Path) -> None:
    with pytest.raises(SettingsError, match="expected synthetic, imagenet, none or a file"):
        start_networks("imagnet")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(SettingsError, match="cannot be read as safetensors"):
        start_networks(str(file))
