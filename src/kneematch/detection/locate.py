"""Find out how many frontal knees a film shows, and where, with the locator network."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from torch import Tensor

from kneematch.geometry.knee_view import KneePlace, turn_upright
from kneematch.geometry.sampling import resize
from kneematch.networks.locator import Knee, Locator, find_knees, locator_from_weights
from kneematch.networks.model_file import read_safetensors

LOCATOR_FILE: Final = Path(str(files("kneematch.networks") / "locator.safetensors"))
LONG_SIDES: Final = (256, 896)  # at which a film is looked at: for usual and for small knees
CERTAIN: Final = 0.5  # score at which the film is not looked at again
LEAST: Final = 0.3  # score of a knee
SECOND: Final = 0.2  # score of the other knee of a pair
MIN_ENLARGEMENT: Final = 1.2  # by which a second look at a larger copy must enlarge the first
INSIDE: Final = 0.7  # share of a plateau that lies on the film
SMALLEST: Final = 0.03  # plateau's width over the film's; full-leg films have 0.04 and more
MAX_WIDTH_RATIO: Final = 1.5  # of the two knees of a pair
MIN_DISTANCE: Final = 0.9  # of the two knees of a pair, in plateau widths
MAX_STEP: Final = 2.5  # between the heights of the two knees, in plateau widths


@cache
def shipped_locator() -> Locator:
    """Return the locator that is installed with kneematch."""
    weights, _ = read_safetensors(LOCATOR_FILE)
    return locator_from_weights(weights)


def locate_knees(pixels: Tensor, network: Locator, knees: int | None = None) -> list[KneePlace]:
    """Return the frontal knees of a film (H, W), the picture's left one first.

    The film is looked at upright and small, then larger, and then turned; the first look that is
    certain decides, or else the best one.

    Args:
        pixels: the film.
        network: the locator.
        knees: how many knees the film is known to show; None finds out.
    """
    best: list[KneePlace] = []
    for turns in range(4):
        turned, to_film = turn_upright(pixels, turns)
        for side in LONG_SIDES:
            if side > LONG_SIDES[0] and max(pixels.shape) < MIN_ENLARGEMENT * LONG_SIDES[0]:
                continue
            found = _look(turned, to_film, network, side, turns, knees)
            if _certainty(found) > _certainty(best):
                best = found
            if _certainty(best) >= CERTAIN:
                return best
    return best


def _certainty(knees: Sequence[KneePlace]) -> float:
    return max((knee.score for knee in knees), default=0.0)


def _look(
    pixels: Tensor, to_film: Tensor, network: Locator, long_side: int, turns: int, knees: int | None
) -> list[KneePlace]:
    """Return the knees that are seen at one resolution and orientation, in film pixels."""
    height, width = pixels.shape
    factor = long_side / max(height, width)
    size = max(round(height * factor), 1), max(round(width * factor), 1)
    # Two rows of a large film for each row of the copy are enough.
    small = resize(pixels[:: max(1, math.floor(0.5 / factor))], size)
    seen = [knee for knee in find_knees(network, small) if is_plausible(knee, size)]
    chosen = choose_knees(seen, knees)
    places = []
    for knee in sorted(chosen, key=lambda each: each.x):
        x, y = knee.x * width / size[1], knee.y * height / size[0]
        x, y = (to_film[:2, :2] @ to_film.new_tensor([x, y]) + to_film[:2, 2]).tolist()
        mirrored = knee.mirrored > 0.5
        places.append(
            KneePlace(x, y, knee.width / factor, knee.rotation, mirrored, turns, knee.score)
        )
    if len(places) == 2:  # fibulae point outwards
        places = [replace(places[0], mirrored=True), replace(places[1], mirrored=False)]
    return places


def is_plausible(knee: Knee, size: tuple[int, int]) -> bool:
    """Return whether a plateau is not too small for a picture (height, width), and mostly on it."""
    reach = INSIDE * knee.width / 2
    inside = reach <= knee.x <= size[1] - reach and 0 <= knee.y <= size[0]
    return inside and knee.width >= SMALLEST * size[1]


def choose_knees(seen: Sequence[Knee], knees: int | None = None) -> list[Knee]:
    """Return the knee or the pair of knees that is most likely among those that were seen."""
    least, second = (LEAST, SECOND) if knees is None else (0.0, 0.0)
    good = [knee for knee in seen if knee.score >= min(least, second)]
    single = [knee for knee in good[:1] if knee.score >= least]
    pairs = [
        [one, other]
        for place, one in enumerate(good)
        for other in good[place + 1 :]
        if one.score >= least and other.score >= second and is_pair(one, other)
    ]
    if knees == 1 or not pairs:
        return single
    return max(pairs, key=lambda pair: pair[0].score + pair[1].score)


def is_pair(one: Knee, other: Knee) -> bool:
    """Return whether two knees can be those of one person: side by side, of similar size."""
    left, right = sorted((one, other), key=lambda knee: knee.x)
    width = (left.width + right.width) / 2
    angle = (left.rotation + right.rotation) / 2
    dx, dy = right.x - left.x, right.y - left.y
    across = dx * math.cos(angle) + dy * math.sin(angle)
    down = dy * math.cos(angle) - dx * math.sin(angle)
    ratio = max(left.width, right.width) / min(left.width, right.width)
    outwards = left.mirrored + (1 - right.mirrored) > 0.7
    return (
        ratio < MAX_WIDTH_RATIO
        and across > MIN_DISTANCE * width
        and abs(down) < MAX_STEP * width
        and outwards
    )
