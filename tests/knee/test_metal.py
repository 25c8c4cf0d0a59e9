"""Metal in a knee: bright, even and sharp."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from kneematch.knee.knee_images import knee_images
from kneematch.knee.metal import find_metal, label_regions
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


def test_label_regions_equals_scipy() -> None:
    noise = np.random.default_rng(0).random((6, 90, 70))
    grey = ndimage.gaussian_filter(noise, (0, 2, 2))
    masks = grey > np.quantile(grey, [0.2, 0.4, 0.5, 0.6, 0.8, 1.0])[:, None, None]
    found = label_regions(masks)
    cross = np.zeros((3, 3, 3), bool)  # no region reaches from one mask into another
    cross[1] = ndimage.generate_binary_structure(2, 1)
    labels, count = ndimage.label(masks, cross)
    assert count > 50
    assert len({*found}) == len({*zip(found, labels[masks], strict=True)}) == count
