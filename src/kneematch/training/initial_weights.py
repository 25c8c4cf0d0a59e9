"""Initial weights of both networks: the built-in model, ImageNet, random numbers, or a file.

Stored weights may have their BatchNorm layers folded; these get the statistics of the films.
"""

import logging
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from kneematch.errors import SettingsError
from kneematch.io.file_version import content_hash
from kneematch.networks.model_file import (
    READABLE,
    Model,
    load_model,
    read_safetensors,
    shipped_model,
)
from kneematch.networks.pose_network import PoseNetwork, network_from_weights
from kneematch.training.config import cache_folder
from kneematch.training.distributed import Group
from kneematch.training.phase import PhaseData

SYNTHETIC: Final = "synthetic"  # the built-in model
IMAGENET: Final = "imagenet"
RANDOM: Final = "none"
IMAGENET_FILE: Final = "resnet18-f37072fd.pth"  # torchvision's official weights
IMAGENET_URL: Final = f"https://download.pytorch.org/models/{IMAGENET_FILE}"
IMAGENET_SHA256: Final = "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"
CLASSIFIER: Final = "fc."  # torchvision's last layer, which the networks do not have
MOST_FILMS: Final = 512  # whose views the statistics of BatchNorm layers are computed from

Networks = tuple[PoseNetwork, PoseNetwork]  # coarse, fine

log = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True, eq=False)
class InitialNetworks:
    """The networks that a training starts from, in float32 on the CPU and in evaluation mode."""

    networks: Networks
    model: Model | None = None  # that they belong to
    random: frozenset[str] = frozenset()  # names of the backbone's parameters drawn at random


def initial_networks(start: str, *, seed: int = 0) -> InitialNetworks:
    """Return the coarse and the fine network to start from.

    Args:
        start: "synthetic", "imagenet" (downloaded once), "none", or a file: a model of kneematch,
            or weights of a ResNet18, all or some of them, under torchvision's names (safetensors
            or torch.save).
        seed: random seed of the layers that these weights leave open.

    Raises:
        SettingsError: there is no such start, or its weights do not fit.
    """
    if start == RANDOM:
        return _with_backbone({}, start, seed)
    if start == IMAGENET:
        return _with_backbone(_torch_weights(imagenet_file()), start, seed)
    path = shipped_model() if start == SYNTHETIC else Path(start)
    if not path.is_file():
        raise SettingsError(
            f"start {start!r}: no such file; expected {SYNTHETIC}, {IMAGENET}, {RANDOM} or a file "
            "of weights; choose one"
        )
    if zipfile.is_zipfile(path):
        return _with_backbone(_torch_weights(path), start, seed)
    broken = "expected a model of kneematch or the weights of a ResNet18; copy it again"
    weights, metadata = read_safetensors(path, broken=broken)
    if metadata.get("format") not in READABLE:
        return _with_backbone(weights, start, seed)
    model = load_model(path)
    networks = network_from_weights(model.coarse), network_from_weights(model.fine)
    return InitialNetworks(networks, model)


def imagenet_file() -> Path:
    """Return torchvision's ImageNet weights of ResNet18, downloaded on first use.

    Raises:
        SettingsError: the download failed, or the file is not the official one.
    """
    path = cache_folder() / IMAGENET_FILE
    by_hand = (
        f"expected torchvision's {IMAGENET_FILE} with the SHA-256 {IMAGENET_SHA256[:8]}...; "
        f"download {IMAGENET_URL} on a machine that can and put it at {path}"
    )
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(
                IMAGENET_URL, str(path), hash_prefix=IMAGENET_SHA256, progress=False
            )
        found = content_hash(path)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"{IMAGENET_URL}: download failed ({reason}); {by_hand}") from error
    if found != IMAGENET_SHA256:
        raise SettingsError(f"{path}: has the SHA-256 {found[:8]}...; {by_hand}")
    return path


