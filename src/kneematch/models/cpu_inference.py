"""The pose network for inference on a CPU: BatchNorm folded, convolutions in 8-bit integers.

The 8-bit convolutions are oneDNN's, called through operators that PyTorch has but does not
document. For the two halves of a film one network of full width takes about 24 ms with one thread
(AMD EPYC, a busy machine), against 78 ms in float32 with BatchNorm folded and 96 ms without. ONNX
Runtime in 8 bits is about as fast (29 ms untuned; 21 against 22 ms in an earlier comparison), but
would add two dependencies and 0.2 s of imports.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from kneematch.models.pose_network import Weights, network_from_weights
from kneematch.paper.network import INPUT, PoseNetwork, standardize

BYTE_MAX: Final = 255  # of an activation
WEIGHT_MAX: Final = 127  # of a weight, to either side of 0
STEM_PADDING: Final = 3
# Share of the activations at either end that a measured range clips. With none clipped, a rare
# large one makes all steps coarse: the median distance of poses from those in float32 doubles.
CLIPPED: Final = 1e-4

BLOCKS: Final = tuple(f"layer{layer}.{block}" for layer in (1, 2, 3, 4) for block in (0, 1))

Ranges = Mapping[str, tuple[float, float]]  # lowest and highest activation, by layer
Convolution = Any  # nn.Conv2d with a bias, which is optional in PyTorch's type


@dataclass(frozen=True, slots=True)
class Scale:
    """The meaning of a stored byte: step * (byte - zero)."""

    step: float
    zero: int


UNIT: Final = Scale(1.0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class ByteConvolution:
    """A convolution of uint8 maps with int8 weights, by oneDNN."""

    weight: Tensor  # int8, in oneDNN's layout
    weight_steps: Tensor  # (out,)
    bias: Tensor  # (out,) float32
    geometry: tuple[list[int], list[int], list[int], int]  # stride, padding, dilation, groups
    input: Scale
    shortcut: Scale
    output: Scale | None  # None: float32

    def __call__(self, maps: Tensor, *, relu: bool) -> Tensor:
        activation = "relu" if relu else "none"
        made: Tensor = torch.ops.onednn.qconv2d_pointwise(
            *(*self._operands(maps), self.bias, *self.geometry, *self._output()),
            *(activation, [], ""),
        )
        return made

    def add_relu(self, maps: Tensor, shortcut: Tensor) -> Tensor:
        scale = self.shortcut
        if self.output is None:
            shortcut, scale = (shortcut.float() - scale.zero) * scale.step, UNIT
        made: Tensor = torch.ops.onednn.qconv2d_pointwise.binary(
            *(*self._operands(maps), shortcut, self.bias, *self.geometry, *self._output()),
            *(scale.step, scale.zero, "sum", 1.0, "relu", [], ""),
        )
        return made

    def _operands(self, maps: Tensor) -> tuple[Tensor | float, ...]:
        zeros = torch.zeros_like(self.weight_steps, dtype=torch.int32)
        return maps, self.input.step, self.input.zero, self.weight, self.weight_steps, zeros

    def _output(self) -> tuple[float, int, torch.dtype]:
        if self.output is None:
            return 1.0, 0, torch.float32
        return self.output.step, self.output.zero, torch.uint8


class Stem(nn.Module):
    """ResNet18's first convolution (64, 3, 7, 7), of grey images and with stride 2.

    It is computed on blocks of 2 x 2 pixels, without a stride: four channels suit a CPU better
    than one. The three colours of a grey image are equal, so their weights add up.
    """

    def __init__(self, conv: Convolution) -> None:
        super().__init__()
        kernel = F.pad(conv.weight.sum(1), (0, 1, 0, 1)).reshape(-1, 4, 2, 4, 2)
        kernel = kernel.permute(0, 2, 4, 1, 3).reshape(-1, 4, 4, 4)
        self.weight = nn.Parameter(kernel, requires_grad=False)
        self.bias = conv.bias

    def forward(self, images: Tensor) -> Tensor:
        """Return maps (K, 64, 112, 112) of grey images (K, 1 or 3 equal channels, 224, 224)."""
        padded = F.pad(images[:, 0], (STEM_PADDING,) * 4)
        height, width = (side // 2 for side in padded.shape[-2:])
        blocks = padded.reshape(-1, height, 2, width, 2).permute(0, 1, 3, 2, 4)
        blocks = blocks.reshape(-1, height, width, 4).permute(0, 3, 1, 2)  # channels last in memory
        return F.conv2d(blocks, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class ByteBlock:
    """A BasicBlock of ResNet18."""

    first: ByteConvolution
    second: ByteConvolution
    shortcut: ByteConvolution | None

    def __call__(self, maps: Tensor) -> Tensor:
        inner = self.first(maps, relu=True)
        shortcut = maps if self.shortcut is None else self.shortcut(maps, relu=False)
        return self.second.add_relu(inner, shortcut)


@dataclass(frozen=True, slots=True, eq=False)
class ByteNetwork:
    """A PoseNetwork whose residual blocks compute in 8 bits, and the other layers in float32."""

    stem: nn.Module  # with outputs in steps of an activation
    blocks: tuple[ByteBlock, ...]
    head: PoseNetwork  # without a backbone

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return vectors v (..., 4) of images (..., 224, 224)."""
        maps = self.stem(standardize(images).reshape(-1, 1, *images.shape[-2:])).relu_()
        maps = F.max_pool2d(maps, 3, stride=2, padding=1)
        maps = maps.clamp_(max=BYTE_MAX).to(torch.uint8)
        for block in self.blocks:
            maps = block(maps)  # the last one returns (K, 512, 7, 7) in float32
        # One image at a time: in a batch the sums are rounded differently, and the last digit of a
        # coarse pose can change a byte in the fine network.
        v = torch.cat([self.head.head(one) for one in torch.split(maps, 1)])
        return v.reshape(*images.shape[:-2], 4)


