import numpy as np
import pytest

from kneematch.knee.refinement import move_to_edge, smooth

X = np.arange(100) + 0.5
EVERYWHERE = (0.0, 100.0)


def test_smooth_keeps_lines_and_curves_and_reduces_noise() -> None:
    line, curve = 20 + 0.3 * X, 40 + 8 * np.sin(X / 15)
    assert smooth(line, np.ones(100), between=EVERYWHERE) == pytest.approx(line)
    noise = np.random.default_rng(0).normal(0, 0.5, 100)
    smoothed = smooth(curve + noise, np.full(100, 0.5), between=EVERYWHERE)
    assert np.std(smoothed - curve) < 0.6 * np.std(noise)


def test_smooth_bridges_uncertain_columns_and_ignores_those_beyond_the_plateau() -> None:
    line, sd = 20 + 0.3 * X, np.full(100, 0.5)
    wrong = line.copy()
    wrong[40:50], sd[40:50] = 90, 60
    assert smooth(wrong, sd, between=EVERYWHERE)[45] == pytest.approx(line[45], abs=2)
    wrong[:10] = 90
    assert smooth(wrong, sd, between=(10, 100))[10:] == pytest.approx(line[10:], abs=2)


@pytest.mark.parametrize(("bone_above", "left"), [(True, 1.2), (False, 1.7)])
def test_move_to_edge_approaches_an_edge(bone_above: bool, left: float) -> None:
    """An edge along a parabola, blurred, and a first guess that is off by 2 pixels.

    The tibia's edge is trusted less than the femur's.
    """
    x, y = np.meshgrid(np.arange(300) + 0.5, np.arange(200) + 0.5)
    edge = 100.3 + 0.0008 * (x - 150) ** 2
    sign = 1 if bone_above else -1
    film = (1 / (1 + np.exp(sign * (y - edge) / 0.4))).astype(np.float32)
    places = np.linspace(40, 260, 101)
    true = np.stack([places, 100.3 + 0.0008 * (places - 150) ** 2], axis=1)
    inner = slice(10, -10)
    for shift, most in ((2.0, left), (0.0, 0.1)):
        guess = true + np.array([0.0, shift])
        moved = move_to_edge(film, guess, 220.0, bone_above=bone_above)
        assert np.abs(moved - true)[inner, 1].max() < most
    other = move_to_edge(film, guess, 220.0, bone_above=not bone_above)
    assert np.abs(other - guess).max() < 1  # no edge of that sign


def test_move_to_edge_stays_on_a_blank_film() -> None:
    line = np.stack([np.linspace(40, 260, 101), np.full(101, 100.0)], axis=1)
    blank = np.zeros((200, 300), np.float32)
    assert move_to_edge(blank, line, 220.0, bone_above=True) == pytest.approx(line)
