"""Tell from the view of a knee whether it shows metal or open growth plates, by a small network.

The network is fully convolutional: it says for every cell of 16 x 16 pixels how likely metal, or a
growth plate, is seen there. The sum of these probabilities is the number of cells that show it.
"""

from functools import cache
from itertools import chain
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from kneematch.devices import call_in_full_batch
from kneematch.models.weights import builtin_file, load_for_inference, read_safetensors
from kneematch.paper.network import EPSILON

ROWS: Final = slice(48, 352)  # part of a view that is looked at
COLUMNS: Final = slice(13, 237)
STRIDE: Final = 16  # pixels per cell
CHANNELS: Final = (8, 16, 32, 32, 48)
STRIDES: Final = (2, 2, 2, 1, 2)
KINDS: Final = 2  # metal, growth plates
FEMUR: Final = slice(0, 8)  # rows of cells that its growth plate may lie in
TIBIA: Final = slice(10, None)
# Cells that must show metal, and a growth plate (geometric mean of both bones). On phantoms and
# real films together, at most 1 % of the knees without are then taken to have it.
METAL_CELLS: Final = 7.0
PLATE_CELLS: Final = 4.0


class Findings(NamedTuple):
    """What the view of a knee shows."""

    metal: bool = False
    growth_plates: bool = False


NOTHING: Final = Findings()


class FindingsNetwork(nn.Module):
    """Predict the log odds of metal and of growth plates in every cell of a view."""

    def __init__(self) -> None:
        super().__init__()
        sizes = zip((1, *CHANNELS), CHANNELS, (5, 3, 3, 3, 3), STRIDES, strict=False)
        self.features = nn.Sequential(*chain.from_iterable(_convolution(*each) for each in sizes))
        width = CHANNELS[-1]
        self.context = nn.Sequential(
            *_convolution(width + 2, width, 3),  # two more channels say where a cell lies
            *_convolution(width, width, 3, dilation=2),
            nn.Conv2d(width, KINDS, 1),
        )

    def forward(self, views: Tensor) -> Tensor:
        """Return log odds (N, 2, 19, 14) of views (N, 400, 250)."""
        maps = self.features(_standardize(views[:, ROWS, COLUMNS])[:, None])
        count, _, height, width = maps.shape
        y, x = (torch.linspace(-1, 1, side).to(maps) for side in (height, width))
        place = (each.expand(count, 1, height, width) for each in (y[:, None], x.abs()))
        maps = torch.cat([maps, *place], 1)
        cells: Tensor = self.context(maps)
        return cells


def _convolution(
    channels_in: int, channels: int, side: int, stride: int = 1, dilation: int = 1
) -> list[nn.Module]:
    padding = side // 2 * dilation
    convolution = nn.Conv2d(channels_in, channels, side, stride, padding, dilation, bias=False)
    return [convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def _standardize(views: Tensor) -> Tensor:
    """Return views (N, H, W) with mean 0 and deviation 1, by every fourth row and column."""
    deviation, mean = torch.std_mean(views[:, ::4, ::4], (-2, -1), keepdim=True)
    return (views - mean) / (deviation + EPSILON)


@torch.no_grad()
def find_findings(views: Tensor) -> list[Findings]:
    """Return what views (N, 400, 250), as `knee_images` makes them, show."""
    cells = call_in_full_batch(builtin_network(views.device), views).sigmoid()
    metal = cells[:, 0].sum((-2, -1))
    femur, tibia = (cells[:, 1, rows].sum((-2, -1)) for rows in (FEMUR, TIBIA))
    seen = torch.stack([metal > METAL_CELLS, femur * tibia > PLATE_CELLS**2], 1)
    return [Findings(*each) for each in seen.tolist()]


@cache
def builtin_network(device: torch.device) -> FindingsNetwork:
    """Return the network that is installed with kneematch."""
    with torch.device("meta"):
        empty = FindingsNetwork()
    weights, _ = read_safetensors(builtin_file("findings.safetensors"))
    return load_for_inference(empty, weights).to(device)
