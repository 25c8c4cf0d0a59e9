"""Local contrast normalisation: half images without their local mean and deviation."""

from typing import Final

import torch
from torch import Tensor

from kneematch.geometry.sampling import resize

REACH: Final = 12 / 500  # deviation of the Gaussian neighbourhood, as a share of the half's width
# Local deviations below this share of the half's own count as noise, which is not amplified.
NOISE: Final = 0.2
TINY: Final = 1e-20  # so that a black half gives zeros and not NaN


def normalize_local_contrast(halves: Tensor) -> Tensor:
    """Subtract the local mean of halves (..., H, W) and divide by the local deviation.

    Returns (..., H / 2, W / 2), since at full resolution there is little but noise.
    """
    halves = resize(halves, (halves.shape[-2] // 2, halves.shape[-1] // 2))
    rounding = 100 * torch.finfo(halves.dtype).eps * halves.abs().amax((-2, -1), keepdim=True)
    halves = halves - halves.mean((-2, -1), keepdim=True)
    high = halves - _smooth(halves)
    deviation = _smooth(high.square()).clamp(min=0).sqrt()
    overall = halves.square().mean((-2, -1), keepdim=True).sqrt()
    return high / (deviation + NOISE * overall + rounding + TINY)


def _smooth(images: Tensor) -> Tensor:
    """Blur images (..., H, W) with a wide Gaussian, as two matrix products on a reduced copy."""
    height, width = images.shape[-2:]
    sigma = REACH * width
    shrink = max(1, round(sigma / 3))
    small = resize(images, (max(height // shrink, 1), max(width // shrink, 1)))
    rows = _gaussian(small.shape[-2], sigma * small.shape[-2] / height, images)
    columns = _gaussian(small.shape[-1], sigma * small.shape[-1] / width, images).mT.contiguous()
    return resize(rows @ (small @ columns), (height, width))


def _gaussian(length: int, sigma: float, like: Tensor) -> Tensor:
    """Return weights (length, length); row i averages the pixels around i that exist."""
    position = torch.arange(length, device=like.device).to(like.dtype)
    weights = torch.exp(-0.5 * ((position[:, None] - position) / sigma).square())
    return weights / weights.sum(1, keepdim=True)
