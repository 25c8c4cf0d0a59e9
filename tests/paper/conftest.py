"""Small images that hold a template."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from torch import Tensor

from kneematch.paper.template import Template


@dataclass(frozen=True)
class Films:
    """Five radiographs that all show a template at the same pose."""

    images: Tensor  # (5, 2, 192, 120)
    template: Template


@pytest.fixture(scope="session")
def films(clouds: Callable, cut: Callable) -> Films:
    images = clouds(5, 2, seed=3)
    template, _ = cut(images[0, 1])
    images[..., 70:120, 40:90] = template.image
    return Films(images, template)
