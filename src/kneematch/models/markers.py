"""Read the letters R and L that mark the patient's sides on films.

A cascade of two small fully convolutional networks, on two copies of the film, as letters are large
or small. The spotter sees copies of 384 and 192 pixels and tells where a letter may be; the reader
sees those places twice as large. What it takes for a letter is looked at again in views that are
shifted and enlarged; only what is a letter in nearly all of them counts. An R is read at any angle,
an L when it is tilted by up to about 45 degrees, since a turned one may be any corner.
The networks are trained on letters drawn on phantoms (lab/networks/make_markers.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kneematch.devices import call_in_full_batch, copy_to, map_by_shape
from kneematch.models.weights import builtin_file, load_for_inference, read_safetensors
from kneematch.sampling import resize, sample

LETTERS: Final = ("R", "L", "R")  # classes 1 to 3 of the networks; 0 is anything else
TURNED: Final = 3  # the class of an R that lies on its side or upside down
FILM_SIDES: Final = (768, 384)  # longest sides of the copies that the reader sees parts of; halves
PATCH: Final = 41  # pixels a side that one answer of the reader depends on
STRIDE: Final = 8  # pixels between its answers
PART: Final = PATCH + 2 * STRIDE  # pixels a side of a part, for 3 x 3 answers
REDUCTION: Final = 2  # factor between the reader's film and the spotter's
SPOTTER_PATCH: Final = 20  # pixels a side that one answer of the spotter depends on
SPOTTER_PADDING: Final = 14  # pixels of black around its film, for letters at the edge
POSSIBLE: Final = 1.0  # log odds of a letter, for the spotter, at which the reader looks
CANDIDATE: Final = 0.9  # probability of the reader at which a place is looked at again
CERTAIN: Final = 0.95  # mean probability over the views that counts as a letter
VIEW_SCALES: Final = (0.88, 1.0, 1.14)
VIEW_SHIFTS: Final = ((0.0, 0.0), (1.5, 0.0), (-1.5, 0.0), (0.0, 1.5), (0.0, -1.5))  # pixels
VIEWS: Final = torch.tensor(  # (V, 2, 3), from a view's [-1, 1]^2 into the part's
    [
        [[scale * PATCH / PART, 0, 2 * dx / PART], [0, scale * PATCH / PART, 2 * dy / PART]]
        for scale in VIEW_SCALES
        for dx, dy in VIEW_SHIFTS
    ]
)


@dataclass(frozen=True, slots=True)
class Marker:
    """A letter on a film."""

    letter: str  # "R" or "L"
    x: float  # centre, as a share of the film's width
    turned: bool = False  # by more than about 65 degrees

    def repeats(self, other: "Marker") -> bool:
        """Return whether this is the same letter, seen on another copy of the film."""
        return self.letter == other.letter and abs(self.x - other.x) < 0.02


def marker_networks() -> nn.ModuleDict:
    """Return the spotter and the reader, both for images (N, 1, H, W).

    Their logits are (N, 4, h, w): the spotter has one for each 20 x 20 pixels at steps of 4, the
    reader one for each 41 x 41 pixels at steps of 8.
    """
    spotter = _network((1, 16, 4, 2), (16, 16, 3, 2), (16, 16, 3, 1), (16, 32, 2, 1))
    reader = _network((1, 12, 5, 2), (12, 24, 3, 2), (24, 40, 3, 1), (40, 56, 3, 2), (56, 80, 3, 1))
    return nn.ModuleDict({"spotter": spotter, "reader": reader})


def _network(*layers: tuple[int, int, int, int]) -> nn.Sequential:
    """Return convolutions, each of (inputs, outputs, kernel size, stride), and a linear layer."""
    modules: list[nn.Module] = []
    for inputs, channels, size, stride in layers:
        convolution = nn.Conv2d(inputs, channels, size, stride, bias=False)
        modules += [convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
    return nn.Sequential(*modules, nn.Conv2d(channels, 1 + len(LETTERS), 1))


@torch.no_grad()
def read_markers(
    films: Sequence[Tensor], networks: nn.ModuleDict | None = None
) -> list[tuple[Marker, ...]]:
    """Return the letters on films (H, W) in [0, 1], as the networks, by default ours, see them."""
    if not films:
        return []
    networks = networks or builtin_networks(films[0].device)
    found: list[list[Marker]] = [[] for _ in films]
    spots = _find_spots(networks["spotter"], films)
    if spots:
        spots = _centre_spots(networks["reader"], films, spots)
    if spots:
        for spot, certainty in zip(spots, _read(networks["reader"], films, spots), strict=True):
            height, width = films[spot.film].shape
            kind, share = int(certainty.argmax()), spot.x / spot.side * max(height, width) / width
            marker = Marker(LETTERS[kind], share, kind + 1 == TURNED)
            if certainty.max() > CERTAIN and not any(map(marker.repeats, found[spot.film])):
                found[spot.film].append(marker)
    return [tuple(markers) for markers in found]


class _Spot(NamedTuple):
    """Where a letter may be, in pixels of a copy of the film."""

    film: int  # its index
    side: int  # the copy's longest side, one of FILM_SIDES
    x: float
    y: float


def _find_spots(spotter: nn.Module, films: Sequence[Tensor]) -> list[_Spot]:
    """Return where letters may be on films (H, W), most likely first on each."""

    def log_odds(images: Tensor) -> Tensor:
        logits: Tensor = spotter(images[:, None])  # (N, 4, h, w)
        return logits[:, 1:].amax(1) - logits[:, 0]

    small = [shrink(film, FILM_SIDES[0] // REDUCTION) for film in films]
    first = REDUCTION * (SPOTTER_PATCH / 2 - SPOTTER_PADDING)
    spots = []
    for side in FILM_SIDES:
        padded = [F.pad(film, (SPOTTER_PADDING,) * 4) for film in small]
        for film, scores in enumerate(map_by_shape(log_odds, padded)):
            while scores.max() > POSSIBLE:
                row, column = divmod(int(scores.argmax()), scores.shape[1])
                scores[max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3] = -torch.inf
                spots.append(_Spot(film, side, first + STRIDE * column, first + STRIDE * row))
        small = [F.avg_pool2d(film[None], 2, ceil_mode=True)[0] for film in small]
    return spots


def _centre_spots(reader: nn.Module, films: Sequence[Tensor], spots: list[_Spot]) -> list[_Spot]:
    """Return the spots at which the reader sees a letter, in the middle of it."""
    seen = call_in_full_batch(reader, _cut_parts(films, spots))
    answers = seen.softmax(1)[:, 1:].amax(1).cpu()  # (K, 3, 3)
    centred = []
    for spot, answer in zip(spots, answers, strict=True):
        if answer.max() > CANDIDATE:
            weights = answer / answer.sum()
            across, down = weights.sum(0), weights.sum(1)
            dx, dy = float(across[2] - across[0]), float(down[2] - down[0])  # to the centroid
            centred.append(spot._replace(x=spot.x + STRIDE * dx, y=spot.y + STRIDE * dy))
    return centred


def _read(reader: nn.Module, films: Sequence[Tensor], spots: list[_Spot]) -> Tensor:
    """Return the mean probability of each class of letters over the views of K spots, (K, 3)."""
    parts = _cut_parts(films, spots)
    matrices = copy_to(VIEWS, parts.device).expand(len(parts), *VIEWS.shape)
    views = sample(parts, matrices, (PATCH, PATCH))
    seen = call_in_full_batch(reader, views.flatten(0, 1)[:, None])
    answers = seen.softmax(1)[..., 0, 0]
    return answers.reshape(*views.shape[:2], -1).mean(1)[:, 1:].cpu()


def shrink(pixels: Tensor, longest: int) -> Tensor:
    """Resize a film (H, W) so that its longest side has a number of pixels."""
    scale = longest / max(pixels.shape)
    height, width = (max(1, round(scale * length)) for length in pixels.shape)
    rows = pixels[:: max(1, int(1 / scale))]  # one for each row of the copy is enough
    return resize(resize(rows, (len(rows), width)), (height, width))


def _cut_parts(films: Sequence[Tensor], spots: Sequence[_Spot]) -> Tensor:
    """Return the parts (K, 1, PART, PART) of films (H, W) around K spots; black outside."""
    parts = []
    for spot in spots:
        pixels = films[spot.film]
        height, width = pixels.shape
        scale = max(height, width) / spot.side
        side = max(1, round(scale * PART))
        left, top = (round(scale * centre - side / 2) for centre in (spot.x, spot.y))
        around = (-left, left + side - width, -top, top + side - height)  # negative: cut off
        step = max(1, int(scale / 3))  # three pixels a side for each of the part's are enough
        parts.append(resize(F.pad(pixels, around)[::step, ::step], (PART, PART)))
    return torch.stack(parts)[:, None]


@cache
def builtin_networks(device: torch.device) -> nn.ModuleDict:
    """Return the spotter and the reader that are installed with kneematch."""
    weights, _ = read_safetensors(builtin_file("markers.safetensors"))
    return load_for_inference(marker_networks(), weights).to(device)
