"""Loss and time by method (the paper's Tables 1 and 2), and paired differences of the losses."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

import numpy as np
from scipy.stats import sem, wilcoxon

from kneematch.evaluation.config import GRID
from kneematch.evaluation.method_runs import MethodRun
from kneematch.evaluation.tables import Table, columns, mean

LOSSES: Final = columns(
    "method", "films:0", "left + right loss:3", "standard error:4", "ms a film:1"
)
PAIRS: Final = columns(
    "first", "second", "films:0", "difference:3", "standard error:4", "p:p", "p, Holm:p"
)
ALIKE: Final = (
    "The losses of all methods are computed alike: the paper's loss at each area in the film's "
    "half images of 800 x 500 pixels, whichever image the method itself searches."
)

Losses = Mapping[str, float]  # left + right loss by the film's path


def film_losses(run: MethodRun) -> dict[str, float]:
    """Return left + right loss of every film that shows both knees."""
    losses = {
        film: sum(knee.loss for knee in knees)
        for film, knees in run.found.items()
        if len(knees) == 2
    }
    return {film: loss for film, loss in losses.items() if math.isfinite(loss)}


def loss_tables(runs: Sequence[MethodRun], timing: str = "") -> list[Table]:
    """Return each method's mean loss, and the paired differences between methods.

    Only films on which all methods found both knees count; the grid search may have been run on
    fewer films, and then there is a further table of all methods on those. `timing` says how times
    were measured, for the caption.
    """
    losses = {run.method: film_losses(run) for run in runs}
    full = [each for method, each in losses.items() if method != GRID] or list(losses.values())
    losses = _restricted(losses, set.intersection(*map(set, full)))
    caption = f"Mean of left + right loss. {ALIKE} {timing}".strip()
    tables = [_loss_table("losses", runs, losses, caption), _pair_table(losses)]
    grid = losses.get(GRID)
    if grid is not None and any(len(other) > len(grid) for other in losses.values()):
        caption = "Mean of left + right loss on the films of the grid search."
        tables.append(_loss_table("losses_grid", runs, _restricted(losses, set(grid)), caption))
    return tables


def mean_and_error(values: Sequence[float]) -> tuple[int, float | None, float | None]:
    """Return the number of values, their mean and its standard error, None where unknown."""
    return len(values), mean(values), float(sem(values)) if len(values) > 1 else None


def wilcoxon_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Wilcoxon's signed-rank test for differences (N,).

    Differences of zero are left out, as Wilcoxon did; only zeros give 1, none at all None.
    """
    nonzero = [each for each in differences if each]
    return float(wilcoxon(nonzero).pvalue) if nonzero else 1.0 if differences else None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for multiple testing (Holm 1979); None stays None and is not counted."""
    known = sorted((p, k) for k, p in enumerate(p_values) if p is not None)
    scaled = [min(1.0, p * (len(known) - rank)) for rank, (p, _) in enumerate(known)]
    corrected: list[float | None] = [None] * len(p_values)
    for (_, k), p in zip(known, np.maximum.accumulate(scaled or [1.0]), strict=False):
        corrected[k] = float(p)
    return corrected


def _restricted(losses: Mapping[str, Losses], films: set[str]) -> dict[str, dict[str, float]]:
    return {
        method: {film: loss for film, loss in each.items() if film in films}
        for method, each in losses.items()
    }


def _loss_table(
    name: str, runs: Sequence[MethodRun], losses: Mapping[str, Losses], caption: str
) -> Table:
    rows = (
        (run.method, *mean_and_error(list(losses[run.method].values())), run.ms_per_film)
        for run in runs
    )
    return Table(name, caption, LOSSES, tuple(rows))


def _pair_table(losses: Mapping[str, Losses]) -> Table:
    differences = {
        (first, second): [one[film] - two[film] for film in one if film in two]
        for (first, one), (second, two) in combinations(losses.items(), 2)
    }
    p = [wilcoxon_p(each) for each in differences.values()]
    rows = (
        (*pair, *mean_and_error(each), *p_values)
        for (pair, each), *p_values in zip(differences.items(), p, holm(p), strict=True)
    )
    caption = (
        "Loss of the first method minus that of the second on the films that both have; p: "
        "Wilcoxon's signed-rank test, and corrected for the number of pairs (Holm)."
    )
    return Table("pairs", caption, PAIRS, tuple(rows))
