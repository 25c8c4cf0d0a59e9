"""OutlineNetwork: a U-Net that locates the outlines of femur and tibia in a crop of one knee.

A border is learnt as a probability over the rows of each column, and a side of a bone as one over
the columns of each row (He et al., "Fully convolutional boundary regression for retina OCT
segmentation", MICCAI 2019). Its mean is the position, to a fraction of a pixel, and its spread the
uncertainty. Its file, and the network that is installed with kneematch, are read here, too.
"""

import json
import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from kneematch.errors import SettingsError
from kneematch.films.files import write_file
from kneematch.models.weights import builtin_file, check_finite, read_safetensors

OUTLINES_FILE: Final = builtin_file("outlines.safetensors")
FORMAT: Final = "kneematch-outline-network/1"
CHANNELS: Final = (32, 48, 64, 96, 128)  # from half of the crop's resolution down
# Two channels each: the femur's lower and the tibia's upper border; the left and the right side of
# the bones, femur above the joint and tibia below it; the left and the right end of the plateau.
OUTPUTS: Final = 6
WINDOW: Final = 6  # pixels to either side of the most probable one that enter a mean
# The tibial border is followed over groups of columns, at most so many rows up or down each.
GROUP: Final = 4
STEEPEST: Final = 6
LEAST: Final = -12.0  # natural logarithm of a probability; less counts as much


class CropFrame(NamedTuple):
    """The extent of a crop."""

    size: tuple[int, int]  # (height, width) in pixels
    px: float  # pixels per plateau width


JOINT_FRAME: Final = CropFrame((256, 256), 204.8)  # 1.25 x 1.25 plateau widths
LEG_FRAME: Final = CropFrame((128, 64), 40.0)  # 3.2 x 1.6, to show the shafts


class BorderEstimate(NamedTuple):
    """Positions in a crop's pixels, (0, 0) being its top left corner, and standard deviations."""

    borders: Tensor  # (N, 2, W) y in each column
    border_sd: Tensor  # (N, 2, W)
    sides: Tensor  # (N, 2, H) x in each row
    side_sd: Tensor  # (N, 2, H)
    margins: Tensor  # (N, 2, 2) x, y


class OutlineNetwork(nn.Module):
    """Map crops (N, 1, H, W), standardised, to logits (N, OUTPUTS, H, W)."""

    def __init__(self, channels: tuple[int, ...] = CHANNELS) -> None:
        super().__init__()
        self.channels = channels
        above = (4, *channels[:-1])
        self.encoder = nn.ModuleList(map(_block, above, channels))
        self.decoder = nn.ModuleList(
            _block(wide + narrow, narrow) for narrow, wide in pairwise(channels)
        )
        self.head = nn.Conv2d(channels[0], 4 * OUTPUTS, 1)

    def forward(self, crops: Tensor) -> Tensor:
        """Return logits."""
        skipped = []
        values = F.pixel_unshuffle(crops, 2)
        for level, block in enumerate(self.encoder):
            values = block(F.max_pool2d(values, 2) if level else values)
            skipped.append(values)
        values = skipped.pop()
        for block in reversed(self.decoder):
            larger = F.interpolate(values, scale_factor=2.0, mode="nearest")
            values = block(torch.cat([skipped.pop(), larger], dim=1))
        return F.pixel_shuffle(self.head(values), 2)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs, momentum=0.02),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


def standardize(crops: Tensor) -> Tensor:
    """Return crops (N, H, W) with mean 0 and standard deviation 1, as (N, 1, H, W)."""
    deviation, mean = torch.std_mean(crops, dim=(-2, -1), keepdim=True)
    return ((crops - mean) / deviation.clamp(min=1e-6))[:, None]


