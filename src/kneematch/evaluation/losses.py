"""The paper's Tables 1 and 2: the loss of both sides together, and whether methods differ in it."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

from kneematch.evaluation.config import GRID
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.statistics import compare, holm, mean
from kneematch.evaluation.tables import Cell, Column, Table, chance, digits

COUNT: Final = digits(0)
LOSS: Final = digits(3)
ERROR: Final = digits(4)

Losses = Mapping[str, float]  # by the film's path


def film_losses(trial: Trial) -> dict[str, float]:
    """Left + right, of the films that show both knees."""
    return {
        film: sum(knee.loss for knee in knees)
        for film, knees in trial.found.items()
        if len(knees) == 2
    }


def loss_tables(trials: Sequence[Trial], how_timed: str = "") -> list[Table]:
    """Each method's mean loss, and each pair's difference; where the grid had fewer films, a
    table of all methods on those."""
    losses = _comparable(trials)
    tables = [
        _losses("losses", trials, losses, f"Mean of left + right loss. {how_timed}".strip()),
        _pairs(losses),
    ]
    grid = losses.get(GRID)
    if grid is not None and any(len(other) > len(grid) for other in losses.values()):
        few = {
            method: {film: loss for film, loss in one.items() if film in grid}
            for method, one in losses.items()
        }
        caption = "Mean of left + right loss on the films of the grid search."
        tables.append(_losses("losses_grid", trials, few, caption))
    return tables


def _comparable(trials: Sequence[Trial]) -> dict[str, Losses]:
    """By method, on the films that all methods have; the grid's need not be all of them."""
    losses = {trial.method: film_losses(trial) for trial in trials}
    whole = [one for method, one in losses.items() if method != GRID] or list(losses.values())
    shared = set.intersection(*(set(one) for one in whole))
    return {
        method: {film: loss for film, loss in one.items() if film in shared}
        for method, one in losses.items()
    }


def _losses(
    name: str, trials: Sequence[Trial], losses: Mapping[str, Losses], caption: str
) -> Table:
    columns = (
        Column("method"),
        Column("films", COUNT),
        Column("left + right loss", LOSS),
        Column("standard error", ERROR),
        Column("ms a film", digits(1)),
    )
    rows: list[tuple[Cell, ...]] = []
    for trial in trials:
        found = mean(list(losses[trial.method].values()))
        rows.append((trial.method, found.count, found.value, found.error, trial.ms_a_film))
    return Table(name, caption, columns, tuple(rows))


def _pairs(losses: Mapping[str, Losses]) -> Table:
    columns = (
        Column("first"),
        Column("second"),
        Column("films", COUNT),
        Column("difference", LOSS),
        Column("standard error", ERROR),
        Column("p", chance),
        Column("p, Holm", chance),
    )
    pairs = list(combinations(losses, 2))
    found = []
    for first, second in pairs:
        films = [film for film in losses[first] if film in losses[second]]
        found.append(compare(*([losses[name][film] for film in films] for name in (first, second))))
    corrected = holm([one.p for one in found])
    rows: list[tuple[Cell, ...]] = [
        (*pair, one.difference.count, one.difference.value, one.difference.error, one.p, p)
        for pair, one, p in zip(pairs, found, corrected, strict=True)
    ]
    caption = (
        "Loss of the first method less that of the second on the films of both; p by Wilcoxon's "
        "signed-rank test, then corrected for the number of pairs after Holm."
    )
    return Table("pairs", caption, columns, tuple(rows))
