"""Find out how many frontal knees a film shows, and where, with the locator network.

The locator is small and fully convolutional. It sees the whole film once, at low resolution, and
says for every cell of 8 x 8 pixels whether the middle of a tibial plateau lies there, how wide the
plateau is, how it is rotated, and whether its lateral side points to the picture's left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from operator import attrgetter
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch.devices import cpu_has_bfloat16, map_by_shape
from kneematch.models.weights import builtin_file, load_for_inference, read_safetensors
from kneematch.paper.network import standardize
from kneematch.sampling import resize, transform

LOCATOR_FILE: Final = builtin_file("locator.safetensors")
LONG_SIDES: Final = 256, 896  # longer side of the copies, for usual and for small knees
CERTAIN: Final = 0.5  # score above which a film is not looked at again
MOST_KNEES: Final = 8  # answers on a film
NEAR: Final = 0.6  # distance of answers that are the same knee, in plateau widths
LEAST: Final = 0.3  # score of a knee
SECOND: Final = 0.2  # score of the other knee of a pair
MIN_ENLARGEMENT: Final = 1.2  # least factor between the film and its small copy for a second look
INSIDE: Final = 0.7  # share of a plateau that lies on the film
SMALLEST: Final = 0.03  # plateau's width over the film's; full-leg films have 0.04 and more
MAX_WIDTH_RATIO: Final = 1.5  # between the two knees of a pair
MIN_DISTANCE: Final = 0.9  # between the two knees of a pair, in plateau widths
MAX_STEP: Final = 2.5  # between the heights of the two knees, in plateau widths
STRIDE: Final = 8  # input pixels per cell
WIDTHS: Final = (16, 32, 64, 96, 128)  # channels at strides 2, 4, 8, 16 and 32
BLOCKS: Final = (0, 1, 1, 2, 2)  # residual blocks there
MERGED: Final = 64  # channels of the maps that are merged from coarse to fine
UNIT_PX: Final = 32.0  # plateau width of which the network returns the logarithm 0
VIEW_WIDTH: Final = 2.5  # width of the image around a located knee, in widths of its plateau
VIEW_SIZE: Final = (400, 250)  # the plateau has 100 pixels, about as in the network's input
EPSILON: Final = 0.05  # added to the deviation, so that noise in black borders stays small
PRIOR_LOGIT: Final = -4.0  # initial logit of a knee: few cells hold one
CHANNELS: Final = ("knee", "x", "y", "log_width", "rotation", "mirrored")


@dataclass(frozen=True, slots=True)
class KneeLocation:
    """Where a knee lies on a film, or in the copy of it that the locator sees."""

    x: float  # middle of the tibial plateau, in pixels
    y: float
    width: float  # plateau's width in pixels
    rotation: float  # radians, clockwise positive, -0.7 to 0.7
    lateral_left: float  # probability that the lateral side is left in the upright picture
    quarter_turns: int = 0  # clockwise, by which the film is to be turned to be upright
    score: float = 1.0  # how certain it is that a frontal knee lies here, 0 to 1

    @property
    def mirrored(self) -> bool:
        """Whether the lateral side points to the left of the upright picture."""
        return self.lateral_left > 0.5


def turn_upright(pixels: Tensor, quarter_turns: int) -> tuple[Tensor, Tensor]:
    """Turn a film (H, W) clockwise; return it and the map (3, 3) of its pixels to the film's."""
    height, width = pixels.shape
    back = (
        [[1.0, 0, 0], [0, 1, 0]],
        [[0, 1.0, 0], [-1, 0, height]],
        [[-1.0, 0, width], [0, -1, height]],
        [[0, -1.0, width], [1, 0, 0]],
    )[quarter_turns]
    # rot90 would copy a film that is upright.
    turned = torch.rot90(pixels, -quarter_turns, (0, 1)) if quarter_turns else pixels
    return turned, torch.tensor([*back, [0, 0, 1]], dtype=torch.float64)


