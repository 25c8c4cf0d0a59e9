"""The outline network for inference on a CPU: BatchNorm folded, convolutions in 8-bit integers.

The ranges of activations follow from BatchNorm's parameters, so that no film has to be seen: Nagel
et al., "Data-free quantization through weight equalization and bias correction" (ICCV 2019). For
the two knees of a film, with one thread (AMD EPYC), this takes 20 ms, in bfloat16 33. By
lab/measure.py, measures are as near to masks and to phantoms as in float32, and those of rotated
films differ as much (JSW at x = 0.225: standard deviation 0.23 % in both).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch.models.cpu_inference import (
    BYTE_MAX,
    Convolution,
    byte_convolution,
    bytes_are_exact,
)
from kneematch.models.outlines import JOINT_FRAME, CropFrame, OutlineNetwork
from kneematch.models.weights import fold_batchnorm

# A byte holds a channel's activations up to so many standard deviations; larger ones are clipped.
# With 6, steps are so coarse that measures of a film and of its rotated copy differ more.
DEVIATIONS: Final = 4.0
SMALLEST: Final = 1e-6  # where all activations are 0


@dataclass(frozen=True, slots=True, eq=False)
class ByteOutlineNetwork:
    """An OutlineNetwork whose first convolution computes in float32, and the others in 8 bits."""

    stem: Callable[[Tensor], Tensor]  # returns maps in byte steps
    encoder: tuple[tuple[Convolution, ...], ...]  # by level; the first has one
    decoder: tuple[tuple[Convolution, ...], ...]
    head: Convolution  # returns float32

    @torch.no_grad()
    def __call__(self, crops: Tensor) -> Tensor:
        """Return logits (N, OUTPUTS, H, W) of crops (N, 1, H, W), standardised."""
        pixels = F.pixel_unshuffle(crops, 2).contiguous(memory_format=torch.channels_last)
        maps = self.stem(pixels).clamp_(0, BYTE_MAX).to(torch.uint8)
        skipped = []
        for level, block in enumerate(self.encoder):
            maps = _in_turn(block, _halved(maps) if level else maps)
            skipped.append(maps)
        maps = skipped.pop()
        for block in reversed(self.decoder):
            maps = _in_turn(block, torch.cat([skipped.pop(), _doubled(maps)], dim=1))
        return F.pixel_shuffle(self.head(maps), 2)


def cpu_outline_network(
    network: OutlineNetwork, frame: CropFrame = JOINT_FRAME
) -> ByteOutlineNetwork | OutlineNetwork:
    """Return a network for inference on this machine's CPU; the one that is given is changed.

    It computes in 8-bit integers where those are exact (on x86 CPUs with VNNI), else in float32.
    It is quick for crops of one frame only: two of legs take 4 ms, and 26 by one for joints.
    """
    if bytes_are_exact():
        return byte_outline_network(network, frame)
    fold_batchnorm(network)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@torch.no_grad()
def byte_outline_network(network: OutlineNetwork, frame: CropFrame) -> ByteOutlineNetwork:
    """Return a network that computes in 8-bit integers; the one that is given is changed."""
    encoder, decoder = ([*map(_largest, part)] for part in (network.encoder, network.decoder))
    # Maps that are joined have one scale: what a level skips, and what comes from the level below.
    for skipped, below in zip(encoder, [*decoder[1:], encoder[-1]], strict=False):
        skipped[-1] = below[-1] = max(skipped[-1], below[-1])
    fold_batchnorm(network)
    encoding, decoding = (
        [[layer for layer in block.children() if isinstance(layer, nn.Conv2d)] for block in part]
        for part in (network.encoder, network.decoder)
    )
    stem: Any = encoding[0].pop(0)
    first = encoder[0].pop(0)  # largest value of its output
    stem.weight /= first / BYTE_MAX
    stem.bias /= first / BYTE_MAX
    stem.bias += 0.5  # so that truncation rounds
    sizes = [frame.size[0] >> level for level in range(1, len(encoding) + 1)]
    given = [first, *(largest[-1] for largest in encoder)]
    return ByteOutlineNetwork(
        stem,
        tuple(map(_byte_block, encoding, sizes, given, encoder)),
        tuple(map(_byte_block, decoding, sizes, given[1:], decoder)),
        byte_convolution(network.head, sizes[0], _scale(decoder[0][-1]), None, relu=False),
    )


def _largest(block: nn.Module) -> list[float]:
    """Return the largest activation after each BatchNorm of a block that a byte is to hold."""
    norms = (layer for layer in block.children() if isinstance(layer, nn.BatchNorm2d))
    largest = ((norm.bias + DEVIATIONS * norm.weight.abs()).max() for norm in norms)
    return [max(float(each), SMALLEST) for each in largest]


def _byte_block(
    layers: Sequence[nn.Conv2d], size: int, given: float, returned: Sequence[float]
) -> tuple[Convolution, ...]:
    """Return convolutions, given the largest value of their input and of the output of each."""
    scales = pairwise(map(_scale, (given, *returned)))
    return tuple(
        byte_convolution(layer, size, *both) for layer, both in zip(layers, scales, strict=True)
    )


def _scale(largest: float) -> tuple[float, int]:
    return largest / BYTE_MAX, 0


def _in_turn(block: Sequence[Convolution], maps: Tensor) -> Tensor:
    for convolution in block:
        maps = convolution(maps)
    return maps


def _halved(maps: Tensor) -> Tensor:
    """Return the largest of each 2 x 2 bytes of maps (N, C, H, W), which max_pool2d refuses."""
    rows = torch.maximum(maps[:, :, ::2], maps[:, :, 1::2])
    largest = torch.maximum(rows[..., ::2], rows[..., 1::2])
    return largest.contiguous(memory_format=torch.channels_last)


def _doubled(maps: Tensor) -> Tensor:
    """Return maps (N, C, H, W) with each byte repeated 2 x 2 times."""
    count, channels, height, width = maps.shape
    pixels = maps.permute(0, 2, 3, 1)[:, :, None, :, None]
    larger = pixels.expand(count, height, 2, width, 2, channels)
    return larger.reshape(count, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)
