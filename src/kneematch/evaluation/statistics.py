"""Means with their errors, paired tests and bootstrap intervals."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]

RESAMPLES: Final = 2000
COVERED: Final = 0.95  # of an interval


@dataclass(frozen=True, slots=True)
class Mean:
    """Of some values; what too few of them cannot tell is None."""

    count: int
    value: float | None  # None: of none
    error: float | None  # the standard error; None: of fewer than two


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two methods on the same films."""

    difference: Mean  # first less second
    p: float | None  # of Wilcoxon's signed-rank test, two-sided; None: no films


def mean(values: ArrayLike) -> Mean:
    """The mean of (N,) values and its standard error."""
    given: Values = np.asarray(values, np.float64)
    count = len(given)
    error = float(given.std(ddof=1)) / math.sqrt(count) if count > 1 else None
    return Mean(count, float(given.mean()) if count else None, error)


def compare(first: ArrayLike, second: ArrayLike) -> Comparison:
    """Pair the values (N,) of two methods, film by film."""
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    return Comparison(mean(differences), _signed_rank(differences))


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for their number, after Holm; None stays and does not count."""
    known = sorted((p, k) for k, p in enumerate(chances) if p is not None)
    corrected: list[float | None] = [None] * len(chances)
    largest = 0.0
    for rank, (p, k) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[k] = largest
    return corrected


def bootstrap(
    values_by_film: Sequence[Sequence[float]],
    statistic: Callable[[Values], float],
    generator: np.random.Generator,
    *,
    resamples: int = RESAMPLES,
) -> tuple[float, float] | None:
    """The interval that covers 95 % of a statistic when films are drawn again.

    Films are drawn and not knees, since both knees of a film are right or wrong together.

    Args:
        values_by_film: the values of each film's knees; films may have none.
        statistic: of the values (N,) of all knees, as np.mean, np.median or a share.
        generator: what draws.
        resamples: how often.

    Returns:
        Its ends; None without values.
    """
    films = [film for film in values_by_film if len(film)]
    if not films:
        return None
    counts = np.array([len(film) for film in films])
    there = np.arange(counts.max()) < counts[:, None]  # (films, knees)
    table = np.zeros(there.shape)
    table[there] = np.concatenate([np.asarray(film, np.float64) for film in films])
    met = np.empty(resamples)
    for k in range(resamples):
        drawn = generator.integers(len(films), size=len(films))
        met[k] = statistic(table[drawn][there[drawn]])
    low, high = np.quantile(met, [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return float(low), float(high)


def _signed_rank(differences: Values) -> float | None:
    """Wilcoxon's p-value; differences of zero say nothing, so only zeros are no difference."""
    if not len(differences):
        return None
    from scipy.stats import wilcoxon

    told = differences[differences != 0]
    return float(wilcoxon(told).pvalue) if len(told) else 1.0
