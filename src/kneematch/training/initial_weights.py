"""Initial weights of both networks: the built-in model, ImageNet, random numbers, or a file."""

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.films.files import content_hash
from kneematch.models.model_file import FORMAT, Model, builtin_model, load_model
from kneematch.models.weights import read_safetensors
from kneematch.paper.network import PoseNetwork, network_from_weights
from kneematch.training.config import cache_folder

SYNTHETIC: Final = "synthetic"  # the built-in model
IMAGENET: Final = "imagenet"
RANDOM: Final = "none"
IMAGENET_FILE: Final = "resnet18-f37072fd.pth"  # torchvision's official weights
IMAGENET_URL: Final = f"https://download.pytorch.org/models/{IMAGENET_FILE}"
IMAGENET_SHA256: Final = "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"
CLASSIFIER: Final = "fc."  # torchvision's last layer, which the networks do not have
COUNTER: Final = ".num_batches_tracked"

Networks = tuple[PoseNetwork, PoseNetwork]  # coarse, fine


@dataclass(frozen=True, slots=True, eq=False)
class InitialNetworks:
    """The networks that a training starts from, in float32 on the CPU and in evaluation mode."""

    networks: Networks
    model: Model | None = None  # that they belong to
    random: bool = False  # the backbones, too, are drawn at random


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
        return _with_backbone(None, start, seed)
    if start == IMAGENET:
        return _with_backbone(_torch_weights(imagenet_file()), start, seed)
    path = builtin_model() if start == SYNTHETIC else Path(start)
    if not path.is_file():
        raise SettingsError(
            f"start {start!r}: no such file; expected {SYNTHETIC}, {IMAGENET}, {RANDOM} or a file "
            "of weights; choose one"
        )
    if zipfile.is_zipfile(path):
        return _with_backbone(_torch_weights(path), start, seed)
    weights, metadata = read_safetensors(path)
    if metadata.get("format") != FORMAT:
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


def _with_backbone(weights: Mapping[str, Tensor] | None, start: str, seed: int) -> InitialNetworks:
    """Return random networks whose backbones both have the weights of a ResNet18, if given."""
    with torch.random.fork_rng(devices=[]):  # initialisation draws from the global generator
        torch.manual_seed(seed)
        networks = PoseNetwork().eval(), PoseNetwork().eval()
    if weights is not None:
        given = {key: value for key, value in weights.items() if not key.startswith(CLASSIFIER)}
        for network in networks:
            state = network.backbone.state_dict()
            _check_shapes(given, state, start)
            network.backbone.load_state_dict({**state, **given})
    return InitialNetworks(networks, random=weights is None)


def _check_shapes(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], start: str) -> None:
    """Raise SettingsError unless the weights have the wanted names and shapes.

    The counters of BatchNorm layers, which older files lack, may be missing.
    """
    for key in sorted({*given, *wanted}):
        found, expected = (
            f"shape {tuple(each[key].shape)}" if key in each else "nothing"
            for each in (given, wanted)
        )
        if found != expected and (key in given or not key.endswith(COUNTER)):
            raise SettingsError(
                f"{start}: {found} under the name {key}; expected {expected}; give the weights of "
                "a ResNet18 under torchvision's names"
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
