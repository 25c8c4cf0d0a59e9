"""A run that is being reviewed: its rows, its films, its decisions."""

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kneematch.detection.detection import Detection
from kneematch.detection.prepare import Prepared
from kneematch.errors import SettingsError
from kneematch.io.radiograph import Radiograph
from kneematch.web import thumbnails
from kneematch.web.correction import Matcher, matcher_of, moved
from kneematch.web.detections_table import STATES, Query, Rows, load_rows
from kneematch.web.films import read_film, remembered
from kneematch.web.paths import within
from kneematch.web.review_log import CORRECTED, NAME, Area, Decision, Decisions, area_of
from kneematch.web.reviewed_table import NAME as REVIEWED
from kneematch.web.reviewed_table import write_reviewed

FILMS_KEPT: Final = 3  # in memory, each up to 50 MB
SLOW_S: Final = 0.1  # to read a film, after which it is worth to draw more than was asked for


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the user decides about a row, as the page sends it."""

    row: int
    what: str
    area: Area | None = None  # of a correction


class RunFolder:
    """Everything that the review page reads and writes."""

    def __init__(self, out: Path, root: Path) -> None:
        """Open the folder of a run; relative names of films begin at `root`."""
        self.out, self.root = out, root
        self.rows: Rows = load_rows(out)
        self.matcher: Matcher | None
        self.matcher, self.why_no_loss = matcher_of(out)
        self.cache = within(out, thumbnails.FOLDER)
        self.decisions = Decisions(within(out, NAME), self.rows)
        self.rows.ordered(Query(), self.decisions.states)  # now, so that no page waits for it
        self._films = list(self.rows.by_film)
        self._film_numbers = {name: number for number, name in enumerate(self._films)}
        self._read = remembered(self._read_film, FILMS_KEPT)
        self._prepared = remembered(self._prepare, FILMS_KEPT)

    def check(self, row: int) -> None:
        """Refuse a row that is not there."""
        if not 0 <= row < len(self.rows):
            raise SettingsError(f"row {row}; expected one of {len(self.rows)}; load the page again")

    def film(self, row: int) -> Radiograph:
        """The film of a row."""
        return self._read(self._film_numbers[self.rows.text(row, "film")])

    def found(self, row: int) -> Detection:
        """The knee of a row as it is now, corrected or not."""
        decision = self.decisions.of(row)
        found = self.rows.detection(row)
        if decision is None or decision.what != CORRECTED:
            return found
        loss = math.nan if decision.loss is None else decision.loss
        return replace(moved(found, decision.area), loss=loss)

    def told(self, row: int) -> dict[str, Any]:
        """What a card of the gallery shows."""
        text, found = self.rows.text, self.found(row)
        return {
            "row": row,
            "film": text(row, "film").encode("utf-8", "replace").decode(),
            "side": text(row, "side"),
            "laterality": text(row, "laterality"),
            "loss": None if math.isnan(found.loss) else found.loss,
            "found_loss": text(row, "loss"),
            "reasons": self.rows.reasons[row],
            "state": STATES[self.decisions.states[row]],
            "key": thumbnails.key_of(text(row, "film"), found),
        }

    def thumbnail(self, row: int) -> Path:
        """The small picture of a row, made if it is not there.

        A film that was slow to read is used for all of its knees at once.
        """
        path = thumbnails.kept(self.cache, self._key(row))
        if path.exists():
            return path
        start = time.monotonic()
        film = self.film(row)
        slow = time.monotonic() - start > SLOW_S
        for other in self.rows.by_film[self.rows.text(row, "film")] if slow else [row]:
            key = self._key(other)
            if not thumbnails.kept(self.cache, key).exists():
                thumbnails.make(self.cache, film, key, self.found(other))
        return path

    def loss(self, row: int, area: Area) -> float | None:
        """Of the row's template elsewhere; None where it is not known."""
        if self.matcher is None:
            return None
        film = self._prepared(self._film_numbers[self.rows.text(row, "film")])
        return self.matcher.loss(film, moved(self.rows.detection(row), area))

    def decide(self, verdict: Verdict) -> None:
        """Write a decision down."""
        self.check(verdict.row)
        corrects = verdict.what == CORRECTED
        if verdict.what not in STATES[1:] or corrects != (verdict.area is not None):
            raise SettingsError(
                f"decision {verdict.what!r}; expected accepted, rejected, or corrected with an area"
            )
        area = verdict.area or area_of(self.rows, verdict.row)
        found = self.rows.number(verdict.row, "loss")
        loss = self.loss(verdict.row, area) if corrects else found
        self.decisions.add(Decision(verdict.row, verdict.what, area, loss))

    def export(self) -> tuple[Path, int]:
        """Write the reviewed table; return where it is, and how many rows it has."""
        path = within(self.out, REVIEWED)
        return path, write_reviewed(path, self.rows, self.decisions)

    def _key(self, row: int) -> str:
        return thumbnails.key_of(self.rows.text(row, "film"), self.found(row))

    def _read_film(self, number: int) -> Radiograph:
        return read_film(self.root / self._films[number])

    def _prepare(self, number: int) -> Prepared:
        if self.matcher is None:
            raise SettingsError("the run's template is not known; expected run.json to name it")
        return self.matcher.prepare(self._read(number))
