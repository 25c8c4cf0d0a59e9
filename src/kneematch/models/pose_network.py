"""Make a PoseNetwork from its weights."""

import functools
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from kneematch.paper.network import PoseNetwork

FIRST: Final = "backbone.conv1.weight"  # whose first axis is the network's width

Weights = Mapping[str, Tensor]  # weights of a PoseNetwork, under its names


def network_from_weights(weights: Weights) -> PoseNetwork:
    """Return a network with a copy of the given weights, in evaluation mode."""
    network = _uninitialized(weights[FIRST].shape[0]).eval()
    copies = {name: tensor.clone() for name, tensor in weights.items()}
    network.load_state_dict(copies, assign=True)
    return network


@functools.cache
def weight_shapes(width: int) -> dict[str, torch.Size]:
    """Return the names and shapes of a PoseNetwork's weights."""
    tensors = _uninitialized(width).state_dict(keep_vars=True)  # copies would take 0.1 s
    return {name: tensor.shape for name, tensor in tensors.items()}


def _uninitialized(width: int) -> PoseNetwork:
    with torch.device("meta"):
        return PoseNetwork(width)
