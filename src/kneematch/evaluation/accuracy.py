"""How close the knees that were found are to where they are known to be."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.evaluation.ground_truth import Score, Truth, scores
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.statistics import bootstrap
from kneematch.evaluation.tables import Cell, Column, Table, digits

ALL: Final = "all"
COLUMNS: Final = (
    Column("method"),
    Column("source"),
    Column("knees", digits(0)),
    Column("missed", digits(0)),
    Column("mean IoU", digits(3)),
    Column("IoU, low", digits(3)),
    Column("IoU, high", digits(3)),
    Column("recall at 0.5", digits(3)),
    Column("recall at 0.75", digits(3)),
    Column("recall at 0.75, low", digits(3)),
    Column("recall at 0.75, high", digits(3)),
    Column("recall at 0.9", digits(3)),
    Column("centre, median %", digits(2)),
    Column("centre, 95th %", digits(2)),
    Column("margins, median %", digits(2)),
    Column("margins, 95th %", digits(2)),
    Column("margins, median mm", digits(2)),
)
CAPTION: Final = (
    "Areas against labelled ones: squares around the tibial plateau, 1.5 times its width wide. "
    "Errors are in % of the plateau's width, of its midpoint and of its margins. Low and high: "
    "where 95 % of the means lie when films are drawn again. A missed knee has an IoU of 0 and no "
    "error."
)

Floats = NDArray[np.float64]


def accuracy_tables(trials: Sequence[Trial], truth: Truth, rng: np.random.Generator) -> list[Table]:
    """One row a method and kind of film, and one for all kinds.

    Raises:
        SettingsError: no film is labelled, or areas have no two points to compare.
    """
    rows = [row for score in scores(trials, truth) for row in _rows(score, rng)]
    left_out = f" {truth.left_out} knees whose labels are flagged are left out."
    return [Table("accuracy", CAPTION + left_out * bool(truth.left_out), COLUMNS, tuple(rows))]


def _rows(score: Score, rng: np.random.Generator) -> Iterator[tuple[Cell, ...]]:
    sources = sorted(set(score.source.tolist()))
    if len(sources) > 1:
        for source in sources:
            yield (score.method, source, *_numbers(score.only(score.source == source), rng))
    yield (score.method, ALL, *_numbers(score, rng))


def _numbers(score: Score, rng: np.random.Generator) -> Iterator[Cell]:
    yield len(score.iou)
    yield int(score.missed.sum())
    yield _mean(score.iou)
    yield from _interval(score, score.iou, rng)
    for least in (0.5, 0.75, 0.9):
        reached = (score.iou >= least).astype(np.float64)
        yield _mean(reached)
        if least == 0.75:
            yield from _interval(score, reached, rng)
    for error in (score.centre_percent, score.margin_percent):
        yield _quantile(error, 0.5)
        yield _quantile(error, 0.95)
    yield _quantile(score.margin_mm, 0.5)


def _interval(
    score: Score, values: Floats, rng: np.random.Generator
) -> tuple[float | None, float | None]:
    films = score.by_film(values)
    if len(films) < 2:  # nothing to draw from: the interval would be a point
        return None, None
    return bootstrap(films, _plain_mean, rng) or (None, None)


def _plain_mean(values: Floats) -> float:
    return float(values.mean())


def _mean(values: Floats) -> float | None:
    return _plain_mean(values) if len(values) else None


def _quantile(values: Floats, share: float) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.quantile(known, share)) if len(known) else None
