"""Start a training from some of a ResNet18's weights, whose BatchNorm layers may be folded.

replication.py does: its file of ImageNet's weights ends with layer 3, and has BatchNorm folded into
the convolutions.
"""

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from kneematch.paper.network import PoseNetwork
from kneematch.training.distributed import Group
from kneematch.training.initial_weights import Networks, initial_networks
from kneematch.training.phase import PhaseData, PhaseState

MOST_FILMS = 512  # whose views the statistics of BatchNorm layers are computed from


def partial_networks(path: str) -> tuple[Networks, frozenset[str]]:
    """Return networks with the weights in a file, and the backbone's parameters that it lacks."""
    networks, given = initial_networks("none").networks, load_file(path)
    for network in networks:
        network.backbone.load_state_dict({**network.backbone.state_dict(), **given})
    names = {name for name, _ in networks[0].backbone.named_parameters()}
    return networks, frozenset(names - given.keys())


def learn_at_the_heads_rate(state: PhaseState, random: frozenset[str]) -> None:
    """Move parameters of the backbone, given by name, to the optimiser's group of the head."""
    backbone, head = (group["params"] for group in state.optimiser.param_groups)
    named = dict(state.network.backbone.named_parameters())
    head[:0] = [named.pop(name) for name in list(named) if name in random]
    backbone[:] = named.values()


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
