"""Means with standard errors, paired tests, bootstrap intervals and groups of equal size."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

RESAMPLES: Final = 2000
INTERVAL: Final = ((1 - 0.95) / 2, (1 + 0.95) / 2)  # quantiles


def mean(values: ArrayLike) -> float | None:
    """Return the mean of numbers or flags (N,); None without any."""
    given = np.asarray(values, np.float64)
    return float(given.mean()) if len(given) else None


def standard_deviation(values: ArrayLike) -> float | None:
    """Return the standard deviation of numbers (N,); None for fewer than two."""
    given = np.asarray(values, np.float64)
    return float(given.std(ddof=1)) if len(given) > 1 else None


def mean_and_error(values: Sequence[float]) -> tuple[int, float | None, float | None]:
    """Return the number of values, their mean and its standard error, None where unknown."""
    spread = standard_deviation(values)
    error = None if spread is None else spread / math.sqrt(len(values))
    return len(values), mean(values), error


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


def bootstrap_mean(
    films: Sequence[str], values: Sequence[float], generator: np.random.Generator
) -> tuple[float | None, float | None]:
    """Return both ends of the 95 % percentile interval of a mean, by a clustered bootstrap.

    Whole films are resampled, since both knees of a film tend to be right or wrong together. Given
    are the film of each knee and its finite value, (N,) each; fewer than two films have no
    interval.
    """
    by_film: dict[str, list[float]] = {film: [] for film in sorted(films)}
    for film, value in zip(films, values, strict=True):
        by_film[film].append(value)
    if len(by_film) < 2:
        return None, None
    table = np.array(list(zip_longest(*by_film.values(), fillvalue=math.nan)), np.float64).T
    means = []
    for _ in range(RESAMPLES):
        drawn = table[generator.integers(len(table), size=len(table))]
        means.append(drawn[~np.isnan(drawn)].mean())
    low, high = np.quantile(means, INTERVAL)
    return float(low), float(high)


def quantile_groups(values: Floats, count: int) -> list[Indices]:
    """Return the indices of `count` groups of equal size, from the lowest values to the highest.

    Groups are empty where there are fewer values than groups.
    """
    return np.array_split(np.argsort(values, kind="stable"), count)
