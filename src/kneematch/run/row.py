"""A row of a run: what was found on one film, and what a reviewer made of it."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from kneematch.errors import FilmError
from kneematch.films.files import FileVersion
from kneematch.films.read import read_isolated
from kneematch.knee.detection import Detection
from kneematch.run.correction import is_added, review_detections
from kneematch.run.decisions import FILE_NAME, REJECTED, Decision, read_decisions

OK, NO_KNEE, FAILED = "ok", "no_knee", "failed"  # status of a film


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The detections on one film of a run, or why there are none."""

    index: int  # in the list of films
    film: str
    size: tuple[int, int] | None = None  # (height, width) in pixels
    detections: tuple[Detection, ...] = ()
    failure: str | None = None
    no_knee: bool = False  # the film could be read, and `failure` says that it shows no knee
    version: FileVersion | None = None  # of the film's file; None where it was missing

    @property
    def status(self) -> str:
        """OK, NO_KNEE or FAILED."""
        return OK if self.failure is None else NO_KNEE if self.no_knee else FAILED

    @property
    def knees(self) -> tuple[Detection, ...]:
        """The detections that a reviewer did not reject."""
        return tuple(knee for knee in self.detections if knee.decision != REJECTED)

    def to_dict(self) -> dict[str, object]:
        """Return what JSON can hold, every number exact."""
        plain: dict[str, object] = {"index": self.index, "film": self.film, "status": self.status}
        if self.version is not None:
            plain["version"] = astuple(self.version)
        if self.failure is not None:
            plain["failure"] = self.failure
        else:
            plain["size"] = self.size
            plain["knees"] = [found.to_dict() for found in self.detections]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Row":
        """Return the row that `to_dict` wrote."""
        stored = plain.get("version")
        version = None if stored is None else FileVersion(*stored)
        row = cls(int(plain["index"]), plain["film"], version=version)
        if "failure" in plain:
            no_knee = plain.get("status") == NO_KNEE
            return replace(row, failure=str(plain["failure"]), no_knee=no_knee)
        height, width = plain["size"]
        knees = tuple(Detection.from_dict(found) for found in plain["knees"])
        return replace(row, size=(height, width), detections=knees)


def row_reviser(out: Path, root: Path = Path()) -> Callable[[Row], Row] | None:
    """Return a function that applies the decisions in review.csv to a row; None without any.

    `root` is the folder of films with relative paths.

    Raises:
        SettingsError: review.csv cannot be read.
    """
    by_film: defaultdict[str, dict[str, Decision]] = defaultdict(dict)
    for (film, side), decision in read_decisions(out / FILE_NAME).items():
        by_film[film][side] = decision

    if not by_film:
        return None

    @cache
    def size_and_spacing(film: str) -> tuple[tuple[int, int] | None, float | None]:
        try:
            radiograph = read_isolated(root / film)
        except FilmError:
            return None, None  # the knee is kept all the same
        return radiograph.size, radiograph.mm_per_px

    def revise(row: Row) -> Row:
        decisions = by_film.get(row.film)
        if not decisions:
            return row
        if row.detections:
            mm_per_px = row.detections[0].mm_per_px
            return replace(row, detections=review_detections(row.detections, decisions, mm_per_px))
        if any(map(is_added, decisions.values())):
            size, mm_per_px = size_and_spacing(row.film)
            knees = review_detections((), decisions, mm_per_px)
            return Row(row.index, row.film, size, knees, version=row.version)
        return row

    return revise
