"""Loss by method (the paper's Tables 1 and 2), and whether a lower loss means a better position."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.evaluation.config import GRID
from kneematch.evaluation.method_run import MethodRun
from kneematch.evaluation.scores import ALL, KneeScore, Scores
from kneematch.evaluation.statistics import (
    Floats,
    holm,
    mean,
    mean_and_error,
    quantile_groups,
    wilcoxon_p,
)
from kneematch.evaluation.tables import Table, columns
from kneematch.films.csv_text import Cell

FEWEST_KNEES: Final = 3  # for a correlation
FIFTHS: Final = ("lowest", "low", "middle", "high", "highest")
THIRDS: Final = ("small", "middle", "large")

LOSSES: Final = columns(
    "method", "films:0", "left + right loss:3", "standard error:4", "ms a film:1"
)
PAIRS: Final = columns(
    "first", "second", "films:0", "difference:3", "standard error:4", "p:p", "p, Holm:p"
)
CORRELATION: Final = columns("method", "knees:0", "rank correlation:3", "p:p")
BY_LOSS: Final = columns(
    *("method", "fifth by loss", "knees:0", "mean loss:3"),
    *("margins, mean %:2", "margins, median %:2", "mean IoU:3"),
)
LOWER_LOSS: Final = columns(
    *("methods", "difference of loss", "knees:0", "mean difference:4"),
    *("lower loss is closer:0", "share:3", "p:p"),
)

Losses = Mapping[str, float]  # left + right loss by the film's path


def film_losses(run: MethodRun) -> dict[str, float]:
    """Return left + right loss of every film that shows both knees."""
    return {
        film: sum(knee.loss for knee in knees)
        for film, knees in run.found.items()
        if len(knees) == 2
    }


def loss_tables(runs: Sequence[MethodRun], timing: str = "") -> list[Table]:
    """Return each method's mean loss, and the paired differences between methods.

    Only films on which all methods found both knees count; the grid search may have been run on
    fewer films, and then there is a further table of all methods on those. `timing` says how times
    were measured, for the caption.
    """
    losses = {run.method: film_losses(run) for run in runs}
    full = [each for method, each in losses.items() if method != GRID] or list(losses.values())
    losses = _restricted(losses, set.intersection(*map(set, full)))
    tables = [
        _loss_table("losses", runs, losses, f"Mean of left + right loss. {timing}".strip()),
        _pair_table(losses),
    ]
    grid = losses.get(GRID)
    if grid is not None and any(len(other) > len(grid) for other in losses.values()):
        caption = "Mean of left + right loss on the films of the grid search."
        tables.append(_loss_table("losses_grid", runs, _restricted(losses, set(grid)), caption))
    return tables


def loss_error_tables(scores: Scores) -> list[Table]:
    """Return how loss and error go together, across knees and between methods on one knee."""
    found = found_knees(scores)
    return [
        Table(
            "loss_and_error",
            "Across knees: Spearman's rank correlation of loss and margin error. 1: the lower the "
            "loss, the better the position; 0: the loss does not tell. p treats knees as "
            "independent.",
            CORRELATION,
            tuple((method, len(knees), *_correlation(knees)) for method, knees in found.items()),
        ),
        Table(
            "error_by_loss",
            "Errors of each fifth of the knees, from the lowest loss to the highest. If the first "
            "four have similar errors, the loss reveals failures, but not the better of two good "
            "positions.",
            BY_LOSS,
            tuple(row for method, knees in found.items() for row in _by_loss(method, knees)),
        ),
        Table(
            "lower_loss",
            "Between two methods on the same knee: how often the one with the lower loss also has "
            "the smaller margin error. 0.5 is chance (p: two-sided binomial test that treats knees "
            "as independent); if a lower loss means a better position, the share is near 1 where "
            "the losses differ much.",
            LOWER_LOSS,
            tuple(row for pair in combinations(found, 2) for row in _lower_loss(found, *pair)),
        ),
    ]


def found_knees(scores: Scores) -> dict[str, list[KneeScore]]:
    """Return the knees whose margin error is known, by method; methods without any are left out."""
    found = {
        name: [knee for knee in knees if math.isfinite(knee.margin_percent)]
        for name, knees in scores.items()
    }
    return {method: knees for method, knees in found.items() if knees}


def paired_differences(
    first: Sequence[KneeScore], second: Sequence[KneeScore]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Compare two methods on the knees that both found; ties in loss or error are left out.

    Returns:
        Absolute differences of loss (K,), and whether the lower loss has the smaller error (K,).
    """
    others = {(knee.film, knee.side): knee for knee in second}
    pairs = [
        (knee.loss - other.loss, knee.margin_percent - other.margin_percent)
        for knee in first
        if (other := others.get((knee.film, knee.side)))
    ]
    loss, error = np.array(pairs, np.float64).reshape(-1, 2).T
    differ = (loss != 0) & (error != 0)
    return np.abs(loss[differ]), (loss * error > 0)[differ]


