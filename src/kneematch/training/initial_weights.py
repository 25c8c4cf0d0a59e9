"""Initial weights of both networks: the built-in model, ImageNet, random numbers, or a file."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.films.files import content_hash
from kneematch.models.model_file import Model, builtin_model, load_model
from kneematch.models.weights import network_from_weights, read_safetensors
from kneematch.paper.algorithm2 import Networks
from kneematch.paper.network import PoseNetwork
from kneematch.training.checkpoint import load_dict
from kneematch.training.config import cache_folder

SYNTHETIC: Final = "synthetic"  # the built-in model
IMAGENET: Final = "imagenet"
RANDOM: Final = "none"
IMAGENET_FILE: Final = "resnet18-f37072fd.pth"  # torchvision's official weights
IMAGENET_URL: Final = f"https://download.pytorch.org/models/{IMAGENET_FILE}"
IMAGENET_SHA256: Final = "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"
CLASSIFIER: Final = "fc."  # torchvision's last layer, which the networks do not have
COUNTER: Final = ".num_batches_tracked"  # BatchNorm's, which older files lack


@dataclass(frozen=True, slots=True, eq=False)
class InitialNetworks:
    """The networks that a training starts from, in float32 on the CPU and in evaluation mode."""

    networks: Networks
    model: Model | None = None  # that they belong to
    random: bool = False  # the backbones' weights are random numbers, too


def initial_networks(start: str, *, seed: int = 0) -> InitialNetworks:
    """Return the coarse and the fine network to start from.

    Args:
        start: "synthetic", "imagenet" (downloaded once), "none", or a file: a model of kneematch,
            or the weights of a ResNet18 under torchvision's names (safetensors or torch.save).
        seed: random seed of the layers that these weights leave open.

    Raises:
        SettingsError: there is no such start, or its weights do not fit.
    """
    if start == RANDOM:
        return InitialNetworks(_random_networks(seed), random=True)
    if start == IMAGENET:
        return _with_backbone(_torch_weights(imagenet_file()), start, seed)
    path = builtin_model() if start == SYNTHETIC else Path(start)
    if not path.is_file():
        raise SettingsError(
            f"--start is {SYNTHETIC}, {IMAGENET}, {RANDOM} or a file of weights; there is no file "
            f"{start}."
        )
    if zipfile.is_zipfile(path):
        return _with_backbone(_torch_weights(path), start, seed)
    weights, metadata = read_safetensors(path)
    if not metadata.get("format", "").startswith("kneematch"):
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
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(
                IMAGENET_URL, str(path), hash_prefix=IMAGENET_SHA256, progress=False
            )
        if content_hash(path) != IMAGENET_SHA256:
            raise RuntimeError(f"the file has not the hash {IMAGENET_SHA256[:8]}...")
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(
            f"ImageNet's weights are not available ({reason}). Download {IMAGENET_URL} on another "
            f"machine and put it at {path}."
        ) from error
    return path


def _random_networks(seed: int) -> Networks:
    with torch.random.fork_rng(devices=[]):  # initialisation draws from the global generator
        torch.manual_seed(seed)
        return PoseNetwork().eval(), PoseNetwork().eval()


def _with_backbone(weights: Mapping[str, Tensor], start: str, seed: int) -> InitialNetworks:
    """Return random networks whose backbones both have the weights of a ResNet18."""
    networks = _random_networks(seed)
    given = {key: value for key, value in weights.items() if not key.startswith(CLASSIFIER)}
    for network in networks:
        state = network.backbone.state_dict()
        counters = {key: value for key, value in state.items() if key.endswith(COUNTER)}
        try:
            network.backbone.load_state_dict({**counters, **given})
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:150]
            raise SettingsError(
                f"{start} has not the weights of a ResNet18 under torchvision's names: {reason}"
            ) from error
    return InitialNetworks(networks)


def _torch_weights(path: Path) -> dict[str, Tensor]:
    """Read a state_dict that torch.save wrote; code in the file is not run."""
    weights = load_dict(path)
    if not all(isinstance(value, Tensor) for value in weights.values()):
        raise SettingsError(f"{path} holds other things than tensors by name.")
    return {name: value.detach() for name, value in weights.items()}