def prepare_input(images: Tensor) -> Tensor:
    """Return images (N, H, W) as the network's input (N, 2, H, W): grey and its local contrast."""
    grey = standardize(images)[:, None]
    detail = grey - _smooth(grey)
    return torch.cat([grey, detail / (_smooth(detail.square()).sqrt() + EPSILON)], dim=1)


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
        self.stages = nn.ModuleList(
            nn.Sequential(
                _convolution(before, channels, 2), *(Residual(channels) for _ in range(blocks))
            )
            for before, channels, blocks in zip((2, *WIDTHS), WIDTHS, BLOCKS, strict=False)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(channels, MERGED, 1) for channels in WIDTHS[2:])
        self.merge = nn.ModuleList(_convolution(MERGED, MERGED) for _ in WIDTHS[2:])
        self.head = nn.Conv2d(MERGED, len(CHANNELS), 1)
        self.head.bias = nn.Parameter(torch.tensor([PRIOR_LOGIT, *[0.0] * (len(CHANNELS) - 1)]))

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


@cache
def builtin_locator(device: str = "cpu", *, precise: bool = False) -> Locator:
    """Return the locator that is installed with kneematch, ready for inference.

    Where the CPU has bfloat16, all but the finest maps are computed in it: that takes 6 ms instead
    of 9, and knees move by 0.01 % of the plateau's width (median; at most 0.3 %, of 282 knees).
    Not so if it is to be precise, as on a GPU.
    """
    with torch.device("meta"):
        empty = Locator()
    network = load_for_inference(empty, read_safetensors(LOCATOR_FILE)[0])
    if not precise and cpu_has_bfloat16():
        for part in (network.stages, network.lateral[1:], network.merge[1:]):
            part.to(torch.bfloat16)
    return network.to(device)


@torch.no_grad()
def find_knees(network: nn.Module, images: Sequence[Tensor]) -> list[list[KneeLocation]]:
    """Return the knees in each image (H, W), in its pixels; the most certain first."""

    def look(images: Tensor) -> Any:
        return network(prepare_input(images).to(next(network.parameters()).dtype))

    padded = [F.pad(each, (0, -each.shape[1] % 32, 0, -each.shape[0] % 32)) for each in images]
    return [_peaks(maps) for maps in map_by_shape(look, padded)]


def _peaks(maps: Tensor) -> list[KneeLocation]:
    """Return the knees in the network's maps (6, H / 8, W / 8) of an image."""
    heat = maps[0].sigmoid()
    peaks = F.max_pool2d(heat[None, None], 3, stride=1, padding=1)[0, 0] == heat
    scores, order = (heat * peaks).flatten().topk(min(4 * MOST_KNEES, heat.numel()))
    cells = maps.flatten(1)[:, order].T.tolist()
    knees: list[KneeLocation] = []
    for score, place, cell in zip(scores.tolist(), order.tolist(), cells, strict=True):
        row, column = divmod(place, maps.shape[-1])
        _, dx, dy, log_width, rotation, mirrored = cell
        knee = KneeLocation(
            x=(column + 0.5 + dx) * STRIDE,
            y=(row + 0.5 + dy) * STRIDE,
            width=UNIT_PX * math.exp(log_width),
            rotation=rotation,
            lateral_left=1 / (1 + math.exp(-mirrored)),
            score=score,
        )
        if not any(
            math.dist((knee.x, knee.y), (other.x, other.y)) < NEAR * max(knee.width, other.width)
            for other in knees
        ):
            knees.append(knee)
    return knees[:MOST_KNEES]


def locate_knees(
    films: Sequence[Tensor], network: Locator, knees: int | None = None
) -> list[list[KneeLocation]]:
    """Return the frontal knees of each film (H, W), the picture's left one first.

    A film is looked at upright and small, then larger, and then turned; the first look that is
    certain decides, or else the best one. Films are looked at together, which is quicker on a GPU.
    `knees` is how many knees a film is known to show; None finds out.
    """
    best: list[list[KneeLocation]] = [[] for _ in films]
    for turns, side in product(range(4), LONG_SIDES):
        least_px = 0 if side == LONG_SIDES[0] else MIN_ENLARGEMENT * LONG_SIDES[0]
        unsure = [
            k
            for k, film in enumerate(films)
            if _score(best[k]) < CERTAIN and max(film.shape) >= least_px
        ]
        found = _look([films[k] for k in unsure], network, side, turns, knees)
        for k, places in zip(unsure, found, strict=True):
            best[k] = max(best[k], places, key=_score)
    return best


