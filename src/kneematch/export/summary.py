"""What a report tells of a run, gathered in one pass over its rows."""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from kneematch.detection.detection import Detection

MOST_FILMS: Final = 48
MOST_FAILURES: Final = 200
BINS: Final = 200  # of a loss, which lies in [0, 1]


@dataclass(frozen=True, slots=True, eq=False)
class Worst:
    """A film that is worth a look."""

    film: str
    detections: tuple[Detection, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Of a run of any size, what fits on a page."""

    good: tuple[int, ...]  # knees by loss, BINS of them
    flagged: tuple[int, ...]  # likewise, those to review
    reasons: tuple[tuple[str, int], ...]  # for review, the most frequent first
    worst: tuple[Worst, ...]  # the worst first
    failures: tuple[tuple[str, str], ...]  # the first ones
    failed: int  # all of them


def survey(
    rows: Iterable[tuple[str, Detection]],
    failures: Iterable[tuple[str, str]],
    *,
    most_films: int = MOST_FILMS,
    most_failures: int = MOST_FAILURES,
) -> Survey:
    """Look at every row once; of them only the worst films are kept.

    Args:
        rows: film and detection, the knees of a film one after the other.
        failures: film and reason.
        most_films: how many of the worst films to keep.
        most_failures: how many failures to keep.
    """
    bins = [0] * BINS, [0] * BINS
    reasons: Counter[str] = Counter()
    worst: list[tuple[tuple[bool, float, int], Worst]] = []
    for number, (film, group) in enumerate(groupby(rows, key=itemgetter(0))):
        knees = tuple(found for _, found in group)
        for found in knees:
            bins[found.needs_review][min(int(max(found.loss, 0) * BINS), BINS - 1)] += 1
            reasons.update(found.review_reasons)
        # What is to review comes first; of films that are equally bad, the first ones.
        rank = (
            any(found.needs_review for found in knees),
            max(found.loss for found in knees),
            -number,
        )
        entry = rank, Worst(film, knees)
        if len(worst) < most_films:
            heapq.heappush(worst, entry)
        elif worst and rank > worst[0][0]:
            heapq.heapreplace(worst, entry)
    listed, failed = [], 0
    for failure in failures:
        failed += 1
        if failed <= most_failures:
            listed.append(failure)
    ranked = sorted(worst, key=itemgetter(0), reverse=True)
    good, flagged = map(tuple, bins)
    return Survey(
        good=good,
        flagged=flagged,
        reasons=tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        worst=tuple(film for _, film in ranked),
        failures=tuple(listed),
        failed=failed,
    )
