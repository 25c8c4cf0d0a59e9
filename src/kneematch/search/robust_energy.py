"""The robust energy, made for real films: it counts low contrast and adds local contrast.

Patches of low contrast cost more than in the paper's energy, since noise correlates with anything.
The film itself guides the search from far away; its local contrast, in which the outline of the
leg is no stronger than that of the bone, determines the margins.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kneematch.paper.energy import Problem, Term, deviation
from kneematch.paper.template import Template, Window
from kneematch.sampling import resize, sample

CONTRAST: Final = 0.15  # patches whose deviation is below this share of the image's own fade out
# Weight of the locally normalised images; the film itself has the rest.
LOCAL_CONTRAST_WEIGHT: Final = 0.5
REACH: Final = 12 / 500  # deviation of the Gaussian neighbourhood, as a share of the image's width
# Local deviations below this share of the image's own count as noise, which is not amplified.
NOISE: Final = 0.2
# Natural logarithm of the least weight in a Gaussian mean. It adds nothing to a sum, but numbers
# below the normal range of floats would slow a CPU down.
FAINTEST: Final = -40.0
TINY: Final = 1e-20  # so that a black image gives zeros and not NaN


def robust_problem(images: Tensor, template: Template) -> Problem:
    """Return the problem of finding a template in images (N, S, H, W) with the robust energy.

    Raises:
        ValueError: the template has no local contrast; see `with_local_contrast`.
    """
    template = template.to(images)
    if template.local_contrast is None:
        raise ValueError("the template has no local contrast")
    local = replace(template, image=template.local_contrast)
    terms = (
        (images, template, 1 - LOCAL_CONTRAST_WEIGHT),
        (normalize_local_contrast(images), local, LOCAL_CONTRAST_WEIGHT),
    )
    return Problem(tuple(Term(u, t, CONTRAST * deviation(u), weight) for u, t, weight in terms))


def with_local_contrast(template: Template, image: Tensor, matrix: Tensor) -> Template:
    """Add the local contrast to a template that was cut out of an image (H, W) by a map (2, 3)."""
    local = sample(normalize_local_contrast(image), matrix.to(image), template.size)
    return replace(template, local_contrast=local)


def resize_template(template: Template, size: tuple[int, int]) -> Template:
    """Resize a template to (height, width); its windows are rounded to pixels."""

    def resized(window: Window) -> Window:
        spans = []
        for span, before, after in zip(window[1:], template.size, size, strict=True):
            start = min(round(span.start * after / before), after - 2)
            spans.append(slice(start, max(round(span.stop * after / before), start + 2)))
        return ..., spans[0], spans[1]

    local = template.local_contrast
    return replace(
        template,
        image=resize(template.image, size),
        local_contrast=None if local is None else resize(local, size),
        red=resized(template.red),
        green=resized(template.green),
    )


def normalize_local_contrast(images: Tensor) -> Tensor:
    """Subtract the local mean of images (..., H, W) and divide by the local deviation.

    Returns (..., H / 2, W / 2), since at full resolution there is little but noise.
    """
    return local_contrast(resize(images, (images.shape[-2] // 2, images.shape[-1] // 2)))


def local_contrast(images: Tensor) -> Tensor:
    """Return images (..., H, W) less their local mean, over their local deviation."""
    rounding = 100 * torch.finfo(images.dtype).eps * images.abs().amax((-2, -1), keepdim=True)
    images = images - images.mean((-2, -1), keepdim=True)
    high = images - _smooth(images)
    local = _smooth(high.square()).clamp(min=0).sqrt()
    overall = images.square().mean((-2, -1), keepdim=True).sqrt()
    return high / (local + NOISE * overall + rounding + TINY)


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
    exponents = -0.5 * ((position[:, None] - position) / sigma).square()
    weights = torch.exp(exponents.clamp(min=FAINTEST))
    return weights / weights.sum(1, keepdim=True)
