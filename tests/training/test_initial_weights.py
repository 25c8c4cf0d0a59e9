"""Tests of the initial weights: the right ones in both networks, or one clear error."""

import hashlib
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kneematch.errors import SettingsError
from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.weights import network_from_weights
from kneematch.paper.network import PoseNetwork
from kneematch.training import initial_weights
from kneematch.training.initial_weights import initial_networks


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


def start_networks(start: str, seed: int = 0) -> tuple[PoseNetwork, PoseNetwork]:
    return initial_networks(start, seed=seed).networks


class Command:
    """An object whose pickle runs a command."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.victim}",)


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def assert_backbones(networks: tuple[PoseNetwork, PoseNetwork], weights: dict[str, Tensor]) -> None:
    for network in networks:
        for name, value in network.backbone.state_dict().items():
            if name in weights:
                assert torch.equal(value, weights[name]), name
    assert not same(networks[0].regress, networks[1].regress)


def test_initial_networks_synthetic_are_those_of_the_built_in_model() -> None:
    shipped = load_model(builtin_model())
    for start in ("synthetic", str(builtin_model())):
        initial = initial_networks(start)
        coarse, fine = initial.networks
        assert same(coarse, network_from_weights(shipped.coarse))
        assert same(fine, network_from_weights(shipped.fine))
        assert not coarse.training
        assert initial.model is not None
        assert not initial.random


def test_initial_networks_none_depend_on_the_seed_alone() -> None:
    assert initial_networks("none").random
    before = torch.random.get_rng_state()
    coarse, fine = start_networks("none", seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    again = start_networks("none", seed=3)
    assert same(coarse, again[0])
    assert same(fine, again[1])
    assert not same(coarse, fine)
    assert not same(coarse, start_networks("none", seed=4)[0])


def test_initial_networks_of_a_resnet18_both_have_its_backbone(
    file: Path, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    halved = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
    save_file(halved, tmp_path / "half.safetensors")
    torch.save(weights, tmp_path / "weights.pth")
    for path in (file, tmp_path / "half.safetensors", tmp_path / "weights.pth"):
        initial = initial_networks(str(path), seed=5)
        assert_backbones(initial.networks, weights)
        assert {p.dtype for p in initial.networks[0].parameters()} == {torch.float32}
        assert (initial.model, initial.random) == (None, False)
    assert same(initial.networks[1].regress, start_networks("none", seed=5)[1].regress)


@pytest.fixture
def official(
    weights: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Tensor]:
    """A stand-in for torchvision's file at a file: address; it has parameters and no counters."""
    kept = OrderedDict(
        (name, nn.Parameter(value)) for name, value in weights.items() if "tracked" not in name
    )
    assert len(kept) == 102
    server = tmp_path / "server.pth"
    torch.save(kept, server)
    digest = hashlib.sha256(server.read_bytes()).hexdigest()
    monkeypatch.setattr(initial_weights, "IMAGENET_URL", server.as_uri())
    monkeypatch.setattr(initial_weights, "IMAGENET_SHA256", digest)
    return {name: value.detach() for name, value in kept.items()}


def test_imagenet_is_downloaded_once(official: dict[str, Tensor], cache: Path) -> None:
    networks = start_networks("imagenet")
    assert_backbones(networks, official)
    assert int(networks[0].backbone.state_dict()["bn1.num_batches_tracked"]) == 0
    (cache / "server.pth").unlink()
    assert_backbones(start_networks("imagenet"), official)
    assert [path.name for path in cache.iterdir()] == [initial_weights.IMAGENET_FILE]


@pytest.mark.parametrize("place", ["server.pth", initial_weights.IMAGENET_FILE])
def test_imagenet_refuses_a_file_with_another_hash(
    official: dict[str, Tensor], cache: Path, place: str
) -> None:
    (cache / place).write_bytes(b"something else")
    with pytest.raises(SettingsError, match=r"^[^\n]*not available \([^\n]*hash[^\n]* put it at"):
        start_networks("imagenet")
    assert {path.name for path in cache.iterdir()} == {"server.pth", place}


def test_imagenet_offline_says_which_file_to_put_where(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "https://kneematch.invalid/resnet18-f37072fd.pth"  # a reserved name
    monkeypatch.setattr(initial_weights, "IMAGENET_URL", nowhere)
    with pytest.raises(SettingsError) as caught:
        start_networks("imagenet")
    message = str(caught.value)
    assert f"Download {nowhere} " in message
    assert message.endswith(f"put it at {cache / initial_weights.IMAGENET_FILE}.")
    assert "\n" not in message
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("conv1.weight", (64, 1, 7, 7)), ("layer5.weight", (1,)), ("bn1.bias", None)],
)
def test_initial_networks_refuse_weights_that_do_not_fit(
    weights: dict[str, Tensor], tmp_path: Path, name: str, value: tuple[int, ...] | None
) -> None:
    wrong = {key: tensor for key, tensor in weights.items() if key != name}
    if value is not None:
        wrong[name] = torch.zeros(value)
    save_file(wrong, tmp_path / "wrong.safetensors")
    with pytest.raises(SettingsError, match=rf"not the weights of a ResNet18 [^\n]*{name}"):
        start_networks(str(tmp_path / "wrong.safetensors"))


def test_initial_networks_refuse_an_unknown_name_and_broken_files(
    file: Path, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="is synthetic, imagenet, none or a file of weights"):
        start_networks("imagnet")
    torch.save(weights, tmp_path / "resnet18.pth")
    for path in (file, tmp_path / "resnet18.pth"):
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(SettingsError, match=r"^[^\n]*resnet18[^\n]*$"):
            start_networks(str(path))


def test_initial_networks_take_nothing_but_tensors_by_name_from_a_torch_file(
    tmp_path: Path,
) -> None:
    path, victim = tmp_path / "weights.pth", tmp_path / "victim"
    for content in ([1, 2], {"conv1.weight": 3}, {"conv1.weight": Command(victim)}):
        torch.save(content, path)
        with pytest.raises(SettingsError, match=r"^[^\n]*weights\.pth[^\n]*$"):
            start_networks(str(path))
    assert not victim.exists()  # no code was run
