"""The pose network for inference on a CPU: BatchNorm folded, convolutions in 8-bit integers.

The 8-bit convolutions are oneDNN's, called through operators that PyTorch has but does not
document. For the two halves of a film one network takes about 24 ms with one thread (AMD EPYC, a
busy machine), against 78 ms in float32 with BatchNorm folded and 96 ms without. ONNX Runtime in 8
bits is about as fast (29 ms untuned; 21 against 22 ms in an earlier comparison), but would add two
dependencies and 0.2 s of imports.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch.networks.pose_network import INPUT, PoseNetwork, standardize

BYTE_MAX: Final = 255  # of an activation
WEIGHT_MAX: Final = 127  # of a weight, to either side of 0
DEVIATIONS: Final = 12.0  # from the mean that an estimated range of activations covers
AGREEMENT: Final = 0.05  # of vectors v in 8 bits and in float32, on noise; on knees it is a tenth
EPSILON: Final = 1e-5  # of BatchNorm
STEM_PADDING: Final = 3
STORED_RANGES: Final = "synthetic_ranges.json"  # beside this file

BLOCKS: Final = tuple(f"layer{layer}.{block}" for layer in (1, 2, 3, 4) for block in (0, 1))

Weights = Mapping[str, Tensor]  # of a PoseNetwork
Ranges = Mapping[str, tuple[float, float]]  # lowest and highest activation, by layer


class Convolution(Protocol):
    """A convolution with its BatchNorm folded in."""

    def __call__(self, maps: Tensor, *, relu: bool) -> Tensor:
        """Return the convolution of maps (K, C, H, W), with or without a ReLU."""

    def add_relu(self, maps: Tensor, shortcut: Tensor) -> Tensor:
        """Return relu(convolution of maps + shortcut); the shortcut may be overwritten."""


@dataclass(frozen=True, slots=True, eq=False)
class FloatConvolution:
    """A convolution in float32."""

    weight: Tensor  # (out, in, h, w), channels last
    bias: Tensor  # (out,)
    stride: int
    padding: int

    def __call__(self, maps: Tensor, *, relu: bool) -> Tensor:
        maps = F.conv2d(maps, self.weight, self.bias, self.stride, self.padding)
        return maps.relu_() if relu else maps

    def add_relu(self, maps: Tensor, shortcut: Tensor) -> Tensor:
        return self(maps, relu=False).add_(shortcut).relu_()


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


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A BasicBlock of folded convolutions."""

    first: Convolution
    second: Convolution
    shortcut: Convolution | None

    def __call__(self, maps: Tensor) -> Tensor:
        inner = self.first(maps, relu=True)
        shortcut = maps if self.shortcut is None else self.shortcut(maps, relu=False)
        return self.second.add_relu(inner, shortcut)


