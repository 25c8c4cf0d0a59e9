"""How well `review` tells bad areas from good ones."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kneematch.evaluation.ground_truth import Score, Truth, scores
from kneematch.evaluation.method_run import Trial
from kneematch.evaluation.tables import Cell, Column, Table, digits

GOOD: Final = 0.75  # IoU
ALL: Final = "all"
FLAGS: Final = (
    Column("method"),
    Column("good areas", digits(0)),
    Column("good to review", digits(0)),
    Column("share of good", digits(3)),
    Column("bad areas", digits(0)),
    Column("bad to review", digits(0)),
    Column("share of bad", digits(3)),
)
REASONS: Final = (
    Column("reason"),
    Column("areas", digits(0)),
    Column("to review", digits(0)),
    Column("bad", digits(0)),
    Column("share bad", digits(3)),
)

Flags = NDArray[np.bool_]


def reliability_tables(trials: Sequence[Trial], truth: Truth) -> list[Table]:
    """Good and bad areas that are to be reviewed, and how right each reason is.

    Raises:
        SettingsError: no film is labelled, or areas have no two points to compare.
    """
    judged = [score.only(~score.missed) for score in scores(trials, truth)]
    bad = np.concatenate([score.iou < GOOD for score in judged])
    review = np.concatenate([score.review for score in judged])
    rows = [(score.method, *_counts(score.iou < GOOD, score.review)) for score in judged]
    if len(rows) > 1:
        rows.append((ALL, *_counts(bad, review)))
    caption = (
        f"Whether bad areas (IoU below {GOOD}) are to be reviewed, and good ones are not. Knees "
        "that were missed have no area."
    )
    return [
        Table("reliability", caption, FLAGS, tuple(rows)),
        Table(
            "reasons",
            "How often a reason was given, by all methods together, and how often the area was "
            f"bad (IoU below {GOOD}). One that does not lead to a review is a note.",
            REASONS,
            tuple(_by_reason(judged, bad, review)),
        ),
    ]


def _counts(bad: Flags, review: Flags) -> list[Cell]:
    """Good areas, those of them to review, their share; likewise bad ones."""
    return [
        cell
        for part in (~bad, bad)
        for cell in (int(part.sum()), int((part & review).sum()), _share(review[part]))
    ]


def _by_reason(judged: Iterable[Score], bad: Flags, review: Flags) -> list[tuple[Cell, ...]]:
    """A row a reason, the most frequent first."""
    given: dict[str, list[int]] = {}
    for number, reasons in enumerate(text for score in judged for text in score.reason.tolist()):
        for reason in filter(None, (part.strip() for part in reasons.split(";"))):
            given.setdefault(reason, []).append(number)
    ranked = sorted(given.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        (reason, len(at), int(review[at].sum()), int(bad[at].sum()), _share(bad[at]))
        for reason, at in ranked
    ]


def _share(flags: Flags) -> float | None:
    return float(flags.mean()) if len(flags) else None