def _look(
    films: Sequence[Tensor], network: Locator, long_side: int, turns: int, knees: int | None
) -> list[list[KneeLocation]]:
    """Return the knees that are seen on each film at one resolution and orientation."""
    upright = [turn_upright(film, turns) for film in films]
    small = [_shrink(pixels, long_side) for pixels, _ in upright]
    places: list[list[KneeLocation]] = []
    for turned, copy, seen in zip(upright, small, find_knees(network, small), strict=True):
        (film, to_film), (height, width) = turned, copy.shape
        plausible = [knee for knee in seen if is_plausible(knee, copy.shape)]
        chosen = sorted(choose_knees(plausible, knees), key=attrgetter("x"))
        if len(chosen) == 2:  # fibulae point outwards
            chosen = [replace(knee, lateral_left=1.0 - k) for k, knee in enumerate(chosen)]
        factor = max(height, width) / max(film.shape)
        places.append([])
        for knee in chosen:
            point = [[knee.x * film.shape[1] / width, knee.y * film.shape[0] / height]]
            ((x, y),) = transform(to_film, to_film.new_tensor(point)).tolist()
            wide = knee.width / factor
            places[-1].append(replace(knee, x=x, y=y, width=wide, quarter_turns=turns))
    return places


def _score(places: Sequence[KneeLocation]) -> float:
    return max((place.score for place in places), default=0.0)


def _shrink(pixels: Tensor, long_side: int) -> Tensor:
    """Return a copy of a film (H, W) whose longer side has a number of pixels."""
    height, width = pixels.shape
    factor = long_side / max(height, width)
    size = max(round(height * factor), 1), max(round(width * factor), 1)
    # Two rows of a large film for each row of the copy are enough.
    return resize(pixels[:: max(1, math.floor(0.5 / factor))], size)


def is_plausible(knee: KneeLocation, size: Sequence[int]) -> bool:
    """Return whether a plateau is not too small for a picture (height, width), and mostly on it."""
    reach = INSIDE * knee.width / 2
    inside = reach <= knee.x <= size[1] - reach and 0 <= knee.y <= size[0]
    return inside and knee.width >= SMALLEST * size[1]


def choose_knees(seen: Sequence[KneeLocation], knees: int | None = None) -> list[KneeLocation]:
    """Return the knee or the pair of knees that is most likely among those that were seen."""
    least, second = (LEAST, SECOND) if knees is None else (0.0, 0.0)
    pairs = [
        [one, other]
        for one, other in combinations(seen, 2)
        if one.score >= least and other.score >= second and is_pair(one, other)
    ]
    if knees == 1 or not pairs:
        return [knee for knee in seen[:1] if knee.score >= least]
    return max(pairs, key=lambda pair: pair[0].score + pair[1].score)


def is_pair(one: KneeLocation, other: KneeLocation) -> bool:
    """Return whether two knees can be those of one person: side by side, of similar size."""
    left, right = sorted((one, other), key=attrgetter("x"))
    width = (left.width + right.width) / 2
    angle = (left.rotation + right.rotation) / 2
    dx, dy = right.x - left.x, right.y - left.y
    across = dx * math.cos(angle) + dy * math.sin(angle)
    down = dy * math.cos(angle) - dx * math.sin(angle)
    ratio = max(left.width, right.width) / min(left.width, right.width)
    outwards = left.lateral_left + (1 - right.lateral_left) > 0.7
    return (
        ratio < MAX_WIDTH_RATIO
        and across > MIN_DISTANCE * width
        and abs(down) < MAX_STEP * width
        and outwards
    )