def split_logits(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits of borders (N, 2, W, H), sides (N, 2, H, W) and margins (N, 2, H, W).

    Each is to be normalised along its last axis, the margins along their last two.
    """
    borders, sides, margins = torch.split(logits, 2, dim=1)
    return borders.mT, sides, margins


def locate(logits: Tensor) -> BorderEstimate:
    """Return the positions that logits (N, OUTPUTS, H, W) stand for."""
    borders, sides, margins = split_logits(logits.float())
    femur, tibia = borders.unbind(1)
    # Only the tibial border is followed as one line: the sides of the femoral notch are too steep.
    modes = torch.stack([femur.argmax(-1), _continuous_mode(tibia)], dim=1)
    y, y_sd = _mean_near_mode(borders, modes)
    x, x_sd = _mean_near_mode(sides)
    share = margins.flatten(-2).softmax(-1).view_as(margins)
    ends = [_mean_near_mode(share.sum(axis).log())[0] for axis in (-2, -1)]
    return BorderEstimate(y, y_sd, x, x_sd, torch.stack(ends, dim=-1))


def locate_sides(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return `sides` and `side_sd` of `locate` alone."""
    return _mean_near_mode(split_logits(logits.float())[1])


def _continuous_mode(logits: Tensor) -> Tensor:
    """Return rows (N, W), each a mode of softmax(logits), (N, W, H), that form one line.

    The most probable line whose steps are at most STEEPEST, by Viterbi's algorithm. Without it,
    single columns jump to another edge and back.
    """
    columns = F.avg_pool1d(logits.log_softmax(-1).clamp(min=LEAST).mT, GROUP).mT  # (N, W / 4, H)
    best = [columns[:, 0]]
    for column in columns.unbind(1)[1:]:
        near = F.max_pool1d(best[-1][None], 2 * STEEPEST + 1, 1, STEEPEST)[0]
        best.append(column + near)
    line = [best.pop().argmax(-1, keepdim=True)]
    for sums in reversed(best):
        line.append(_best_near(sums, line[-1], STEEPEST))
    rows = torch.cat(line[::-1], dim=1).repeat_interleave(GROUP, 1)
    return _best_near(logits, rows[..., None], GROUP)[..., 0]


def _best_near(values: Tensor, rows: Tensor, reach: int) -> Tensor:
    """Return the index of the largest of values (..., H) within a reach of rows (..., 1)."""
    window = torch.arange(-reach, reach + 1, device=values.device)
    near = (rows + window).clamp(0, values.shape[-1] - 1)
    return near.gather(-1, values.gather(-1, near).argmax(-1, keepdim=True))


def _mean_near_mode(logits: Tensor, modes: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of softmax(logits) near its mode, along the last axis.

    `modes` (...) are indices to take for the modes; default: those of the largest logits.
    """
    length = logits.shape[-1]
    share = logits.softmax(-1)
    modes = share.argmax(-1) if modes is None else modes
    window = torch.arange(-WINDOW, WINDOW + 1, device=logits.device)
    near = (modes[..., None] + window).clamp(0, length - 1)
    weight = share.gather(-1, near)
    mean = (weight * (near + 0.5)).sum(-1) / weight.sum(-1)
    # The spread is that of the whole distribution: a second candidate far away is doubt.
    places = torch.arange(length, device=logits.device) + 0.5
    first, second = (share @ torch.stack([places, places.square()], -1)).unbind(-1)
    variance = second - 2 * mean * first + mean.square()
    return mean, variance.clamp(min=0).sqrt()


def save_network(
    path: str | os.PathLike[str], network: OutlineNetwork, about: Mapping[str, Any]
) -> None:
    """Write a network in half precision; `about` (JSON) says what it was trained on."""
    tensors = {
        name: (tensor.half() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in network.state_dict().items()
    }
    described = {"format": FORMAT, "about": json.dumps({**about, "channels": network.channels})}
    write_file(path, save(tensors, described))


def load_network(path: str | os.PathLike[str] | None = None) -> OutlineNetwork:
    """Read a network for inference; by default the one that is installed with kneematch.

    Raises:
        SettingsError: the file is missing, is no outline network, or holds unusable values.
    """
    path = path or OUTLINES_FILE
    tensors, metadata = read_safetensors(path, FORMAT)
    try:
        network = OutlineNetwork(tuple(map(int, json.loads(metadata["about"])["channels"])))
        network.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        for name, tensor in tensors.items():
            check_finite(name, tensor)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"{path} is not a usable outline network: {reason}.") from error
    return network.eval()