def _with_backbone(weights: Mapping[str, Tensor], start: str, seed: int) -> InitialNetworks:
    """Return random networks whose backbones both have the given weights of a ResNet18."""
    with torch.random.fork_rng(devices=[]):  # initialisation draws from the global generator
        torch.manual_seed(seed)
        networks = PoseNetwork().eval(), PoseNetwork().eval()
    given = {key: value for key, value in weights.items() if not key.startswith(CLASSIFIER)}
    for network in networks:
        state = network.backbone.state_dict()
        _check_shapes(given, state, start)
        network.backbone.load_state_dict({**state, **given})
    names = [name for name, _ in networks[0].backbone.named_parameters()]
    random = [name for name in names if name not in given]
    if start != RANDOM and random:
        if len(random) == len(names):
            raise SettingsError(
                f"{start}: no weights of a ResNet18; expected torchvision's names, as "
                f"{names[0]}; give another file"
            )
        parts = ", ".join(dict.fromkeys(name.split(".")[0] for name in random))
        log.warning("%s: has no weights for %s, which begin at random", start, parts)
    return InitialNetworks(networks, random=frozenset(random))


def _check_shapes(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], start: str) -> None:
    """Raise SettingsError unless every given weight has a place of its shape."""
    for key, value in sorted(given.items()):
        found = tuple(value.shape)
        expected = f"shape {tuple(wanted[key].shape)}" if key in wanted else "nothing"
        if f"shape {found}" != expected:
            raise SettingsError(
                f"{start}: shape {found} under the name {key}; expected {expected}; give the "
                "weights of a ResNet18 under torchvision's names"
            )


def _torch_weights(path: Path) -> dict[str, Tensor]:
    """Read a state_dict that torch.save wrote; code in the file is not run."""
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(weights, dict):
            raise ValueError(f"a {type(weights).__name__}")
        wrong = [k for k, value in weights.items() if not isinstance(value, Tensor)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not a tensor")
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, pickle.PickleError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SettingsError(
            f"{path}: not a plain state_dict ({reason}); expected tensors by name, as torch.save "
            "writes them; nothing in it was run; download it again"
        ) from error
    return {str(name): value.detach() for name, value in weights.items()}


@torch.no_grad()
def unfold_batchnorm(
    network: PoseNetwork, data: PhaseData, random: frozenset[str], group: Group
) -> None:
    """Give folded BatchNorm layers of a backbone the statistics of the films, in place.

    Where BatchNorm was folded into the convolutions, the layer is left with mean 0 and variance 1.
    In training mode it would normalise by the batch what ought not to be normalised. Its mean and
    variance are therefore set to those of one pass over the films, and its weight and bias such
    that it returns in evaluation mode what it returned before. Parameters that begin at random,
    given by name, are not folded.
    """
    folded = [
        layer
        for name, layer in network.backbone.named_modules()
        if isinstance(layer, nn.BatchNorm2d)
        and f"{name}.weight" not in random
        and _is_folded(layer)
    ]
    if not folded:
        return
    moments = group.map_films(
        min(len(data.films), MOST_FILMS),
        lambda rows: _input_moments(network, folded, data, rows),
        like=data.frames.new_zeros(2, sum(layer.num_features for layer in folded)),
    ).mean(0)
    sizes = [layer.num_features for layer in folded]
    for layer, mean, square in zip(folded, *(each.split(sizes) for each in moments), strict=True):
        variance = (square - mean.square()).clamp(min=0)
        scale = layer.weight / (layer.running_var + layer.eps).sqrt()
        layer.bias += scale * mean
        layer.weight.copy_(scale * (variance + layer.eps).sqrt())
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)


def _is_folded(layer: nn.BatchNorm2d) -> bool:
    mean, variance = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
    return torch.equal(mean, torch.zeros_like(mean)) and torch.equal(
        variance, torch.ones_like(variance)
    )


def _input_moments(
    network: PoseNetwork, layers: list[nn.BatchNorm2d], data: PhaseData, rows: Tensor
) -> Tensor:
    """Return the mean and mean square (K, 2, C) of what enters layers of C channels, on films (K,).

    The network is set to evaluation mode.
    """
    found: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        maps = inputs[0].reshape(len(rows), -1, *inputs[0].shape[1:])  # (K, S, channels, H, W)
        found[layer] = torch.stack([maps.mean((1, 3, 4)), maps.square().mean((1, 3, 4))], dim=1)

    network.eval()
    hooks = [layer.register_forward_pre_hook(keep) for layer in layers]
    try:
        data.predict(network, data.films.halves(rows), data.frames_of(rows))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat([found[layer] for layer in layers], dim=-1)
