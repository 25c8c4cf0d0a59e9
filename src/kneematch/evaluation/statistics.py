"""Means with standard errors, paired tests, bootstrap intervals and groups of equal size."""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

RESAMPLES: Final = 2000
COVERAGE: Final = 0.95  # of an interval


def mean_and_error(values: ArrayLike) -> tuple[int, float | None, float | None]:
    """Return the number of values (N,), their mean and its standard error.

    The mean of no values is None, and so is the error of fewer than two.
    """
    given: Floats = np.asarray(values, np.float64)
    count = len(given)
    error = float(given.std(ddof=1)) / math.sqrt(count) if count > 1 else None
    return count, float(given.mean()) if count else None, error


def wilcoxon_p(differences: ArrayLike) -> float | None:
    """Return the two-sided p-value of Wilcoxon's signed-rank test for differences (N,).

    Differences of zero are left out, as Wilcoxon did; only zeros give 1, none at all None.
    """
    given: Floats = np.asarray(differences, np.float64)
    if not len(given):
        return None
    from scipy.stats import wilcoxon

    nonzero = given[given != 0]
    return float(wilcoxon(nonzero).pvalue) if len(nonzero) else 1.0


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for multiple testing (Holm 1979); None stays None and is not counted."""
    known = sorted((p, k) for k, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, k) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[k] = largest
    return corrected


def bootstrap(
    values_by_film: Sequence[Sequence[float]],
    statistic: Callable[[Floats], float],
    generator: np.random.Generator,
) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of a statistic, by a clustered bootstrap.

    Whole films are resampled, since both knees of a film tend to be right or wrong together.

    Args:
        values_by_film: the values of each film's knees; a film may have none.
        statistic: function of the values (N,) of all knees, such as np.mean or np.median.
        generator: source of randomness.

    Returns:
        Both ends of the interval; None without values.
    """
    films = [film for film in values_by_film if len(film)]
    if not films:
        return None
    counts = np.array([len(film) for film in films])
    present = np.arange(counts.max()) < counts[:, None]  # (films, knees)
    table = np.zeros(present.shape)
    table[present] = np.concatenate([np.asarray(film, np.float64) for film in films])
    results = np.empty(RESAMPLES)
    for k in range(RESAMPLES):
        drawn = generator.integers(len(films), size=len(films))
        results[k] = statistic(table[drawn][present[drawn]])
    low, high = np.quantile(results, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)


def quantile_groups(values: Floats, count: int) -> list[Indices]:
    """Return the indices of `count` groups of equal size, from the lowest values to the highest.

    Groups are empty where there are fewer values than groups.
    """
    return np.array_split(np.argsort(values, kind="stable"), count)