def _restricted(losses: Mapping[str, Losses], films: set[str]) -> dict[str, dict[str, float]]:
    return {
        method: {film: loss for film, loss in each.items() if film in films}
        for method, each in losses.items()
    }


def _loss_table(
    name: str, runs: Sequence[MethodRun], losses: Mapping[str, Losses], caption: str
) -> Table:
    rows = tuple(
        (run.method, *mean_and_error(list(losses[run.method].values())), run.ms_per_film)
        for run in runs
    )
    return Table(name, caption, LOSSES, rows)


def _pair_table(losses: Mapping[str, Losses]) -> Table:
    differences = {
        (first, second): [one[film] - two[film] for film in one if film in two]
        for (first, one), (second, two) in combinations(losses.items(), 2)
    }
    p = [wilcoxon_p(each) for each in differences.values()]
    rows = tuple(
        (*pair, *mean_and_error(each), *p_values)
        for (pair, each), *p_values in zip(differences.items(), p, holm(p), strict=True)
    )
    caption = (
        "Loss of the first method minus that of the second on the films that both have; p: "
        "Wilcoxon's signed-rank test, and corrected for the number of pairs (Holm)."
    )
    return Table("pairs", caption, PAIRS, rows)


def _loss_and_error(knees: Sequence[KneeScore]) -> tuple[Floats, Floats]:
    return np.array([knee.loss for knee in knees]), np.array([k.margin_percent for k in knees])


def _correlation(knees: Sequence[KneeScore]) -> tuple[Cell, Cell]:
    """Return Spearman's correlation of loss and error, and its p-value."""
    loss, error = _loss_and_error(knees)
    if len(knees) < FEWEST_KNEES or np.ptp(loss) == 0 or np.ptp(error) == 0:
        return None, None
    from scipy.stats import spearmanr

    found = spearmanr(loss, error)
    return float(found.statistic), float(found.pvalue)


def _by_loss(method: str, knees: Sequence[KneeScore]) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each fifth of the knees by loss."""
    loss, error = _loss_and_error(knees)
    iou = np.array([knee.iou for knee in knees])
    for name, group in zip(FIFTHS, quantile_groups(loss, len(FIFTHS)), strict=True):
        if len(group):
            errors = mean(error[group]), float(np.median(error[group]))
            yield (method, name, len(group), mean(loss[group]), *errors, mean(iou[group]))


def _lower_loss(found: Scores, first: str, second: str) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each third of the knees by difference of loss, and one for all."""
    from scipy.stats import binomtest

    apart, closer = paired_differences(found[first], found[second])
    groups = zip(THIRDS, quantile_groups(apart, len(THIRDS)), strict=True)
    for name, group in (*groups, (ALL, np.arange(len(apart)))):
        if count := len(group):
            lower = int(closer[group].sum())
            shares = lower, lower / count, float(binomtest(lower, count).pvalue)
            yield (f"{first}, {second}", name, count, mean(apart[group]), *shares)
