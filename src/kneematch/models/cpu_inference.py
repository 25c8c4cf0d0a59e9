"""The pose network for inference on a CPU: BatchNorm folded, convolutions in 8-bit integers.

The 8-bit convolutions are oneDNN's, called through operators that PyTorch has but does not
document. For the two knees of a film, with one thread (AMD EPYC), the fine network of half the
width takes 9.9 ms and the coarse one 23.3, in ONNX Runtime's 8 bits 10.3 and 26.4, in bfloat16
13.6 and 40.0, in float32 22.5 and 76.8. On 100 phantoms 8 bits move the plateau's margins by
0.088 % of its width (median; 95th percentile 0.267 %).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch.models.weights import (
    LARGEST_LEVEL,
    Weights,
    empty_pose_network,
    load_for_inference,
    quantize_weights,
)
from kneematch.paper.network import INPUT, PoseNetwork, standardize

BYTE_MAX: Final = 255  # largest activation
STEM_PADDING: Final = 3
# Share of the activations at either end that a measured range clips. With none clipped, a rare
# large one makes all steps coarse: the median distance of poses from those in float32 doubles.
CLIPPED: Final = 1e-4
BLOCKS: Final = tuple(f"layer{layer}.{block}" for layer in (1, 2, 3, 4) for block in (0, 1))
SHORTCUT: Final = "downsample.1"  # the only activations that can be negative
RANGED: Final = (  # layers whose activations are stored as bytes
    "bn1",
    *(f"{block}.bn{number}" for block in BLOCKS for number in (1, 2)),
    *(f"layer{layer}.0.{SHORTCUT}" for layer in (2, 3, 4)),
)

Ranges = Mapping[str, tuple[float, float]]  # lowest and highest activation, by layer
Scale = tuple[float, int]  # step and zero: a byte stands for step * (byte - zero)
UNIT: Final[Scale] = (1.0, 0)
# From bytes (K, in, H, W), and bytes of a shortcut (K, out, h, w) or none, to (K, out, h, w).
Convolution = Callable[..., Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class ByteNetwork:
    """A PoseNetwork whose residual blocks compute in 8 bits, and the other layers in float32."""

    stem: tuple[Tensor, Tensor]  # weight (width, 4, 4, 4) and bias, for outputs in byte steps
    # Both convolutions of each block, and that of its shortcut.
    blocks: tuple[tuple[Convolution, Convolution, Convolution | None], ...]
    head: PoseNetwork  # without a backbone

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return vectors v (..., 4) of images (..., 224, 224)."""
        grey = standardize(images).reshape(-1, 1, *images.shape[-2:])
        pixels = F.pixel_unshuffle(F.pad(grey, (STEM_PADDING,) * 4), 2)  # (K, 4, 115, 115)
        maps = F.conv2d(pixels.contiguous(memory_format=torch.channels_last), *self.stem).relu_()
        maps = F.max_pool2d(maps, 3, stride=2, padding=1).clamp_(max=BYTE_MAX).to(torch.uint8)
        for first, second, project in self.blocks:
            shortcut = maps if project is None else project(maps)
            maps = second(first(maps), shortcut)  # the last one returns (K, 8 width, 7, 7), float32
        # One image at a time: in a batch the sums are rounded differently, and the last digit of a
        # coarse pose can change a byte in the fine network.
        v = torch.cat([self.head.head(one) for one in torch.split(maps, 1)])
        return v.reshape(*images.shape[:-2], 4)


def cpu_network(weights: Weights, ranges: Ranges) -> ByteNetwork | PoseNetwork:
    """Return a network for inference on this machine's CPU.

    It computes in 8-bit integers where those are exact (on x86 CPUs with VNNI), else in float32.
    """
    return byte_network(weights, ranges) if bytes_are_exact() else float_network(weights)


def float_network(weights: Weights) -> PoseNetwork:
    """Return a network that computes in float32, each BatchNorm folded into its convolution."""
    return load_for_inference(empty_pose_network(weights), weights)


