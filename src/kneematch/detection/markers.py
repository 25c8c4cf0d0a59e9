"""Read the letters R and L that mark the patient's sides on films.

A small fully convolutional network sees the film at 768 pixels. What it takes for a letter is
looked at again in views that are shifted and enlarged; only what is a letter in nearly all of them
counts.
The network is trained on letters drawn on phantoms (scripts/make_markers.py).
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from kneematch.geometry.sampling import resize, sample
from kneematch.geometry.view import compose, rectangle_to_film
from kneematch.networks.cpu_inference import fold_batchnorm
from kneematch.networks.model_file import read_safetensors

LETTERS: Final = ("R", "L")  # classes 1 and 2 of the network; 0 is anything else
FILE: Final = "markers.safetensors"  # beside this file
FILM_PX: Final = 768  # longest side of the film that the network sees
PATCH: Final = 41  # pixels a side that one answer of the network depends on
STRIDE: Final = 8  # pixels between its answers
PADDING: Final = 28  # pixels of black around the film, for letters at its edge
CANDIDATE: Final = 0.8  # probability at which a place is looked at again
CERTAIN: Final = 0.92  # mean probability over the views that counts as a letter
VIEW_SCALES: Final = (0.88, 1.0, 1.14)
VIEW_SHIFTS: Final = ((0.0, 0.0), (1.5, 0.0), (-1.5, 0.0), (0.0, 1.5), (0.0, -1.5))  # pixels


@dataclass(frozen=True, slots=True)
class Marker:
    """A letter on a film."""

    letter: str  # "R" or "L"
    x: float  # of its centre, as a share of the film's width


def marker_network() -> nn.Sequential:
    """Return a network from images (N, 1, H, W) to logits (N, 3, h, w); 41 pixels give one."""

    def layer(inputs: int, outputs: int, size: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, size, stride, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *layer(1, 12, 5, 2),
        *layer(12, 20, 3, 2),
        *layer(20, 24, 3, 1),
        *layer(24, 32, 3, 2),
        *layer(32, 64, 3, 1),
        nn.Conv2d(64, 1 + len(LETTERS), 1),
    )


def read_markers(pixels: NDArray[np.float32]) -> tuple[Marker, ...]:
    """Return the letters on a film (H, W) in [0, 1]; none if no network is installed."""
    network = _installed_network()
    return () if network is None else find_letters(network, torch.from_numpy(pixels))


@torch.no_grad()
def find_letters(network: nn.Module, pixels: Tensor) -> tuple[Marker, ...]:
    """Return the letters that a network sees on a film (H, W)."""
    film = shrink(pixels)
    width = film.shape[1]
    film = F.pad(film, (PADDING,) * 4)
    likely = network(film[None, None]).softmax(1)[0, 1:].amax(0)  # (h, w)
    markers = []
    while likely.max() > CANDIDATE:
        row, column = divmod(int(likely.argmax()), likely.shape[1])
        likely[max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3] = 0
        x, y = STRIDE * column + PATCH / 2, STRIDE * row + PATCH / 2
        mean = network(_views(film, x, y)).softmax(1)[..., 0, 0].mean(0)[1:]  # (2,)
        if mean.max() > CERTAIN:
            markers.append(Marker(LETTERS[int(mean.argmax())], (x - PADDING) / width))
    return tuple(markers)


def shrink(pixels: Tensor) -> Tensor:
    """Resize a film (H, W) so that its longest side has FILM_PX pixels."""
    scale = FILM_PX / max(pixels.shape)
    height, width = (max(1, round(scale * length)) for length in pixels.shape)
    return resize(pixels, (height, width))


def _views(film: Tensor, x: float, y: float) -> Tensor:
    """Return views (V, 1, PATCH, PATCH) around a place of a film (H, W)."""
    height, width = film.shape
    from_film = torch.linalg.inv(rectangle_to_film(0, 0, width, height))
    matrices = []
    for scale in VIEW_SCALES:
        reach = scale * PATCH / 2
        for dx, dy in VIEW_SHIFTS:
            box = x + dx - reach, y + dy - reach, x + dx + reach, y + dy + reach
            matrices.append(compose(from_film, rectangle_to_film(*box))[:2])
    stacked = torch.stack(matrices).to(film)
    return sample(film.expand(len(stacked), -1, -1), stacked, (PATCH, PATCH))[:, None]


@lru_cache(1)
def _installed_network() -> nn.Sequential | None:
    path = Path(str(files("kneematch.detection") / FILE))
    if not path.exists():
        return None
    tensors, _ = read_safetensors(path)
    network = marker_network()
    network.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    fold_batchnorm(network.eval())
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
