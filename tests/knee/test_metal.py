"""Metal in a knee: bright, even and sharp."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from kneematch.knee import metal
from kneematch.knee.knee_images import knee_images
from kneematch.knee.metal import find_metal
from kneematch.models.locator import VIEW_SIZE, KneeLocation
from kneephantoms import phantom


@pytest.fixture(scope="module")
def view() -> Tensor:
    """A knee without metal."""
    made = phantom(1, framing="bilateral")
    knee = made.knees[1]
    assert not knee.implant
    place = KneeLocation(*knee.centre, 250.0, 0.0, False)
    return knee_images(torch.from_numpy(made.pixels), [place]).pixels[0]


def with_disc(
    view: Tensor, x: float, y: float, softness: float = 0.5, brightness: float = 1.6
) -> Tensor:
    """A view with a bright disc, x and y plateau widths from the joint's middle.

    Its brightness is relative to the brightest bone.
    """
    rows, columns = (torch.arange(side) + 0.5 for side in view.shape)
    away = torch.hypot(columns - 125 - 100 * x, (rows - 200 - 100 * y)[:, None])
    inside = ((15 - away) / softness + 0.5).clamp(0, 1)
    return view + inside * (brightness * view.max() - view)


def has_metal(view: Tensor) -> bool:
    (found,) = find_metal(view[None])
    return found


def test_find_metal_sees_metal_in_the_bones(view: Tensor) -> None:
    for knee, sign in ((view, 1), (1 - view, -1)):  # a positive and a negative
        assert not has_metal(knee)
        assert has_metal(sign * with_disc(view, 0.1, 0.3))
    assert not has_metal(torch.zeros(VIEW_SIZE))
    assert not has_metal(with_disc(view, 0.62, -0.6))  # beside the bones
    assert not has_metal(with_disc(view, 0.1, 0.3, softness=30.0))


def test_find_metal_sees_metal_in_white_bones(view: Tensor) -> None:
    """On an over-exposed film, metal is hardly brighter than bone, but still sharp."""
    white = (view / view.quantile(0.9)).clamp(max=1.0)
    assert not has_metal(white)
    assert has_metal(with_disc(white, 0.1, 0.3, brightness=1.2))
    assert not has_metal(with_disc(white, 0.1, 0.3, softness=15.0, brightness=1.2))


def drawn_shapes(seed: int) -> Tensor:
    """A view with rectangles of any brightness on a background that is more or less smooth."""
    rng = np.random.default_rng(seed)
    view = 0.6 * ndimage.uniform_filter(rng.random(VIEW_SIZE), int(rng.integers(1, 40)))
    for _ in range(rng.integers(1, 6)):
        top, left, height, width = rng.integers((100, 40, 5, 5), (300, 200, 80, 80))
        view[top : top + height, left : left + width] = rng.uniform(0, 1.5)
    view = ndimage.uniform_filter(view, int(rng.integers(1, 7)))
    return torch.from_numpy((view + rng.normal(0, 0.02, VIEW_SIZE)).astype(np.float32))


def metal_by_scipy(view: Tensor) -> bool:
    """The same as find_metal, region by region, as plainly as SciPy can say it."""
    part = view[metal.ROWS, metal.COLUMNS].numpy()
    bones, beside = metal._bones_and_beside()
    part = -part if part[bones].mean() < part[:, beside].mean() else part
    low, high = np.percentile(part, metal.QUANTILES).astype(np.float32)
    grey = ((part - low) / (high - low)).clip(max=1.0)
    fall, farther = (
        ndimage.maximum_filter(grey, side) - ndimage.minimum_filter(grey, side)
        for side in (metal.NEARBY, metal.FARTHER)
    )
    for level in np.array(metal.LEVELS, np.float32):
        bright = ndimage.grey_opening(grey, metal.THINNEST) > level
        labels, count = ndimage.label(bright)
        for region in (labels == number for number in range(1, count + 1)):
            core = ndimage.binary_erosion(region, border_value=1)
            if region.sum() < metal.SMALLEST * metal.PLATEAU**2 or not core.any():
                continue
            edge, uneven = region & ~core, grey[core].std()
            sharp = (fall[edge] > metal.SHARPNESS + metal.UNEVENNESS * uneven).mean()
            if (
                region.sum() >= metal.LARGE * metal.PLATEAU**2
                and edge.sum() < metal.ROUND * np.sqrt(region.sum())
                and grey[core].mean() > metal.BRIGHTEST
            ):
                least = max(metal.LEAST_FALL, metal.EVENNESS * uneven)
                sharp = max(sharp, (farther[edge] > least).mean())
            if bones[region].mean() > metal.IN_BONES and sharp >= metal.SHARP_SHARE:
                return True
    return False


def test_find_metal_equals_scipy_on_drawn_shapes() -> None:
    views = [drawn_shapes(seed) for seed in range(60)]
    found = find_metal(torch.stack(views))
    assert found == [metal_by_scipy(view) for view in views]
    assert 10 < sum(found) < 50
