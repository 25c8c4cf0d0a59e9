"""Whether a smaller loss means a better place: the paper's question, answered with the truth."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.evaluation.ground_truth import Truth, scores
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.tables import Cell, Column, Table, chance, digits

FEWEST: Final = 3  # knees from which a correlation tells anything
FIFTHS: Final = ("lowest", "low", "middle", "high", "highest")
THIRDS: Final = ("small", "middle", "large")
ALL: Final = "all"

CORRELATION: Final = (
    Column("method"),
    Column("knees", digits(0)),
    Column("rank correlation", digits(3)),
    Column("p", chance),
)
BY_LOSS: Final = (
    Column("method"),
    Column("fifth by loss"),
    Column("knees", digits(0)),
    Column("mean loss", digits(3)),
    Column("margins, mean %", digits(2)),
    Column("margins, median %", digits(2)),
    Column("mean IoU", digits(3)),
)
LOWER_LOSS: Final = (
    Column("methods"),
    Column("difference of loss"),
    Column("knees", digits(0)),
    Column("mean difference", digits(4)),
    Column("lower loss is closer", digits(0)),
    Column("share", digits(3)),
    Column("p", chance),
)

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class LossAndError:
    """Every labelled knee that a method found; K of them, all methods together."""

    method: NDArray[np.str_]  # (K,)
    film: NDArray[np.str_]  # (K,) path
    side: NDArray[np.str_]  # (K,)
    source: NDArray[np.str_]  # (K,)
    loss: Floats  # (K,)
    margin_percent: Floats  # (K,) error, in % of the plateau's width
    iou: Floats  # (K,)

    @property
    def methods(self) -> list[str]:
        """In order."""
        return list(dict.fromkeys(self.method.tolist()))

    def tables(self) -> list[Table]:
        """Across knees, and within a knee between methods."""
        return [
            Table(
                "loss_and_error",
                "Across knees: how the ranks of loss and margin error go together, after "
                "Spearman; 1: the lower the loss, the better the place; 0: the loss does not tell. "
                "p takes knees for independent.",
                CORRELATION,
                tuple((method, *self._correlation(method)) for method in self.methods),
            ),
            Table(
                "error_by_loss",
                "The error of a fifth of the knees each, from those of the lowest loss to those "
                "of the highest: where the errors of the first four are alike, the loss tells a "
                "failure but not the better of two good places.",
                BY_LOSS,
                tuple(row for method in self.methods for row in self._by_loss(method)),
            ),
            Table(
                "lower_loss",
                "Within a knee, for two methods: how often the one of the lower loss also has the "
                "smaller margin error. A share of 0.5 is that of a coin (p: two-sided binomial "
                "test, knees taken for independent); if a smaller loss means a better place, it is "
                "near 1 where the losses differ much.",
                LOWER_LOSS,
                tuple(row for pair in combinations(self.methods, 2) for row in self._paired(*pair)),
            ),
        ]

    def _of(self, method: str) -> Indices:
        return np.flatnonzero(self.method == method)

    def _correlation(self, method: str) -> tuple[Cell, ...]:
        at = self._of(method)
        loss, error = self.loss[at], self.margin_percent[at]
        if len(at) < FEWEST or np.ptp(loss) == 0 or np.ptp(error) == 0:
            return len(at), None, None
        from scipy.stats import spearmanr

        found = spearmanr(loss, error)
        return len(at), float(found.statistic), float(found.pvalue)

    def _by_loss(self, method: str) -> Iterator[tuple[Cell, ...]]:
        at = self._of(method)
        for name, part in _parts(FIFTHS, at, self.loss[at]):
            error = self.margin_percent[part]
            means = float(self.loss[part].mean()), float(error.mean()), float(np.median(error))
            yield (method, name, len(part), *means, float(self.iou[part].mean()))

    def _paired(self, first: str, second: str) -> Iterator[tuple[Cell, ...]]:
        """Knees that both methods found and that differ in both loss and error."""
        one, two = self._same_knees(first, second)
        loss = self.loss[one] - self.loss[two]
        error = self.margin_percent[one] - self.margin_percent[two]
        told = np.flatnonzero((loss != 0) & (error != 0))
        apart, agree = np.abs(loss), loss * error > 0
        for name, part in [*_parts(THIRDS, told, apart[told]), (ALL, told)]:
            if len(part):
                closer = int(agree[part].sum())
                numbers = len(part), float(apart[part].mean()), closer, closer / len(part)
                yield (f"{first}, {second}", name, *numbers, _coin(closer, len(part)))

    def _same_knees(self, first: str, second: str) -> tuple[Indices, Indices]:
        """Where the knees stand that both methods found, in the same order."""
        knees = [
            {(self.film[at], self.side[at]): at for at in self._of(method)}
            for method in (first, second)
        ]
        both = [knee for knee in knees[0] if knee in knees[1]]
        one, two = (np.array([known[knee] for knee in both], np.intp) for known in knees)
        return one, two


def loss_and_error(trials: Sequence[Trial], truth: Truth) -> LossAndError:
    """Loss and error of what was found where the truth is known.

    Raises:
        SettingsError: no film is labelled, or areas have no two points to compare.
    """
    found = [score.only(~score.missed) for score in scores(trials, truth)]
    return LossAndError(
        method=np.concatenate([np.full(len(score.loss), score.method) for score in found]),
        film=np.concatenate([score.film for score in found]),
        side=np.concatenate([score.side for score in found]),
        source=np.concatenate([score.source for score in found]),
        loss=np.concatenate([score.loss for score in found]),
        margin_percent=np.concatenate([score.margin_percent for score in found]),
        iou=np.concatenate([score.iou for score in found]),
    )


def _parts(names: Sequence[str], at: Indices, values: Floats) -> list[tuple[str, Indices]]:
    """Parts of equal size, from the lowest values to the highest; none that is empty."""
    ranked = at[np.argsort(values, kind="stable")]
    parts = np.array_split(ranked, len(names))
    return [(name, part) for name, part in zip(names, parts, strict=True) if len(part)]


def _coin(heads: int, tosses: int) -> float:
    """How probable a fair coin is to be as uneven."""
    from scipy.stats import binomtest

    return float(binomtest(heads, tosses).pvalue)