@torch.no_grad()
def cpu_network(weights: Weights, ranges: Ranges | None = None) -> ByteNetwork | PoseNetwork:
    """Return a network of given weights for inference on this machine's CPU.

    It computes in 8-bit integers where those are exact (on x86 CPUs with VNNI) and the ranges of
    activations are known (they are missing in models of version 0.1), and in float32 elsewhere.
    """
    if ranges is None or not bytes_are_exact():
        return float_network(weights)
    return byte_network(weights, ranges)


@torch.no_grad()
def float_network(weights: Weights) -> PoseNetwork:
    """Return a network that computes in float32, each BatchNorm folded into its convolution."""
    network = _folded_network(weights)
    network.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _folded_network(weights: Weights) -> PoseNetwork:
    network = network_from_weights(weights).requires_grad_(False)
    backbone: Any = network.backbone
    _fold(backbone, "conv1", "bn1")
    for name in BLOCKS:
        block = backbone.get_submodule(name)
        _fold(block, "conv1", "bn1")
        _fold(block, "conv2", "bn2")
    fold_batchnorm(backbone)  # of the shortcuts
    backbone.conv1 = Stem(backbone.conv1)
    return network


def fold_batchnorm(network: nn.Module) -> None:
    """Fold each BatchNorm of a `Sequential` into the convolution before it."""
    for layers in network.modules():
        if isinstance(layers, nn.Sequential):
            for place, layer in enumerate(layers):
                if isinstance(layer, nn.BatchNorm2d):
                    _fold(layers, str(place - 1), str(place))


def _fold(parent: Any, conv: str, norm: str) -> None:
    """Fold a BatchNorm into the convolution before it, and leave an identity in its place."""
    folded = fuse_conv_bn_eval(parent.get_submodule(conv), parent.get_submodule(norm))
    setattr(parent, conv, folded.requires_grad_(False))
    setattr(parent, norm, nn.Identity())


