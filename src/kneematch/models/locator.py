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
# A joint that was cut out of its film is seen in a copy whose edges are continued: what is added on
# either side, and half of the height that is reached, in widths of the picture. The last one is for
# strips of both knees.
CONTINUED: Final = ((0.5, 1.0), (0.35, 0.85), (0.0, 0.65))
Edges = tuple[float, float]
SURE: Final = 0.75  # score below which a knee is looked at again
SURE_SIDE: Final = 0.9  # probability from which on a joint's lateral side is known
SHANK_SHOWN: Final = 0.9  # plateau widths below the plateau that show where the fibula is
BESIDE_SHOWN: Final = 1.7  # plateau widths of a picture that does
MOST_KNEES: Final = 8  # answers on a film
NEAR: Final = 0.6  # distance of answers that are the same knee, in plateau widths
LEAST: Final = 0.3  # score of a knee
# Where a plateau takes this share of the picture's width, and edges are continued, less is enough:
# of 258 films without a frontal knee (108 of other parts and views, 150 heads), none has 0.2 there.
FILLS: Final = 0.6
LEAST_CUT_OUT: Final = 0.2
WEAK: Final = 0.06  # score of what may be a knee, if something else speaks for it
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
    seen_again: float = 1.0  # the same in a closer look, where there was one
    # It was seen in the small copy of the upright film, in which only one of the 258 films
    # without a frontal knee seems to show one.
    distinct: bool = False
    side_known: bool = True  # its lateral side is known
    weak: bool = False  # its score is too low for a knee
    more: bool = False  # further knees were seen, besides those that were chosen

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


def best_cells(maps: Tensor) -> Tensor:
    """Return the likeliest cells (K, 6) of the network's maps (6, H / 8, W / 8) of an image.

    They are x, y, width, rotation, lateral_left and score of a `KneeLocation`, the best ones first.
    """
    heat = maps[0].sigmoid()
    peaks = F.max_pool2d(heat[None, None], 3, stride=1, padding=1)[0, 0] == heat
    scores, order = (heat * peaks).flatten().topk(min(4 * MOST_KNEES, heat.numel()))
    _, dx, dy, log_width, rotation, mirrored = maps.flatten(1)[:, order].double()
    x, y = order % maps.shape[-1] + 0.5 + dx, order // maps.shape[-1] + 0.5 + dy
    place = STRIDE * x, STRIDE * y, UNIT_PX * log_width.exp(), rotation
    return torch.stack([*place, mirrored.sigmoid(), scores.double()], dim=1)


def _peaks(maps: Tensor) -> list[KneeLocation]:
    """Return the knees in the network's maps (6, H / 8, W / 8) of an image."""
    knees: list[KneeLocation] = []
    for x, y, width, rotation, lateral_left, score in best_cells(maps).tolist():
        knee = KneeLocation(x, y, width, rotation, lateral_left, score=score)
        if not any(
            math.dist((knee.x, knee.y), (other.x, other.y)) < NEAR * max(knee.width, other.width)
            for other in knees
        ):
            knees.append(knee)
    return knees[:MOST_KNEES]


def locate_knees(
    films: Sequence[Tensor],
    network: Locator,
    *,
    cropped: bool = False,
    single: bool = False,
    weak: bool = False,
) -> list[list[KneeLocation]]:
    """Return the frontal knees of each film (H, W), the picture's left one first.

    A film is looked at upright and small, then larger, then with its edges continued, as if it were
    cut out around the joint, and then turned; the first look that is certain decides, or else the
    best one. Films are looked at together, which is quicker on a GPU. Pictures that are known to be
    `cropped` are only looked at with their edges continued. Films that are known to show a `single`
    knee have one in any case. Where no knee is found, the likeliest place is returned if it is
    asked for by `weak`.
    """
    best: list[list[KneeLocation]] = [[] for _ in films]
    small = LONG_SIDES[0]
    looks: list[tuple[int, int, Edges | None]] = [
        (turns, side, None) for turns, side in product(range(4), LONG_SIDES)
    ]
    beyond: list[tuple[int, int, Edges | None]] = [(0, small, edges) for edges in CONTINUED]
    looks = beyond if cropped else [*looks[:2], *beyond, *looks[2:]]
    for turns, side, edges in looks:
        least_px = 0 if side == small else MIN_ENLARGEMENT * small
        unsure = [
            k
            for k, film in enumerate(films)
            if _score(best[k]) < CERTAIN and max(film.shape) >= least_px
        ]
        found = _look([films[k] for k in unsure], network, side, turns, edges, single=single)
        for k, places in zip(unsure, found, strict=True):
            best[k] = max(best[k], places, key=_score)
    return best if weak else [[knee for knee in places if not knee.weak] for places in best]


