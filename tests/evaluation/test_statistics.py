"""Means, paired tests and intervals, against answers known from elsewhere."""

import math

import numpy as np
import pytest
from kneematch.evaluation.statistics import (
    bootstrap_mean,
    holm,
    mean,
    mean_and_error,
    quantile_groups,
    standard_deviation,
    wilcoxon_p,
)


def test_mean_and_error_divides_the_deviation_by_the_root_of_the_count() -> None:
    assert mean_and_error([1.0, 2, 3, 4]) == (4, 2.5, pytest.approx(math.sqrt(5 / 3) / 2))


def test_mean_and_error_of_too_few_values_is_unknown() -> None:
    assert mean_and_error([]) == (0, None, None)
    assert mean_and_error([3.0]) == (1, 3.0, None)


def test_mean_and_deviation_of_too_few_values_are_unknown() -> None:
    assert mean([True, False]) == 0.5
    assert mean([]) is None
    assert standard_deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert standard_deviation([1.0]) is None


def test_wilcoxon_p_is_that_of_counting_all_signs() -> None:
    # Of the 2^6 signs of six differences, one is as one-sided as this, and one to the other side.
    assert wilcoxon_p([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) == pytest.approx(2 / 2**6)


def test_wilcoxon_p_leaves_out_zeros() -> None:
    assert wilcoxon_p([]) is None
    assert wilcoxon_p([0.0, 0.0]) == 1
    assert wilcoxon_p([0, 0.1, 0, 0.2, 0.3]) == wilcoxon_p([0.1, 0.2, 0.3])


def test_wilcoxon_p_accepts_ties() -> None:
    found = wilcoxon_p([0.0, 1, 1, 1, 1, 1, 1, 1])
    assert found is not None
    assert 0 < found < 0.05


def test_holm_multiplies_the_smallest_most_and_keeps_the_order() -> None:
    # The example of Holm's method with four hypotheses: 0.005 * 4, 0.01 * 3, 0.03 * 2, then the
    # largest so far.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([None, 0.02]) == [None, 0.02]


def test_bootstrap_mean_is_two_standard_errors_wide_to_each_side() -> None:
    values = np.random.default_rng(1).normal(5, 2, size=400)
    films = [str(k) for k in range(400)]
    interval = bootstrap_mean(films, values.tolist(), np.random.default_rng(2))
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert interval[0] == pytest.approx(values.mean() - 1.96 * error, abs=0.03)
    assert interval[1] == pytest.approx(values.mean() + 1.96 * error, abs=0.03)


def test_bootstrap_mean_keeps_the_knees_of_a_film_together() -> None:
    # A film's two equal knees say no more than one: the interval is no narrower.
    values = np.random.default_rng(3).normal(size=200).tolist()
    films = [str(k) for k in range(200)]
    one = bootstrap_mean(films, values, np.random.default_rng(4))
    two = bootstrap_mean([*films, *films], [*values, *values], np.random.default_rng(4))
    assert one == pytest.approx(two)


def test_bootstrap_mean_mixes_films_of_one_and_of_two_knees() -> None:
    assert bootstrap_mean(list("abbc"), [1.0] * 4, np.random.default_rng(5)) == (1, 1)
    low, high = bootstrap_mean(list("abb"), [0.0, 1, 1], np.random.default_rng(5))
    assert (low, high) == (0, 1)


def test_bootstrap_mean_of_one_film_is_unknown() -> None:
    assert bootstrap_mean(["a", "a"], [0.5, 1], np.random.default_rng(5)) == (None, None)
    assert bootstrap_mean([], [], np.random.default_rng(5)) == (None, None)


def test_bootstrap_mean_is_fixed_by_its_generator() -> None:
    values = np.random.default_rng(6).random(40).tolist()
    films = [str(k // 2) for k in range(40)]
    found = {bootstrap_mean(films, values, np.random.default_rng(7)) for _ in range(2)}
    assert len(found) == 1


def test_quantile_groups_are_of_equal_size_from_low_to_high() -> None:
    groups = quantile_groups(np.array([0.5, 0.1, 0.9, 0.3, 0.7]), 2)
    assert [group.tolist() for group in groups] == [[1, 3, 0], [4, 2]]
    assert [len(group) for group in quantile_groups(np.array([1.0]), 3)] == [1, 0, 0]
