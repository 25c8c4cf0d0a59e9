"""G without BatchNorm, which is folded into the convolutions: the same function in less time."""

from copy import deepcopy
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch.minimisers.network import RANGE, PoseNetwork, standardised


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """A convolution and the BatchNorm after it, as one."""

    weight: Tensor  # (out, in, h, w), channels last
    bias: Tensor  # (out,)
    stride: int
    padding: int

    def __call__(self, maps: Tensor) -> Tensor:
        return F.conv2d(maps, self.weight, self.bias, self.stride, self.padding)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """relu(second(relu(first(maps))) + shortcut(maps)); no shortcut: the maps themselves."""

    first: Convolution
    second: Convolution
    shortcut: Convolution | None

    def __call__(self, maps: Tensor) -> Tensor:
        kept = maps if self.shortcut is None else self.shortcut(maps)
        return self.second(self.first(maps).relu_()).add_(kept).relu_()


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """A PoseNetwork for inference on the CPU, in float32."""

    stem: Convolution
    blocks: tuple[Block, ...]
    reduce: nn.Module
    regress: nn.Module

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Vectors v (..., 4) of images (..., 224, 224)."""
        maps = pooled(self.stem(grey(images)).relu_())
        for block in self.blocks:
            maps = block(maps)
        return self.vectors(maps).reshape(*images.shape[:-2], 4)

    def vectors(self, maps: Tensor) -> Tensor:
        """The network's end: maps (K, 512, 7, 7) to vectors v (K, 4)."""
        flat = F.normalize(self.reduce(maps), dim=1).flatten(1)
        return RANGE * (torch.sigmoid(self.regress(flat)) - 0.5)


@torch.no_grad()
def folded(network: PoseNetwork) -> Folded:
    """A network as it is now; later changes of its weights do not reach the copy."""
    copy = deepcopy(network).cpu().float()
    net = copy.backbone
    stem = _fold(net.get_submodule("conv1"), net.get_submodule("bn1"))
    # The three colours of a grey image are equal, so their weights add up.
    stem = replace(stem, weight=_last(stem.weight.sum(1, keepdim=True)))
    layers = [net.get_submodule(f"layer{k}") for k in (1, 2, 3, 4)]
    blocks = tuple(_block(block) for layer in layers for block in layer.children())
    return Folded(stem, blocks, copy.reduce, copy.regress)


def grey(images: Tensor) -> Tensor:
    """Images (..., H, W) as a stem takes them: (K, 1, H, W), channels last in its strides too."""
    return standardised(images).reshape(-1, *images.shape[-2:], 1).permute(0, 3, 1, 2)


def pooled(maps: Tensor) -> Tensor:
    """ResNet18's pooling after the stem: (K, C, H, W) to (K, C, H / 2, W / 2)."""
    return F.max_pool2d(maps, 3, stride=2, padding=1)


def _block(block: nn.Module) -> Block:
    named = dict(block.named_modules())
    shortcut = None
    if "downsample.0" in named:
        shortcut = _fold(named["downsample.0"], named["downsample.1"])
    return Block(_fold(named["conv1"], named["bn1"]), _fold(named["conv2"], named["bn2"]), shortcut)


def _fold(convolution: nn.Module, norm: nn.Module) -> Convolution:
    if not (isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)):
        raise TypeError(f"{convolution} and {norm} are not a convolution and its BatchNorm")
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise TypeError(f"{norm} has no statistics of its own")
    scale = norm.weight / (variance + norm.eps).sqrt()
    weight = _last(convolution.weight * scale[:, None, None, None])
    stride, padding = convolution.stride[0], int(convolution.padding[0])
    return Convolution(weight, norm.bias - mean * scale, stride, padding)


def _last(weight: Tensor) -> Tensor:
    return weight.contiguous(memory_format=torch.channels_last)