def _look(
    films: Sequence[Tensor],
    network: Locator,
    long_side: int,
    turns: int,
    edges: Edges | None,
    *,
    single: bool,
) -> list[list[KneeLocation]]:
    """Return the knees that are seen on each film at one resolution and orientation.

    `edges` says how far the film's edges are continued; see CONTINUED.
    """
    upright_and_small = turns == 0 and long_side == LONG_SIDES[0]
    upright = [turn_upright(film, turns) for film in films]
    small = [_shrink(pixels, long_side, edges) for pixels, _ in upright]
    found = find_knees(network, [_continue(*each) for each in small])
    places: list[list[KneeLocation]] = []
    for turned, (copy, (left, top)), seen in zip(upright, small, found, strict=True):
        (film, to_film), (height, width) = turned, copy.shape
        moved = (replace(knee, x=knee.x - left, y=knee.y - top) for knee in seen)
        plausible = [knee for knee in moved if is_plausible(knee, copy.shape)]
        cut_out = edges is not None and any(k.width > FILLS * width for k in plausible[:1])
        least = LEAST_CUT_OUT if cut_out else LEAST
        chosen = sorted(choose_knees(plausible, least, single=single), key=attrgetter("x"))
        if not single and any(k.score >= LEAST for k in plausible if k not in chosen):
            chosen = [replace(knee, more=True) for knee in chosen]
        if not chosen:
            chosen = [replace(knee, weak=True) for knee in plausible[:1] if knee.score >= WEAK]
        if len(chosen) == 2:  # fibulae point outwards
            chosen = [replace(knee, lateral_left=1.0 - k) for k, knee in enumerate(chosen)]
        factor = max(height, width) / max(film.shape)
        places.append([])
        for knee in chosen:
            point = [[knee.x * film.shape[1] / width, knee.y * film.shape[0] / height]]
            ((x, y),) = transform(to_film, to_film.new_tensor(point)).tolist()
            wide, distinct = knee.width / factor, upright_and_small and knee.score >= least
            place = replace(knee, x=x, y=y, width=wide, quarter_turns=turns, distinct=distinct)
            places[-1].append(place)
    return places


def look_again(
    network: Locator, view: Tensor, knee: KneeLocation, size: Sequence[int], *, alone: bool
) -> KneeLocation:
    """Return a knee after a closer look at the view (400, 250) around it, if it needs one.

    The view and its mirror image are looked at. A joint that is `alone` in a picture (height,
    width) which hardly shows more than it has no fibula that tells its lateral side: there, both
    looks must agree.
    """
    cut_out = alone and (
        size[0] - knee.y < SHANK_SHOWN * knee.width or size[1] < BESIDE_SHOWN * knee.width
    )
    if knee.score >= SURE and not cut_out:
        return knee
    height, width = view.shape
    plateau = width / VIEW_WIDTH
    scores, lateral_right = [0.0, 0.0], [0.5, 0.5]
    for k, seen in enumerate(find_knees(network, [view, view.flip(1)])):
        for again in seen[::-1]:  # the most certain one last
            if math.dist((again.x, again.y), (width / 2, height / 2)) < plateau * NEAR / 2:
                scores[k] = again.score
                lateral_right[k] = again.lateral_left if k else 1 - again.lateral_left
    knee = replace(knee, seen_again=sum(scores) / 2)
    if not cut_out:
        return knee
    right = sum(lateral_right) / 2
    known = max(right, 1 - right) >= SURE_SIDE
    return replace(knee, lateral_left=right if knee.mirrored else 1 - right, side_known=known)


def _score(places: Sequence[KneeLocation]) -> float:
    return max((place.score - place.weak for place in places), default=-1.0)


def _shrink(pixels: Tensor, long_side: int, edges: Edges | None) -> tuple[Tensor, tuple[int, int]]:
    """Return a small copy of a film (H, W), and the pixels (x, y) that continue its edges.

    With these, its longer side has a number of pixels.
    """
    height, width = pixels.shape
    beside, half_height = (0.0, 0.0) if edges is None else edges
    left, top = beside * width, max(half_height * width - height / 2, 0.0)
    factor = long_side / max(height + 2 * top, width + 2 * left)
    size = max(round(height * factor), 1), max(round(width * factor), 1)
    # Two rows of a large film for each row of the copy are enough.
    copy = resize(pixels[:: max(1, math.floor(0.5 / factor))], size)
    return copy, (round(left * factor), round(top * factor))


def _continue(image: Tensor, margin: tuple[int, int]) -> Tensor:
    """Return an image (H, W) whose outermost pixels are repeated on a margin (x, y) around it."""
    left, top = margin
    return F.pad(image[None], (left, left, top, top), mode="replicate")[0] if any(margin) else image


def is_plausible(knee: KneeLocation, size: Sequence[int]) -> bool:
    """Return whether a plateau is not too small for a picture (height, width), and mostly on it."""
    reach = INSIDE * knee.width / 2
    inside = reach <= knee.x <= size[1] - reach and 0 <= knee.y <= size[0]
    return inside and knee.width >= SMALLEST * size[1]


def choose_knees(
    seen: Sequence[KneeLocation], least: float = LEAST, *, single: bool = False
) -> list[KneeLocation]:
    """Return the knee or the pair of knees that is most likely among those that were seen.

    `least` is the score that a knee needs, or the better one of a pair; a `single` one needs none.
    """
    if single:
        return [*seen[:1]]
    pairs = [
        [one, other]
        for one, other in combinations(seen, 2)
        if one.score >= least and other.score >= SECOND and is_pair(one, other)
    ]
    if not pairs:
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
