"""G without BatchNorm, which is folded into the convolutions: the same function in less time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from kneematch.networks.pose_network import RANGE, standardised

LAYERS: Final = (1, 2, 3, 4)  # of ResNet18, each of two blocks
EPSILON: Final = 1e-5  # of its BatchNorm
STEM_PADDING: Final = 3

Layer = tuple[Tensor, Tensor]  # weight, bias


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
    reduce: tuple[Layer, ...]
    regress: tuple[Layer, ...]

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Vectors v (..., 4) of images (..., 224, 224)."""
        maps = pooled(self.stem(grey(images)).relu_())
        for block in self.blocks:
            maps = block(maps)
        return self.vectors(maps).reshape(*images.shape[:-2], 4)

    def vectors(self, maps: Tensor) -> Tensor:
        """The network's end: maps (K, 512, 7, 7) to vectors v (K, 4).

        An image at a time: together, they would be rounded otherwise, and a frame that is moved by
        the last digit can make a byte another one in the next network.
        """
        return torch.cat([self._vector(one) for one in torch.split(maps, 1)])

    def _vector(self, maps: Tensor) -> Tensor:
        for weight, bias in self.reduce:
            maps = F.conv2d(maps, weight, bias).relu_()
        values = F.normalize(maps, dim=1).flatten(1)
        for number, (weight, bias) in enumerate(self.regress, 1):
            values = F.linear(values, weight, bias)
            values = values.relu_() if number < len(self.regress) else values
        return RANGE * (torch.sigmoid(values) - 0.5)


@torch.no_grad()
def folded(weights: Mapping[str, Tensor]) -> Folded:
    """A network as its weights are now, under PoseNetwork's names; later changes do not reach it.

    No PoseNetwork is needed for it, whose backbone takes seconds to import.
    """
    own = {name: tensor.cpu().float().clone() for name, tensor in weights.items()}
    stem = _in_blocks(_fold(own, "backbone.conv1", "backbone.bn1", stride=2))
    blocks = tuple(_block(own, layer, number) for layer in LAYERS for number in (0, 1))
    reduce = tuple(_layer(own, f"reduce.{k}") for k in (0, 2))
    regress = tuple(_layer(own, f"regress.{k}") for k in (0, 2, 4))
    return Folded(stem, blocks, reduce, regress)


def grey(images: Tensor) -> Tensor:
    """Images (..., 224, 224) as the stem takes them: padded, in blocks of 2 x 2, (K, 4, 115, 115).

    What is a stride of 2 to the image is none to its blocks, and four channels suit a CPU better
    than one.
    """
    padded = F.pad(standardised(images), (STEM_PADDING,) * 4)
    height, width = (side // 2 for side in padded.shape[-2:])
    blocks = padded.reshape(-1, height, 2, width, 2).permute(0, 1, 3, 2, 4)
    return blocks.reshape(-1, height, width, 4).permute(0, 3, 1, 2)  # channels last in its strides


def pooled(maps: Tensor) -> Tensor:
    """ResNet18's pooling after the stem: (K, C, H, W) to (K, C, H / 2, W / 2)."""
    return F.max_pool2d(maps, 3, stride=2, padding=1)


def _in_blocks(stem: Convolution) -> Convolution:
    """The stem (64, 3, 7, 7) of ResNet18 for blocks of grey images, (64, 4, 4, 4)."""
    # The three colours of a grey image are equal, so their weights add up.
    kernel = F.pad(stem.weight.sum(1), (0, 1, 0, 1)).reshape(-1, 4, 2, 4, 2)
    weight = kernel.permute(0, 2, 4, 1, 3).reshape(-1, 4, 4, 4)
    return Convolution(_last(weight), stem.bias, stride=1, padding=0)


def _block(weights: Mapping[str, Tensor], layer: int, number: int) -> Block:
    name = f"backbone.layer{layer}.{number}"
    stride = 2 if layer > 1 and number == 0 else 1
    first = _fold(weights, f"{name}.conv1", f"{name}.bn1", stride=stride)
    second = _fold(weights, f"{name}.conv2", f"{name}.bn2", stride=1)
    shortcut = None
    if f"{name}.downsample.0.weight" in weights:
        shortcut = _fold(weights, f"{name}.downsample.0", f"{name}.downsample.1", stride=stride)
    return Block(first, second, shortcut)


def _fold(
    weights: Mapping[str, Tensor], convolution: str, norm: str, *, stride: int
) -> Convolution:
    kernel = weights[f"{convolution}.weight"]
    scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + EPSILON).sqrt()
    bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
    return Convolution(
        _last(kernel * scale[:, None, None, None]), bias, stride, len(kernel[0, 0]) // 2
    )


def _layer(weights: Mapping[str, Tensor], name: str) -> Layer:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _last(weight: Tensor) -> Tensor:
    return weight.contiguous(memory_format=torch.channels_last)
