"""The robust energy: local contrast, low contrast, and what it shares with the paper's."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kneematch.search.robust_energy import normalize_local_contrast, robust_problem

SIZE = (160, 100)


def test_robust_problem_has_a_low_energy_only_at_the_template(
    clouds: Callable, cut: Callable
) -> None:
    template, theta = cut(clouds())
    near = torch.stack([theta, theta + torch.tensor([0.02, 0.05, 0.0, 0.0])])[:, None].float()
    images = clouds().expand(2, 1, 192, 120)
    here, aside = robust_problem(images, template).energy(near).tolist()
    assert here < 0.05
    assert aside > here + 0.1
    changed = robust_problem(3 - 2 * images, template).energy(near)
    assert changed.tolist() == pytest.approx([here, aside], abs=1e-4)


def texture() -> Tensor:
    """Grain of a few pixels around a middle grey."""
    noise = torch.randn(1, 1, *SIZE, generator=torch.Generator().manual_seed(0))
    return 0.5 + 0.1 * torch.nn.functional.avg_pool2d(noise, 3, stride=1, padding=1)[0, 0]


@pytest.mark.parametrize(("gain", "offset"), [(3.0, -2.0), (0.2, 5.0), (-1.0, 1.0)])
def test_normalize_local_contrast_ignores_gain_and_offset(gain: float, offset: float) -> None:
    image = texture().double()
    usual, changed = (normalize_local_contrast(each) for each in (image, gain * image + offset))
    assert torch.allclose(changed, math.copysign(1, gain) * usual, atol=1e-9)