@torch.no_grad()
def byte_network(weights: Weights, ranges: Ranges) -> ByteNetwork:
    """Return a network that computes in 8-bit integers; activations outside ranges are clipped."""
    network = _folded_network(weights)
    backbone: Any = network.backbone
    scales = {name: _scale(*limits) for name, limits in ranges.items()}
    maps, size, blocks = scales["bn1"], INPUT[0] // 4, []
    for name in BLOCKS:
        block = backbone.get_submodule(name)
        inner, output = scales[f"{name}.bn1"], scales[f"{name}.bn2"]
        first = _pack(block.conv1, size, maps, inner)
        kept, shortcut = maps, None
        if block.downsample is not None:
            kept = scales[f"{name}.downsample.1"]
            shortcut = _pack(block.downsample[0], size, maps, kept)
        size //= block.conv1.stride[0]
        second = _pack(block.conv2, size, inner, None if name == BLOCKS[-1] else output, kept)
        blocks.append(ByteBlock(first, second, shortcut))
        maps = output
    stem, step = backbone.conv1.to(memory_format=torch.channels_last), scales["bn1"].step
    stem.weight /= step
    stem.bias.div_(step).add_(0.5)  # so that truncation rounds
    network.backbone = nn.Identity()
    return ByteNetwork(stem, tuple(blocks), network)


@torch.no_grad()
def measured_ranges(weights: Weights, images: Tensor) -> dict[str, tuple[float, float]]:
    """Return the ranges of nearly all of a network's activations on images (K, 224, 224)."""
    network = _folded_network(weights)
    backbone: Any = network.backbone
    ranges: dict[str, tuple[float, float]] = {}

    def note(name: str, maps: Tensor) -> Tensor:
        count = math.ceil(CLIPPED * maps.numel())
        low, high = (maps.flatten().topk(count, largest=end).values[-1] for end in (False, True))
        ranges[name] = min(float(low), 0.0), max(float(high), 0.0)
        return maps

    grey = standardize(images)[:, None]
    maps = note("bn1", backbone.conv1(grey).relu_())
    maps = F.max_pool2d(maps, 3, stride=2, padding=1)
    for name in BLOCKS:
        block = backbone.get_submodule(name)
        inner = note(f"{name}.bn1", block.conv1(maps).relu_())
        if block.downsample is not None:
            maps = note(f"{name}.downsample.1", block.downsample(maps))
        maps = note(f"{name}.bn2", (maps + block.conv2(inner)).relu_())
    return ranges


@torch.no_grad()
def bytes_are_exact() -> bool:
    """Return whether PyTorch has 8-bit convolutions that do not overflow on this machine.

    A CPU without VNNI adds pairs of products in 16 bits, which the largest products exceed.
    """
    channels = 64
    largest: Convolution = nn.Conv2d(channels, channels, 1)
    largest.weight.fill_(WEIGHT_MAX)
    largest.bias.zero_()
    maps = torch.full((1, channels, 4, 4), BYTE_MAX, dtype=torch.uint8)
    maps = maps.contiguous(memory_format=torch.channels_last)
    try:
        sums = _pack(largest, 4, UNIT, None).add_relu(maps, maps)
    except (AttributeError, RuntimeError):  # another version of PyTorch
        return False
    return bool((sums == BYTE_MAX + channels * WEIGHT_MAX * BYTE_MAX).all())


def _scale(low: float, high: float) -> Scale:
    step = (high - low) / BYTE_MAX or 1.0
    return Scale(step, round(-low / step))


def quantize_weights(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights (out, in, h, w) as 8-bit integers, and their steps (out,)."""
    low, high = weight.flatten(1).aminmax(dim=1)
    steps = torch.maximum(-low, high).clamp(min=1e-12) / WEIGHT_MAX
    return weight.div(steps[:, None, None, None]).round_().to(torch.int8), steps


def _pack(
    conv: Convolution, size: int, maps: Scale, output: Scale | None, shortcut: Scale = UNIT
) -> ByteConvolution:
    """Return a convolution in 8-bit integers, for maps of size x size."""
    rounded, steps = quantize_weights(conv.weight)
    geometry = list(conv.stride), list(conv.padding), [1, 1], 1
    shape = [2, conv.weight.shape[1], size, size]  # a film's, to optimise for; others work too
    packed = torch.ops.onednn.qconv_prepack(rounded, steps, maps.step, maps.zero, *geometry, shape)
    return ByteConvolution(packed, steps, conv.bias, geometry, maps, shortcut, output)