@torch.no_grad()
def byte_network(weights: Weights, ranges: Ranges) -> ByteNetwork:
    """Return a network that computes in 8-bit integers; activations outside ranges are clipped."""
    network = float_network(weights)
    backbone: Any = network.backbone
    steps = {name: (high - low) / BYTE_MAX or 1.0 for name, (low, high) in ranges.items()}
    scales = {name: (step, round(-ranges[name][0] / step)) for name, step in steps.items()}
    maps, size, blocks = scales["bn1"], INPUT[0] // 4, []
    for name in BLOCKS:
        block = backbone.get_submodule(name)
        inner, output = scales[f"{name}.bn1"], scales[f"{name}.bn2"]
        first = byte_convolution(block.conv1, size, maps, inner)
        kept, project = maps, None
        if block.downsample is not None:
            kept = scales[f"{name}.{SHORTCUT}"]
            project = byte_convolution(block.downsample[0], size, maps, kept, relu=False)
        size //= block.conv1.stride[0]
        last = None if name == BLOCKS[-1] else output
        second = byte_convolution(block.conv2, size, inner, last, shortcut=kept)
        blocks.append((first, second, project))
        maps = output
    # The three colours of a grey image are equal, so their weights add up. The stride of 2 becomes
    # four channels, one for each pixel of 2 x 2: they suit a CPU better than one.
    kernel = F.pad(backbone.conv1.weight.sum(1, keepdim=True), (0, 1, 0, 1))  # (width, 1, 8, 8)
    kernel = F.pixel_unshuffle(kernel, 2).contiguous(memory_format=torch.channels_last)
    # The bias is raised by 0.5 so that truncation rounds.
    stem = kernel / steps["bn1"], backbone.conv1.bias / steps["bn1"] + 0.5
    network.backbone = nn.Identity()
    return ByteNetwork(stem, tuple(blocks), network)


@torch.no_grad()
def measured_ranges(weights: Weights, images: Tensor) -> dict[str, tuple[float, float]]:
    """Return the ranges of nearly all of a network's activations on images (K, 224, 224)."""
    network, ranges = float_network(weights), {}

    def measure(name: str, maps: Tensor) -> None:
        values = maps.flatten() if name.endswith(SHORTCUT) else maps.relu().flatten()
        count = math.ceil(CLIPPED * values.numel())
        low, high = (float(values.topk(count, largest=end).values[-1]) for end in (False, True))
        ranges[name] = min(low, 0.0), max(high, 0.0)

    for name in RANGED:
        place = name.removesuffix(".bn2")  # the sum with the shortcut is the block's own output
        network.backbone.get_submodule(place).register_forward_hook(
            lambda _, __, maps, name=name: measure(name, maps)
        )
    network(images)
    return ranges


@torch.no_grad()
def bytes_are_exact() -> bool:
    """Return whether PyTorch has 8-bit convolutions that do not overflow on this machine.

    A CPU without VNNI adds pairs of products in 16 bits, which the largest products exceed.
    """
    channels = 64
    largest: Any = nn.Conv2d(channels, channels, 1)
    largest.weight.fill_(LARGEST_LEVEL)
    largest.bias.zero_()
    maps = torch.full((1, channels, 4, 4), BYTE_MAX, dtype=torch.uint8)
    maps = maps.contiguous(memory_format=torch.channels_last)
    try:
        sums = byte_convolution(largest, 4, UNIT, None)(maps, maps)
    except (AttributeError, RuntimeError):  # another version of PyTorch
        return False
    return bool((sums == BYTE_MAX + channels * LARGEST_LEVEL * BYTE_MAX).all())


def byte_convolution(
    conv: Any,
    size: int,
    scale: Scale,
    output: Scale | None,
    *,
    shortcut: Scale = UNIT,
    relu: bool = True,
) -> Convolution:
    """Return an nn.Conv2d in 8-bit integers, by oneDNN, optimised for maps of a size.

    The scales are those of the bytes that it is given, returns (None returns float32) and adds if
    there are any. Negative results become 0 with relu, and always so with a shortcut.
    """
    rounded, steps = quantize_weights(conv.weight)
    geometry = list(conv.stride), list(conv.padding), [1, 1], 1
    shape = [2, conv.weight.shape[1], size, size]  # a film has two knees; other numbers work, too
    packed = torch.ops.onednn.qconv_prepack(rounded, steps, *scale, *geometry, shape)
    weights = *scale, packed, steps, torch.zeros_like(steps, dtype=torch.int32)
    dtype = torch.float32 if output is None else torch.uint8
    how = conv.bias, *geometry, *(output or UNIT), dtype
    operator: Any = torch.ops.onednn.qconv2d_pointwise

    def convolve(maps: Tensor, added: Tensor | None = None) -> Any:
        if added is None:
            return operator(maps, *weights, *how, "relu" if relu else "none", [], "")
        step, zero = shortcut
        if output is None:
            added, step, zero = (added.float() - zero) * step, *UNIT
        return operator.binary(maps, *weights, added, *how, step, zero, "sum", 1.0, "relu", [], "")

    return convolve
