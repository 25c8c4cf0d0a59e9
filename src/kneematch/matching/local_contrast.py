"""The fine structure of a half image: what is left when its local brightness and contrast go."""

from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.sampling import resize

REACH: Final = 12 / 500  # deviation of the Gaussian neighbourhood, as a share of the half's width
# Where the local deviation falls below this share of the half's own, it is noise, and stays small.
NOISE: Final = 0.2
TINY: Final = 1e-20  # a black half has no detail, and none that is not a number


def normalize_local_contrast(halves: Tensor) -> Tensor:
    """Subtract the local mean and divide by the local deviation: (..., H, W) to (..., H/2, W/2).

    Finer than that there is only noise.
    """
    halves = resize(halves, (halves.shape[-2] // 2, halves.shape[-1] // 2))
    rounding = 100 * torch.finfo(halves.dtype).eps * halves.abs().amax((-2, -1), keepdim=True)
    halves = halves - halves.mean((-2, -1), keepdim=True)
    high = halves - _smooth(halves)
    deviation = _smooth(high.square()).clamp(min=0).sqrt()
    overall = halves.square().mean((-2, -1), keepdim=True).sqrt()
    return high / (deviation + NOISE * overall + rounding + TINY)


def _smooth(images: Tensor) -> Tensor:
    """A wide Gaussian blur, computed on a small copy, where it is a matrix product a side."""
    height, width = images.shape[-2:]
    sigma = REACH * width
    shrink = max(1, round(sigma / 3))
    small = resize(images, (max(height // shrink, 1), max(width // shrink, 1)))
    rows = _gaussian(small.shape[-2], sigma * small.shape[-2] / height, images)
    columns = _gaussian(small.shape[-1], sigma * small.shape[-1] / width, images).mT.contiguous()
    return resize(rows @ (small @ columns), (height, width))


def _gaussian(length: int, sigma: float, like: Tensor) -> Tensor:
    """(length, length): row i averages its neighbours, and only those that exist."""
    at = torch.arange(length, device=like.device).to(like.dtype)
    weights = torch.exp(-0.5 * ((at[:, None] - at) / sigma).square())
    return weights / weights.sum(1, keepdim=True)
