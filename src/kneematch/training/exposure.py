"""Random exposures of crops, as different X-ray machines would make them, drawn on any device."""

import torch
import torch.nn.functional as F
from torch import Tensor


class Draw:
    """Random numbers for a batch, each of shape (N, 1, 1)."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.count, self.generator = count, generator

    def uniform(self, low: float, high: float) -> Tensor:
        """Return numbers between low and high."""
        drawn = torch.rand(self.count, 1, 1, generator=self.generator, device=self.generator.device)
        return low + (high - low) * drawn

    def log_uniform(self, low: float, high: float) -> Tensor:
        """Return numbers whose logarithms are uniform."""
        bounds = torch.tensor([low, high]).log().tolist()
        return self.uniform(*bounds).exp()

    def normal(self, deviation: float) -> Tensor:
        """Return Gaussian numbers."""
        device = self.generator.device
        return deviation * torch.randn(self.count, 1, 1, generator=self.generator, device=device)

    def bernoulli(self, probability: float) -> Tensor:
        """Return flags that are True with a probability."""
        return self.uniform(0, 1) < probability

    def noise(self, size: tuple[int, int]) -> Tensor:
        """Return Gaussian noise (N, H, W)."""
        shape = self.count, *size
        return torch.randn(shape, generator=self.generator, device=self.generator.device)


def expose(draw: Draw, attenuation: Tensor, px: float) -> Tensor:
    """Turn attenuation (N, H, W) into films: objects, scatter, noise, processing, window, gamma.

    `px` are the pixels per plateau width.
    """
    size = attenuation.shape[-2], attenuation.shape[-1]
    attenuation = attenuation * draw.uniform(0.5, 1.3) + _clutter(draw, size, px)
    light = (-attenuation).exp()
    scatter = _blur(light, 0.3 * px).mean((-2, -1), keepdim=True) * draw.uniform(0, 0.15)
    grey = -(light + scatter).log()
    sharpness = _blur(grey, 0.03 * px)
    wide = _blur(grey, 0.2 * px)
    grey = grey + draw.uniform(0, 1.5) * (grey - sharpness) - draw.uniform(0, 0.7) * wide
    noise = draw.noise(size)
    grain = torch.where(draw.bernoulli(0.5), noise, _blur(noise, 1.0) * 3)
    grey = grey + draw.log_uniform(0.002, 0.05) * grain
    soft = torch.where(draw.bernoulli(0.5), _blur(grey, 0.7), _blur(grey, 1.6))
    grey = grey + draw.uniform(0, 1) * (soft - grey)
    grey = grey + _ramps(draw, size, 0.1)
    levels = torch.tensor([0.03, 0.97], device=grey.device)
    low, high = grey[:, ::4, ::4].flatten(1).quantile(levels, dim=1)[..., None, None].unbind()
    black = low + (high - low) * draw.uniform(-0.3, 0.3)
    white = high + (high - low) * draw.uniform(-0.25, 0.5)
    film = ((grey - black) / (white - black)).clamp(0, 1)
    film = (film + 1e-3).pow(draw.log_uniform(0.4, 2.2))
    greys = draw.log_uniform(40, 1000)
    rounded: Tensor = (film * greys).round() / greys
    return rounded


def expose_again(draw: Draw, grey: Tensor) -> Tensor:
    """Change contrast, brightness, noise and blur of real crops (N, H, W) in [0, 1]."""
    soft = _blur(grey, 1.2)
    grey = grey + draw.uniform(-0.8, 0.8) * (soft - grey)
    size = grey.shape[-2], grey.shape[-1]
    grey = grey + draw.log_uniform(0.001, 0.03) * draw.noise(size) + _ramps(draw, size, 0.05)
    grey = (grey * draw.uniform(0.8, 1.15) + draw.normal(0.05)).clamp(1e-3, 1)
    return grey.pow(draw.log_uniform(0.6, 1.7))


def _ramps(draw: Draw, size: tuple[int, int], deviation: float) -> Tensor:
    """Return brightness (N, H, W) that rises or falls across and down a crop."""
    y, x = from_centre(size, draw.generator.device)
    return draw.normal(2 * deviation / size[1]) * x + draw.normal(2 * deviation / size[0]) * y


def _clutter(draw: Draw, size: tuple[int, int], px: float) -> Tensor:
    """Return faint discs and lines (N, H, W) that are no borders of the joint space."""
    y, x = (places / px for places in from_centre(size, draw.generator.device))
    total = torch.zeros(draw.count, *size, device=x.device)
    for _ in range(3):
        angle, bend = draw.uniform(0, torch.pi), draw.normal(1.0)
        along = x * angle.cos() + y * angle.sin() - draw.uniform(-0.6, 0.6)
        across = y * angle.cos() - x * angle.sin() - draw.uniform(-0.6, 0.6)
        line = -((across - bend * along.square()) / draw.log_uniform(0.004, 0.02)).square()
        length = -(along / draw.uniform(0.05, 0.4)).square()
        total += draw.bernoulli(0.6) * draw.normal(0.06) * (line + length).exp()
        radius = (along / draw.uniform(0.1, 0.5)).square() + (
            across / draw.uniform(0.1, 0.5)
        ).square()
        total += (
            draw.bernoulli(0.6)
            * draw.normal(0.08)
            * ((1 - radius) / draw.log_uniform(0.02, 0.3)).sigmoid()
        )
    return total


def _blur(pictures: Tensor, sigma: float) -> Tensor:
    """Blur pictures (N, H, W) with a Gaussian."""
    cell = max(int(sigma / 2), 1)
    small = pictures[:, None]
    if cell > 1:
        small = F.avg_pool2d(small, cell, ceil_mode=True, count_include_pad=False)
    sigma = sigma / cell
    radius = int(3 * sigma + 0.5)
    taps = torch.arange(-radius, radius + 1, device=pictures.device) / sigma
    taps = (-0.5 * taps.square()).exp()
    taps = taps / taps.sum()
    small = F.pad(small, (radius, radius, radius, radius), mode="replicate")
    small = F.conv2d(F.conv2d(small, taps[None, None, None, :]), taps[None, None, :, None])
    if cell > 1:
        small = F.interpolate(small, pictures.shape[-2:], mode="bilinear")
    return small[:, 0]


def from_centre(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the distances y (1, H, 1) and x (1, 1, W) of pixels from the centre of a crop."""
    y, x = (torch.arange(length, device=device) + 0.5 - length / 2 for length in size)
    return y[None, :, None], x[None, None, :]
