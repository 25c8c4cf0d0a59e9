"""The file of the outline network, and the one that is installed with kneematch."""

import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from kneematch.devices import cpu_has_bfloat16
from kneematch.errors import SettingsError
from kneematch.io.files import write_file
from kneematch.measures.network import OutlineNetwork
from kneematch.networks.model_file import read_safetensors

FORMAT: Final = "kneematch-outline-network/1"
SHIPPED: Final = "outlines.safetensors"  # beside this file


def shipped_network() -> Path:
    """Return the path of the network that is installed with kneematch."""
    return Path(str(files("kneematch.measures") / SHIPPED))


def save_network(
    path: str | os.PathLike[str], network: OutlineNetwork, about: Mapping[str, Any]
) -> None:
    """Write a network in half precision; `about` (JSON) says what it was trained on."""
    tensors = {
        name: (tensor.half() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in network.state_dict().items()
    }
    described = {"format": FORMAT, "about": json.dumps({**about, "channels": network.channels})}
    write_file(path, save(tensors, described))


def load_network(path: str | os.PathLike[str] | None = None) -> OutlineNetwork:
    """Read a network for inference; by default the one that is installed with kneematch.

    Raises:
        SettingsError: the file is missing, is no outline network, or holds unusable values.
    """
    tensors, metadata = read_safetensors(
        path or shipped_network(),
        missing="expected the outline network; name one with --outlines or install kneematch again",
        broken="expected an outline network of kneematch; copy it again",
    )
    if metadata.get("format") != FORMAT:
        raise SettingsError(
            f"{path}: not an outline network (format {metadata.get('format')!r}); expected "
            f"{FORMAT!r}; give a file that 'kneematch train --outlines' has written"
        )
    try:
        network = OutlineNetwork(tuple(map(int, json.loads(metadata["about"])["channels"])))
        network.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        if not all(tensor.sum().isfinite() for tensor in tensors.values()):
            raise ValueError("NaN or infinity among the weights")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise SettingsError(
            f"{path}: not a usable outline network ({str(error).splitlines()[0]}); expected one "
            "that 'kneematch train --outlines' has written; train it again"
        ) from error
    return network.eval()


def prepare_for_cpu(network: OutlineNetwork) -> OutlineNetwork:
    """Make a network quicker on a CPU, in place.

    Batch normalisation is folded into the convolutions. Where the CPU computes in bfloat16, the
    network does, in half the time; borders move by less than a hundredth of a pixel, typically.
    """
    for block in (*network.encoder, *network.decoder):
        for k in (0, 3):
            block[k] = fuse_conv_bn_eval(block[k], block[k + 1])
            block[k + 1] = nn.Identity()
    dtype = torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    network.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network