@dataclass(frozen=True, slots=True, eq=False)
class CpuNetwork:
    """A PoseNetwork for inference on a CPU; its first and last layers are in float32."""

    stem: FloatConvolution
    in_bytes: bool
    blocks: tuple[Block, ...]
    head: PoseNetwork  # without a backbone

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return vectors v (..., 4) of images (..., 224, 224)."""
        maps = self.stem(_space_to_depth(standardize(images)), relu=True)
        maps = F.max_pool2d(maps, 3, stride=2, padding=1)
        if self.in_bytes:
            maps = maps.clamp_(max=BYTE_MAX).to(torch.uint8)
        for block in self.blocks:
            maps = block(maps)
        # One image at a time: in a batch the sums are rounded differently, and the last digit of a
        # coarse pose can change a byte in the fine network.
        v = torch.cat([self.head.head(one) for one in torch.split(maps, 1)])
        return v.reshape(*images.shape[:-2], 4)


@torch.no_grad()
def cpu_network(weights: Weights) -> CpuNetwork:
    """Return a network of given weights for inference on this machine's CPU.

    It computes in 8-bit integers where those are exact (on x86 CPUs with VNNI) and agree with
    float32, and in float32 elsewhere.
    """
    if not bytes_are_exact():
        return float_network(weights)
    stored = stored_ranges(weights)
    if stored is not None:
        return byte_network(weights, stored)
    quantized = byte_network(weights, estimated_ranges(weights))
    exact = float_network(weights)
    noise = torch.rand(2, *INPUT, generator=torch.Generator().manual_seed(0))
    difference = (quantized(noise) - exact(noise)).abs().median()
    return quantized if float(difference) < AGREEMENT else exact


def float_network(weights: Weights) -> CpuNetwork:
    """Return a network that computes in float32."""
    blocks = tuple(Block(*_folded_block(weights, name)) for name in BLOCKS)
    return CpuNetwork(_folded_stem(weights), False, blocks, _head(weights))


def byte_network(weights: Weights, ranges: Ranges) -> CpuNetwork:
    """Return a network that computes in 8-bit integers; activations outside ranges are clipped."""
    scales = {name: _scale(*limits) for name, limits in ranges.items()}
    maps, size, blocks = scales["bn1"], INPUT[0] // 4, []
    for name in BLOCKS:
        first, second, shortcut = _folded_block(weights, name)
        inner, output = scales[f"{name}.bn1"], scales[f"{name}.bn2"]
        kept = maps if shortcut is None else scales[f"{name}.downsample.1"]
        blocks.append(
            Block(
                _pack(first, size, maps, inner),
                _pack(second, size // first.stride, inner, output, kept, last=name == BLOCKS[-1]),
                None if shortcut is None else _pack(shortcut, size, maps, kept),
            )
        )
        maps, size = output, size // first.stride
    stem, step = _folded_stem(weights), scales["bn1"].step
    # The stem's output is in steps; the bias is raised by 0.5 so that truncation rounds.
    stem = replace(stem, weight=stem.weight / step, bias=stem.bias / step + 0.5)
    return CpuNetwork(stem, True, tuple(blocks), _head(weights))


def stored_ranges(weights: Weights) -> Ranges | None:
    """Return the ranges that 0.1.0 measured on phantoms for the shipped networks, or None."""
    key = sha256(weights["regress.4.weight"].numpy().tobytes()).hexdigest()[:16]
    text = (files("kneematch.networks") / STORED_RANGES).read_text(encoding="utf-8")
    stored: dict[str, Ranges] = json.loads(text)
    return stored.get(key)


def estimated_ranges(weights: Weights) -> Ranges:
    """Return ranges of a network's activations, estimated from its BatchNorm layers.

    BatchNorm's bias and weight are the mean and the deviation of its output (Nagel et al.,
    "Data-free quantization", ICCV 2019); in a sum, means and variances add up.
    """

    def moments(norm: str) -> tuple[Tensor, Tensor]:
        bias, weight = (weights[f"backbone.{norm}.{kind}"] for kind in ("bias", "weight"))
        return bias, weight.square()

    def limits(mean: Tensor, variance: Tensor) -> tuple[float, float]:
        reach = DEVIATIONS * variance.sqrt()
        return min(float((mean - reach).min()), 0.0), max(float((mean + reach).max()), 0.0)

    mean, variance = moments("bn1")
    ranges = {"bn1": (0.0, limits(mean, variance)[1])}
    for name in BLOCKS:
        ranges[f"{name}.bn1"] = (0.0, limits(*moments(f"{name}.bn1"))[1])
        if f"backbone.{name}.downsample.0.weight" in weights:
            mean, variance = moments(f"{name}.downsample.1")
            ranges[f"{name}.downsample.1"] = limits(mean, variance)
        added_mean, added_variance = moments(f"{name}.bn2")
        mean, variance = mean + added_mean, variance + added_variance
        ranges[f"{name}.bn2"] = (0.0, limits(mean, variance)[1])
    return ranges


@torch.no_grad()
def bytes_are_exact() -> bool:
    """Return whether PyTorch has 8-bit convolutions that do not overflow on this machine.

    A CPU without VNNI adds pairs of products in 16 bits, which the largest products exceed.
    """
    channels = 64
    weight = torch.full((channels, channels, 1, 1), float(WEIGHT_MAX))
    largest = FloatConvolution(weight, torch.zeros(channels), stride=1, padding=0)
    maps = torch.full((1, channels, 4, 4), BYTE_MAX, dtype=torch.uint8)
    maps = maps.contiguous(memory_format=torch.channels_last)
    try:
        sums = _pack(largest, 4, UNIT, UNIT, last=True).add_relu(maps, maps)
    except (AttributeError, RuntimeError):  # another version of PyTorch
        return False
    return bool((sums == BYTE_MAX + channels * WEIGHT_MAX * BYTE_MAX).all())


def _head(weights: Weights) -> PoseNetwork:
    """Return the layers of a PoseNetwork after its backbone."""
    network = PoseNetwork(backbone=nn.Identity()).eval()
    own = network.state_dict()
    network.load_state_dict({name: weights[name] for name in own})
    return network


def _folded_block(
    weights: Weights, name: str
) -> tuple[FloatConvolution, FloatConvolution, FloatConvolution | None]:
    """Return the two convolutions of a BasicBlock and that of its shortcut, if it has one."""
    down = f"{name}.downsample"
    stride = 2 if f"backbone.{down}.0.weight" in weights else 1
    return (
        _fold(weights, f"{name}.conv1", f"{name}.bn1", stride),
        _fold(weights, f"{name}.conv2", f"{name}.bn2", 1),
        _fold(weights, f"{down}.0", f"{down}.1", stride) if stride == 2 else None,
    )


def _fold(weights: Weights, conv: str, norm: str, stride: int) -> FloatConvolution:
    """Return a convolution and the BatchNorm after it as one convolution."""
    kernel = weights[f"backbone.{conv}.weight"]
    mean, variance, weight, offset = (
        weights[f"backbone.{norm}.{kind}"]
        for kind in ("running_mean", "running_var", "weight", "bias")
    )
    scale = weight / (variance + EPSILON).sqrt()
    bias = offset - mean * scale
    kernel = (kernel * scale[:, None, None, None]).contiguous(memory_format=torch.channels_last)
    return FloatConvolution(kernel, bias, stride, kernel.shape[-1] // 2)


def _folded_stem(weights: Weights) -> FloatConvolution:
    """Return the stem (64, 3, 7, 7) as a convolution (64, 4, 4, 4) of `_space_to_depth`."""
    stem = _fold(weights, "conv1", "bn1", 2)
    # The three colours of a grey image are equal, so their weights add up.
    kernel = F.pad(stem.weight.sum(1), (0, 1, 0, 1)).reshape(-1, 4, 2, 4, 2)
    kernel = kernel.permute(0, 2, 4, 1, 3).reshape(-1, 4, 4, 4)
    kernel = kernel.contiguous(memory_format=torch.channels_last)
    return FloatConvolution(kernel, stem.bias, stride=1, padding=0)


def _scale(low: float, high: float) -> Scale:
    step = (high - low) / BYTE_MAX or 1.0
    return Scale(step, round(-low / step))


def _pack(
    conv: FloatConvolution,
    size: int,
    maps: Scale,
    output: Scale,
    shortcut: Scale = UNIT,
    *,
    last: bool = False,
) -> ByteConvolution:
    """Return a convolution in 8-bit integers, for maps of size x size."""
    steps = conv.weight.abs().amax((1, 2, 3)).clamp(min=1e-12) / WEIGHT_MAX
    rounded = (conv.weight / steps[:, None, None, None]).round().to(torch.int8)
    geometry = [conv.stride] * 2, [conv.padding] * 2, [1, 1], 1
    shape = [2, conv.weight.shape[1], size, size]  # a film's, to optimise for; others work too
    packed = torch.ops.onednn.qconv_prepack(rounded, steps, maps.step, maps.zero, *geometry, shape)
    output_scale = None if last else output
    return ByteConvolution(packed, steps, conv.bias, geometry, maps, shortcut, output_scale)


def _space_to_depth(images: Tensor) -> Tensor:
    """Pad images (..., 224, 224) and return their blocks of 2 x 2 as channels: (K, 4, 115, 115).

    A stride of 2 on the image is none on its blocks, and four channels suit a CPU better than one.
    """
    padded = F.pad(images, (STEM_PADDING,) * 4)
    height, width = (side // 2 for side in padded.shape[-2:])
    blocks = padded.reshape(-1, height, 2, width, 2).permute(0, 1, 3, 2, 4)
    return blocks.reshape(-1, height, width, 4).permute(0, 3, 1, 2)  # channels last in memory
