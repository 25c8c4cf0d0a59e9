"""The locator: a small fully convolutional network that finds frontal knees anywhere on a film.

It sees the whole film once, at low resolution, and says for every cell of 8 x 8 pixels whether the
middle of a tibial plateau lies there, how wide the plateau is, how it is rotated, and whether its
lateral side points to the picture's left.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch.devices import cpu_has_bfloat16
from kneematch.networks.cpu_inference import fold_batchnorm

STRIDE: Final = 8  # input pixels per cell
WIDTHS: Final = (16, 32, 64, 96, 128)  # channels at strides 2, 4, 8, 16 and 32
MERGED: Final = 64  # channels of the maps that are merged from coarse to fine
UNIT_PX: Final = 32.0  # plateau width of which the network returns the logarithm 0
DARK: Final = 0.05  # added to the deviation, so that noise in black borders stays small
FEW: Final = -4.0  # initial logit of a knee: few cells hold one
CHANNELS: Final = ("knee", "x", "y", "log_width", "rotation", "mirrored")


def prepare_input(images: Tensor) -> Tensor:
    """Return images (N, H, W) as the network's input (N, 2, H, W): grey and its local contrast."""
    grey = images[:, None]
    deviation, mean = torch.std_mean(grey, dim=(-2, -1), keepdim=True, correction=0)
    grey = (grey - mean) / (deviation + 1e-3)
    detail = grey - _smooth(grey)
    return torch.cat([grey, detail / (_smooth(detail.square()).sqrt() + DARK)], dim=1)


def _smooth(images: Tensor) -> Tensor:
    """Return local means (N, 1, H, W) over about 40 pixels."""
    cells = F.avg_pool2d(images, STRIDE)
    cells = F.avg_pool2d(cells, 5, stride=1, padding=2, count_include_pad=False)
    return F.interpolate(cells, images.shape[-2:], mode="bilinear")


def _convolution(channels_in: int, channels: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    )


class Residual(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _convolution(channels, channels)
        self.second = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, C, H, W) to maps of the same shape."""
        return F.relu(maps + self.second(self.first(maps)), inplace=True)


class Locator(nn.Module):
    """Predict knees in every cell of a film; see `CHANNELS` for the maps that it returns."""

    def __init__(self) -> None:
        super().__init__()
        stages, before = [], 2
        for number, channels in enumerate(WIDTHS):
            blocks = [Residual(channels) for _ in range((0, 1, 1, 2, 2)[number])]
            stages.append(nn.Sequential(_convolution(before, channels, 2), *blocks))
            before = channels
        self.stages = nn.ModuleList(stages)
        self.lateral = nn.ModuleList(nn.Conv2d(channels, MERGED, 1) for channels in WIDTHS[2:])
        self.merge = nn.ModuleList(_convolution(MERGED, MERGED) for _ in WIDTHS[2:])
        self.head = nn.Conv2d(MERGED, len(CHANNELS), 1)
        rare = torch.tensor([FEW, *[0.0] * (len(CHANNELS) - 1)])
        self.head.bias = nn.Parameter(rare)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return maps (N, 6, H / 8, W / 8) of inputs (N, 2, H, W); H and W are multiples of 32."""
        maps = []
        for stage in self.stages:
            inputs = stage(inputs)
            maps.append(inputs)
        merged = None
        for number in (2, 1, 0):
            lateral: Any = self.lateral[number]
            here = lateral(maps[2 + number].to(lateral.weight.dtype))
            if merged is not None:
                here = here + F.interpolate(merged, scale_factor=2.0, mode="nearest")
            merged = self.merge[number](here)
        head: Tensor = self.head(merged)
        return head


@dataclass(frozen=True, slots=True)
class Knee:
    """A knee that the locator sees; lengths and points in pixels of the image."""

    score: float  # how certain it is that a frontal knee lies here, 0 to 1
    x: float  # middle of the tibial plateau
    y: float
    width: float  # of the plateau
    rotation: float  # radians, clockwise positive
    mirrored: float  # probability that the lateral side points to the left


def locator_from_weights(weights: Mapping[str, Tensor]) -> Locator:
    """Return a locator with the given weights, ready for inference on a CPU.

    Where the CPU has bfloat16, all but the finest maps are computed in it: that takes 6 ms instead
    of 9, and knees move by 0.01 % of the plateau's width (median; at most 0.3 %, of 282 knees).
    """
    with torch.device("meta"):
        network = Locator().eval()
    network.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    fold_batchnorm(network)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if cpu_has_bfloat16():
        for part in (network.stages, network.lateral[1:], network.merge[1:]):
            part.to(torch.bfloat16)
    return network.requires_grad_(False)


@torch.no_grad()
def find_knees(network: nn.Module, image: Tensor, *, most: int = 8) -> list[Knee]:
    """Return the knees in an image (H, W), the most certain first; none is near another."""
    height, width = image.shape
    padded = F.pad(image, (0, -width % 32, 0, -height % 32))
    maps = network(prepare_input(padded[None]).to(next(network.parameters()).dtype))[0]
    heat = maps[0].sigmoid()
    peaks = F.max_pool2d(heat[None, None], 3, stride=1, padding=1)[0, 0] == heat
    scores, order = (heat * peaks).flatten().topk(min(4 * most, heat.numel()))
    cells = maps.flatten(1)[:, order].T.tolist()
    knees: list[Knee] = []
    for score, place, cell in zip(scores.tolist(), order.tolist(), cells, strict=True):
        row, column = divmod(place, maps.shape[-1])
        _, dx, dy, log_width, rotation, mirrored = cell
        knee = Knee(
            score,
            (column + 0.5 + dx) * STRIDE,
            (row + 0.5 + dy) * STRIDE,
            UNIT_PX * math.exp(log_width),
            rotation,
            1 / (1 + math.exp(-mirrored)),
        )
        near = (
            (other.x - knee.x) ** 2 + (other.y - knee.y) ** 2
            < (0.6 * max(other.width, knee.width)) ** 2
            for other in knees
        )
        if not any(near):
            knees.append(knee)
        if len(knees) == most:
            break
    return knees
