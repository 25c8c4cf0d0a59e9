"""The weights of all networks: their files, 8-bit steps, and folding of BatchNorm."""

import os
from collections.abc import Mapping
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from kneematch.errors import SettingsError
from kneematch.paper.network import PoseNetwork

LARGEST_LEVEL: Final = 127  # 8-bit weights lie between minus this and this
FIRST: Final = "backbone.conv1.weight"  # its first axis is the width of a PoseNetwork

Network = TypeVar("Network", bound=nn.Module)
Weights = Mapping[str, Tensor]  # weights of a network, under its names


def builtin_file(name: str) -> Path:
    """Return the path of a file of weights that is installed with kneematch."""
    return Path(str(files("kneematch.models") / name))


def read_safetensors(
    path: str | os.PathLike[str], file_format: str | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file and its metadata.

    Raises:
        SettingsError: the file is missing, damaged, or of another format than that given.
    """
    try:
        # A device such as /dev/zero would be read without end.
        if Path(path).exists() and not Path(path).is_file():
            raise OSError("not a regular file")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            found, names = metadata.get("format"), file.keys()
            if file_format not in (None, found):
                raise SettingsError(
                    f"{path} is of another kind, or of another version of kneematch: its format is "
                    f"{found!r} instead of {file_format!r}."
                )
            return {name: file.get_tensor(name) for name in names}, metadata
    except FileNotFoundError as error:
        raise SettingsError(f"No such file: {path}") from error
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"{path} cannot be read as a safetensors file ({error}).") from error


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise ValueError if a tensor holds NaN or infinity."""
    if not tensor.sum().isfinite():  # several times faster than to look at each element
        raise ValueError(f"{name} holds NaN or infinity")


def quantize_weights(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights (out, in, h, w) as 8-bit integers, and their steps (out,)."""
    low, high = weight.flatten(1).aminmax(dim=1)
    steps = torch.maximum(-low, high).clamp(min=1e-12) / LARGEST_LEVEL
    return weight.div(steps[:, None, None, None]).round_().to(torch.int8), steps


def empty_pose_network(weights: Weights) -> PoseNetwork:
    """Return a PoseNetwork on the meta device, of the width that weights have."""
    with torch.device("meta"):
        return PoseNetwork(len(weights[FIRST]))


def network_from_weights(weights: Weights) -> PoseNetwork:
    """Return a PoseNetwork with a copy of the given weights, in evaluation mode."""
    network = empty_pose_network(weights).eval()
    copies = {name: tensor.clone() for name, tensor in weights.items()}
    network.load_state_dict(copies, assign=True)
    return network


@torch.no_grad()
def load_for_inference(network: Network, weights: Weights) -> Network:
    """Give a network weights of any precision, in float32; fold BatchNorm, channels last."""
    network.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    fold_batchnorm(network.eval())
    return network.to(memory_format=torch.channels_last).requires_grad_(False)  # type: ignore[call-overload, no-any-return]


def fold_batchnorm(network: nn.Module) -> None:
    """Fold each BatchNorm into the convolution that its parent holds before it.

    An identity takes its place.
    """
    for parent in list(network.modules()):
        children = list(parent.named_children())
        for (name, layer), (norm_name, norm) in pairwise(children):
            if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, fuse_conv_bn_eval(layer, norm).requires_grad_(False))
                setattr(parent, norm_name, nn.Identity())
