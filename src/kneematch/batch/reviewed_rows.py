"""Rows of a run as a reviewer left them."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from kneematch.batch.row import Row
from kneematch.errors import FilmError
from kneematch.io.radiograph import Radiograph
from kneematch.io.read import read_isolated
from kneematch.review.correction import is_added, review_detections
from kneematch.review.log import FILE_NAME, Decision, read_decisions


def row_reviser(out: Path, root: Path = Path()) -> Callable[[Row], Row] | None:
    """Return a function that applies the decisions in review.csv to a row; None without any.

    Args:
        out: the folder of the run.
        root: folder of films with relative paths.

    Raises:
        SettingsError: review.csv cannot be read.
    """
    by_film: defaultdict[str, dict[str, Decision]] = defaultdict(dict)
    for (film, side), decision in read_decisions(out / FILE_NAME).items():
        by_film[film][side] = decision

    if not by_film:
        return None

    @cache
    def size_and_spacing(film: str) -> tuple[tuple[int, int], float | None] | None:
        try:
            radiograph: Radiograph = read_isolated(root / film)
        except FilmError:
            return None
        return radiograph.size, radiograph.mm_per_px

    def revise(row: Row) -> Row:
        decisions = by_film.get(row.film)
        if not decisions:
            return row
        if row.detections:
            mm_per_px = row.detections[0].mm_per_px
            return replace(row, detections=review_detections(row.detections, decisions, mm_per_px))
        if any(map(is_added, decisions.values())) and (facts := size_and_spacing(row.film)):
            size, mm_per_px = facts
            knees = review_detections((), decisions, mm_per_px)
            return Row(row.index, row.film, size, knees, version=row.version)
        return row

    return revise
