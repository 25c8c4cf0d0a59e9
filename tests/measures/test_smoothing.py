import numpy as np
import pytest

from kneematch.measures.smoothing import smooth

X = np.arange(100) + 0.5
EVERYWHERE = (0.0, 100.0)


def test_smooth_keeps_straight_lines() -> None:
    line = 20 + 0.3 * X
    assert smooth(line, np.ones(100), between=EVERYWHERE) == pytest.approx(line)


def test_smooth_reduces_noise_and_keeps_curves() -> None:
    noise = np.random.default_rng(0).normal(0, 0.5, 100)
    curve = 40 + 8 * np.sin(X / 15)
    smoothed = smooth(curve + noise, np.full(100, 0.5), between=EVERYWHERE, smoothness=30.0)
    assert np.std(smoothed - curve) < 0.6 * np.std(noise)


def test_smooth_bridges_uncertain_columns() -> None:
    line, sd = 20 + 0.3 * X, np.full(100, 0.5)
    line[40:50], sd[40:50] = 90, 60
    assert smooth(line, sd, between=EVERYWHERE)[45] == pytest.approx(20 + 0.3 * X[45], abs=2)


def test_smooth_ignores_columns_beyond_the_plateau() -> None:
    line = 20 + 0.3 * X
    line[:10] = 90
    smoothed = smooth(line, np.ones(100), between=(10, 100))
    assert smoothed[10:] == pytest.approx(20 + 0.3 * X[10:], abs=0.01)
