"""Means, paired tests and intervals, against answers known from elsewhere."""

import math

import numpy as np
import pytest

from kneematch.evaluation.statistics import Mean, bootstrap, compare, holm, mean


def test_the_standard_error_is_the_deviation_over_the_root_of_the_count() -> None:
    found = mean([1.0, 2, 3, 4])
    assert found.count == 4
    assert found.value == 2.5
    assert found.error == pytest.approx(math.sqrt(5 / 3) / 2)


def test_of_too_few_values_nothing_is_made_up() -> None:
    assert mean([]) == Mean(0, None, None)
    assert mean([3.0]) == Mean(1, 3.0, None)
    assert compare([], []).p is None


def test_wilcoxons_p_is_that_of_counting_all_signs() -> None:
    # Of the 2^6 signs of six differences, one is as one-sided as this, and one to the other side.
    first = np.array([1.0, 2, 3, 4, 5, 6])
    found = compare(first, first - [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert found.p == pytest.approx(2 / 2**6)
    assert found.difference.value == pytest.approx(0.35)


def test_the_order_of_two_methods_turns_the_difference_and_not_the_chance() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=60), random.normal(0.3, size=60)
    one, other = compare(a, b), compare(b, a)
    assert one.difference.value == pytest.approx(-(other.difference.value or 0))
    assert one.p == pytest.approx(other.p)


def test_methods_that_agree_everywhere_do_not_differ() -> None:
    assert compare([0.2, 0.3], [0.2, 0.3]).p == 1


def test_differences_of_zero_and_ties_are_no_trouble() -> None:
    found = compare([1.0, 2, 3, 4, 5, 6, 7, 8], [1.0, 1, 2, 3, 4, 5, 6, 7])
    assert found.p is not None
    assert 0 < found.p < 0.05


def test_holm_multiplies_the_least_most_and_never_changes_the_order() -> None:
    # The example of Holm's method with four hypotheses: 0.005 * 4, 0.01 * 3, 0.03 * 2, then the
    # largest so far.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([None, 0.02]) == [None, 0.02]


def test_the_interval_of_a_mean_is_two_standard_errors_wide_to_each_side() -> None:
    values = np.random.default_rng(1).normal(5, 2, size=400)
    interval = bootstrap([[v] for v in values], np.mean, np.random.default_rng(2))
    assert interval is not None
    known = mean(values)
    assert known.value is not None
    assert known.error is not None
    assert interval[0] == pytest.approx(known.value - 1.96 * known.error, abs=0.03)
    assert interval[1] == pytest.approx(known.value + 1.96 * known.error, abs=0.03)


def test_knees_of_a_film_stay_together() -> None:
    # A film's two knees are alike, so they say no more than one: the interval is no narrower.
    values = np.random.default_rng(3).normal(size=200)
    one = bootstrap([[v] for v in values], np.mean, np.random.default_rng(4))
    two = bootstrap([[v, v] for v in values], np.mean, np.random.default_rng(4))
    assert one == pytest.approx(two)


def test_films_of_one_and_of_two_knees_and_of_none_are_mixed() -> None:
    films = [[1.0], [1, 1], [], [1.0]]
    assert bootstrap(films, np.mean, np.random.default_rng(5)) == (1, 1)
    assert bootstrap([[], []], np.mean, np.random.default_rng(5)) is None


def test_the_same_generator_draws_the_same_interval() -> None:
    films = np.random.default_rng(6).random((20, 2)).tolist()
    intervals = {bootstrap(films, np.median, np.random.default_rng(7)) for _ in range(2)}
    assert len(intervals) == 1
