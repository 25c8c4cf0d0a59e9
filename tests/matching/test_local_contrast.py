"""The fine structure of a half: blind to brightness and contrast, local and global."""

import pytest
import torch
from torch import Tensor

from kneematch.matching.local_contrast import normalize_local_contrast

SIZE = (160, 100)


def texture(seed: int = 0) -> Tensor:
    """Grain of a few pixels around a middle grey."""
    noise = torch.randn(1, 1, *SIZE, generator=torch.Generator().manual_seed(seed))
    return 0.5 + 0.1 * torch.nn.functional.avg_pool2d(noise, 3, stride=1, padding=1)[0, 0]


def likeness(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.norm() * b.norm()))


@pytest.mark.parametrize(("gain", "offset"), [(3.0, 0.0), (0.2, 5.0), (1.0, -2.0)])
def test_normalize_local_contrast_ignores_gain_and_offset(gain: float, offset: float) -> None:
    half = texture().double()
    assert torch.allclose(
        normalize_local_contrast(gain * half + offset), normalize_local_contrast(half), atol=1e-9
    )


def test_normalize_local_contrast_of_a_negative_is_the_negative() -> None:
    half = texture().double()
    assert torch.allclose(
        normalize_local_contrast(1 - half), -normalize_local_contrast(half), atol=1e-9
    )


def test_normalize_local_contrast_removes_slow_changes() -> None:
    half = texture()
    shaded = half + torch.linspace(0, 0.3, SIZE[0])[:, None]
    assert likeness(half, shaded) < 0.7
    inner = (..., slice(10, -10), slice(10, -10))
    assert (
        likeness(normalize_local_contrast(half)[inner], normalize_local_contrast(shaded)[inner])
        > 0.95
    )


def test_normalize_local_contrast_evens_strong_and_weak_contrast() -> None:
    half = 0.5 + (texture() - 0.5) * torch.where(torch.arange(SIZE[0]) < 80, 1.0, 0.25)[:, None]
    fine = normalize_local_contrast(half)

    def ratio(image: Tensor) -> float:
        third = len(image) // 3
        return float(image[:third].std() / image[-third:].std())

    assert ratio(half) > 3
    assert ratio(fine) < 0.8 * ratio(half)


@pytest.mark.parametrize("grey", [0.0, 0.7, 1.0])
def test_normalize_local_contrast_of_a_constant_half_is_finite(grey: float) -> None:
    assert bool(normalize_local_contrast(torch.full(SIZE, grey)).isfinite().all())


def test_normalize_local_contrast_of_a_black_half_is_zero() -> None:
    assert normalize_local_contrast(torch.zeros(SIZE)).abs().max() == 0


def test_normalize_local_contrast_does_not_depend_on_the_batch() -> None:
    halves = torch.stack([texture(0), texture(1) * 3]).expand(2, 2, *SIZE)
    together = normalize_local_contrast(halves)
    assert together.shape[:-2] == halves.shape[:-2]
    assert torch.allclose(together[1, 1], normalize_local_contrast(texture(1) * 3), atol=1e-5)


def test_normalize_local_contrast_keeps_the_dtype() -> None:
    assert normalize_local_contrast(texture()).dtype == torch.float32
    assert normalize_local_contrast(texture().double()).dtype == torch.float64
