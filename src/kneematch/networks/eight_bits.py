"""G with convolutions of 8-bit integers, for CPUs that have VNNI."""

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kneematch.networks.folded import Block, Convolution, Folded, grey, pooled

LEVELS: Final = 255  # of an activation
WEIGHT_LEVELS: Final = 127  # on either side of 0
HEADROOM: Final = 1.1  # over the largest activation in the examples
PACKED_FOR: Final = 2  # images, a film's; any other number works too


@dataclass(frozen=True, slots=True)
class Scale:
    """What a stored byte means: step * (byte - zero)."""

    step: float
    zero: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ByteConvolution:
    """A convolution of bytes, in oneDNN's layout."""

    weight: Tensor  # int8
    weight_steps: Tensor  # (out,)
    weight_zeros: Tensor  # (out,)
    bias: Tensor  # (out,) float32
    stride: int
    padding: int
    taken: Scale
    given: Scale

    def __call__(self, maps: Tensor, *, relu: bool) -> Tensor:
        """Bytes to bytes."""
        after = "relu" if relu else "none"
        given = self.given.step, self.given.zero, torch.uint8
        made: Tensor = torch.ops.onednn.qconv2d_pointwise(
            *self._before(maps), self.bias, *self._shape(), *given, after, [], ""
        )
        return made

    def onto(self, kept: Tensor, scale: Scale, maps: Tensor) -> Tensor:
        """relu(kept + convolution of bytes), of the kind of kept, whose memory may be reused."""
        given = (self.given.step, self.given.zero) if kept.dtype == torch.uint8 else (1.0, 0)
        made: Tensor = torch.ops.onednn.qconv2d_pointwise.binary(
            *(*self._before(maps), kept, self.bias, *self._shape(), *given, kept.dtype),
            *(scale.step, scale.zero, "sum", 1.0, "relu", [], ""),
        )
        return made

    def _before(self, maps: Tensor) -> tuple[Tensor | float, ...]:
        taken = self.taken.step, self.taken.zero
        return maps, *taken, self.weight, self.weight_steps, self.weight_zeros

    def _shape(self) -> tuple[list[int] | int, ...]:
        return [self.stride] * 2, [self.padding] * 2, [1, 1], 1


@dataclass(frozen=True, slots=True, eq=False)
class ByteBlock:
    """A Block of bytes."""

    first: ByteConvolution
    second: ByteConvolution
    shortcut: ByteConvolution | None

    def __call__(self, maps: Tensor, *, last: bool) -> Tensor:
        """Bytes to bytes; the last block's maps are float32, for what follows it is."""
        inner = self.first(maps, relu=True)
        kept, scale = maps, self.first.taken
        if self.shortcut is not None:
            kept, scale = self.shortcut(maps, relu=False), self.shortcut.given
        if last:
            kept, scale = (kept.float() - scale.zero) * scale.step, Scale(1.0)
        return self.second.onto(kept, scale, inner)


@dataclass(frozen=True, slots=True, eq=False)
class Bytes:
    """A PoseNetwork for inference on the CPU; its first and last layers are in float32."""

    stem: Convolution  # its answer is in steps, and half a step too high: cut off, it is rounded
    blocks: tuple[ByteBlock, ...]
    float32: Folded

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Vectors v (..., 4) of images (..., 224, 224)."""
        maps = pooled(self.stem(grey(images))).clamp_(0, LEVELS).to(torch.uint8)
        for block in self.blocks:
            maps = block(maps, last=block is self.blocks[-1])
        return self.float32.vectors(maps).reshape(*images.shape[:-2], 4)


@torch.no_grad()
def in_bytes(network: Folded, examples: Tensor) -> Bytes:
    """A network whose steps are chosen, once, so that the activations of examples fit in bytes.

    Args:
        network: in float32.
        examples: (K, 224, 224), of the kind that it will see.
    """
    maps = pooled(network.stem(grey(examples)).relu_())
    step = _scale(maps).step
    blocks = []
    for block in network.blocks:
        packed, maps = _block(block, maps)
        blocks.append(packed)
    weight, bias = network.stem.weight / step, network.stem.bias / step + 0.5
    return Bytes(replace(network.stem, weight=weight, bias=bias), tuple(blocks), network)


def _block(block: Block, maps: Tensor) -> tuple[ByteBlock, Tensor]:
    """A block in bytes, and what it makes of maps in float32."""
    inner = block.first(maps).relu_()
    kept, shortcut = maps, None
    if block.shortcut is not None:
        kept = block.shortcut(maps)
        shortcut = _pack(block.shortcut, maps, _scale(maps), _scale(kept))
    after = block.second(inner).add_(kept).relu_()
    first = _pack(block.first, maps, _scale(maps), _scale(inner))
    return ByteBlock(
        first, _pack(block.second, inner, _scale(inner), _scale(after)), shortcut
    ), after


def _scale(maps: Tensor) -> Scale:
    low, high = HEADROOM * min(float(maps.min()), 0.0), HEADROOM * float(maps.max())
    step = (high - low) / LEVELS or 1.0
    return Scale(step, round(-low / step))


def _pack(convolution: Convolution, maps: Tensor, taken: Scale, given: Scale) -> ByteConvolution:
    steps = convolution.weight.abs().amax((1, 2, 3)).clamp(min=1e-12) / WEIGHT_LEVELS
    rounded = (convolution.weight / steps[:, None, None, None]).round().to(torch.int8)
    stride, padding = convolution.stride, convolution.padding
    packed = torch.ops.onednn.qconv_prepack(
        *(rounded, steps, taken.step, taken.zero, [stride] * 2, [padding] * 2, [1, 1], 1),
        [PACKED_FOR, *maps.shape[1:]],
    )
    zeros = torch.zeros(len(steps), dtype=torch.int32)
    return ByteConvolution(packed, steps, zeros, convolution.bias, stride, padding, taken, given)


@torch.no_grad()
def exact() -> bool:
    """Whether this machine's PyTorch has such convolutions and they do not overflow.

    Without VNNI a CPU adds pairs of products in 16 bits, which the largest ones exceed.
    """
    channels = 64
    weight = torch.full((channels, channels, 1, 1), float(WEIGHT_LEVELS))
    largest = Convolution(weight, torch.zeros(channels), stride=1, padding=0)
    maps = torch.full((1, channels, 4, 4), LEVELS, dtype=torch.uint8)
    maps = maps.contiguous(memory_format=torch.channels_last)
    try:
        sums = _pack(largest, maps, Scale(1.0), Scale(1.0)).onto(maps.float(), Scale(1.0), maps)
    except (AttributeError, RuntimeError):  # not there, or called otherwise: an older PyTorch
        return False
    return bool((sums == LEVELS + channels * WEIGHT_LEVELS * LEVELS).all())
