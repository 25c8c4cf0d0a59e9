"""The weights that training starts from, by name."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kneematch.errors import SettingsError
from kneematch.networks.model_file import FORMAT, load_model, shipped_model
from kneematch.networks.pose_network import PoseNetwork, network_of
from kneematch.training.imagenet import check_imagenet, imagenet_file
from kneematch.training.state_dict_file import read_state_dict

SYNTHETIC: Final = "synthetic"  # the model in the box
IMAGENET: Final = "imagenet"  # not fetched here: see fetch_imagenet
NONE: Final = "none"  # random
LAYERS: Final = ("layer1", "layer2", "layer3", "layer4")
CLASSIFIER: Final = "fc."  # for ImageNet's thousand classes
# BatchNorm keeps this count and makes no use of it; torchvision's file, older, does not have it.
COUNT: Final = "num_batches_tracked"
Networks = tuple[PoseNetwork, PoseNetwork]  # coarse, fine


def start_networks(name: str, *, seed: int = 0, up_to: str = LAYERS[-1]) -> Networks:
    """The coarse and the fine network to start from, on the CPU, in float32 and evaluation mode.

    Args:
        name: synthetic, imagenet, none, or a file: a model of kneematch, or the weights of a
            ResNet18 under torchvision's names (safetensors, or a zip that torch.save wrote).
        seed: of what the weights leave open, which is drawn at random.
        up_to: the deepest layer that a ResNet18's file must and may have.

    Raises:
        SettingsError: there is no such start, or its weights do not fit.
    """
    if name == SYNTHETIC:
        return _of_model(shipped_model())
    if name == NONE:
        return _random(seed)
    if name == IMAGENET:
        check_imagenet(imagenet_file())
        return _with_backbone(read_state_dict(imagenet_file()), LAYERS[-1], name, seed)
    check_start(name)
    path = Path(name)
    if zipfile.is_zipfile(path):
        return _with_backbone(read_state_dict(path), up_to, name, seed)
    weights = _safetensors(path)
    return _of_model(path) if weights is None else _with_backbone(weights, up_to, name, seed)


def check_start(name: str) -> None:
    """Refuse a name that is no start and no file."""
    if name not in (SYNTHETIC, IMAGENET, NONE) and not Path(name).is_file():
        raise SettingsError(
            f"start {name!r}: no such file; expected {SYNTHETIC}, {IMAGENET}, {NONE} or a file of "
            "weights; choose one"
        )


def model_of(name: str) -> Path | None:
    """The file of the model that a start names, if it names one that knows a template."""
    if name == SYNTHETIC:
        return shipped_model()
    path = Path(name)
    plain = name in (IMAGENET, NONE) or not path.is_file() or zipfile.is_zipfile(path)
    return None if plain or _safetensors(path) is not None else path


def _of_model(path: Path) -> Networks:
    model = load_model(path)
    return network_of(model.coarse), network_of(model.fine)


def _random(seed: int) -> Networks:
    with torch.random.fork_rng(devices=[]):  # initialisation draws from the global generator
        torch.manual_seed(seed)
        return PoseNetwork().eval(), PoseNetwork().eval()


def _with_backbone(weights: Mapping[str, Tensor], up_to: str, name: str, seed: int) -> Networks:
    """Random networks but for the layers of the backbone, which both get from a ResNet18."""
    networks = _random(seed)
    deeper = tuple(f"{layer}." for layer in LAYERS[LAYERS.index(up_to) + 1 :])
    given = {key: value for key, value in weights.items() if not key.startswith(CLASSIFIER)}
    for network in networks:
        state = network.backbone.state_dict()
        wanted = {key: value for key, value in state.items() if not key.startswith(deeper)}
        _check(given, wanted, name)
        network.backbone.load_state_dict({**state, **given})
    return networks


def _check(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], name: str) -> None:
    """The same names and shapes, but for the counts, which may be missing."""
    for key in sorted(given.keys() | wanted.keys()):
        found = _shape(given, key)
        if found != _shape(wanted, key) and not (key.endswith(COUNT) and found == "nothing"):
            raise SettingsError(
                f"{name}: {found} under the name {key}; expected {_shape(wanted, key)}; give the "
                "weights of a ResNet18 under torchvision's names"
            )


def _shape(weights: Mapping[str, Tensor], key: str) -> str:
    return f"shape {tuple(weights[key].shape)}" if key in weights else "nothing"


def _safetensors(path: Path) -> dict[str, Tensor] | None:
    """The tensors of a file; None of a model of kneematch, which `load_model` reads."""
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("format") == FORMAT:
                return None
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise SettingsError(
            f"{path}: cannot be read as safetensors ({error}); expected a model of kneematch or a "
            "ResNet18's weights; copy it again"
        ) from error
