"""ReviewSession: the knees of a run and the decisions about them, for the review page."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np

from kneematch.errors import SettingsError
from kneematch.films.discovery import common_folder
from kneematch.films.radiograph import Radiograph
from kneematch.films.run_folder import find_root
from kneematch.knee.detection import Detection
from kneematch.paper.split import SIDES
from kneematch.run.correction import (
    added_knee,
    area_of,
    is_added,
    is_current,
    move_detection,
    needs_knee,
    outdated_warning,
    reviewed,
)
from kneematch.run.decisions import (
    ACCEPTED,
    CORRECTED,
    FILE_NAME,
    Area,
    Decision,
    KneeKey,
    ReviewLog,
)
from kneematch.web.bone_outlines import Borders, Outliner, draw_borders, load_outliner
from kneematch.web.detections_table import (
    STATES,
    RowQuery,
    States,
    read_detections_table,
    read_films_without_knee,
)
from kneematch.web.films import make_thumbnail, read_film, thumbnail_key
from kneematch.web.loss_meter import load_run_template, loss_at

THUMBNAILS: Final = "review-cache"
NEW_WIDTH: Final = 0.25  # of the film's width: an added knee, where nothing tells its size
OTHER_SIDE: Final = {"R": "L", "L": "R"}

Side = Literal["left", "right"]

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """Body of a request: what the user decides about a row."""

    row: int
    state: Literal["accepted", "rejected", "corrected"]
    side: Side | None = None  # half of a knee to add to the row's film
    area: Area | None = None  # of a correction
    laterality: Literal["R", "L", ""] | None = None
    landmarks: dict[str, tuple[float, float]] | None = None
    outlines: Borders | None = None  # None leaves them to the run's outline network


class ReviewSession:
    """The knees of a run and the decisions about them.

    Rows are numbered as in the table of detections. Films without a knee, whose side is "", and
    knees that the reviewer added follow.
    """

    def __init__(self, out: Path, root: Path | None = None) -> None:
        """Open the folder `out` of a run.

        Films with relative paths lie in `root`, or else where `find_root` finds them; so do the
        run's template and networks.

        Raises:
            SettingsError: The folder cannot be reviewed.
        """
        if not out.is_dir():
            raise SettingsError(f"{out}: no such folder; expected that of a run; check the path")
        self.out = out
        self.table = read_detections_table(out)
        self._outlined: tuple[object, Detection] | None = None  # the last knee, and what it was
        self.thumbnails = path_inside(out, THUMBNAILS)
        self.log = ReviewLog(path_inside(out, FILE_NAME))
        # Film and side of each row, and the rows of these knees.
        text = self.table.text
        self.knees: list[KneeKey] = list(zip(text["film"], text["side"], strict=True))
        self._rows = {knee: row for row, knee in enumerate(self.knees)}
        for film in read_films_without_knee(out):
            self._row_of((film, ""))
        self.films = list(dict.fromkeys(film for film, _ in self.knees))
        self.folder = common_folder(self.films)  # left out on cards
        self.root, self.films_found = find_root(out, self.films, root)
        self.template, self.no_loss_reason = load_run_template(out, self.root)
        self.outliner = load_outliner(out, self.root)  # None in a run without measures
        self.states: States = np.zeros(len(self.table), np.int8)
        for decision in list(self.log.decisions.values()):
            if decision.knee in self._rows or is_added(decision):
                self._update(self._row_of(decision.knee))
        self.warning = self._warn()
        self.table.select(RowQuery(), self.states)  # fills the table's caches

    def _warn(self) -> str:
        """Return what the user should know about review.csv; log what the log has not."""
        outdated = 0
        for decision in self.log.decisions.values():
            row = self._rows.get(decision.knee, len(self.table))
            found = row < len(self.table)
            outdated += not self.states[row] if found else needs_knee(decision)
        warning = outdated_warning(self.out / FILE_NAME, outdated)
        if warning:
            logger.warning("%s", warning)
        return " ".join(filter(None, (self.log.warning, warning)))

    def check_row(self, row: int) -> int:
        """Return a row's number; raise SettingsError if there is no such row."""
        if not 0 <= row < len(self.knees):
            raise SettingsError(
                f"row {row}; expected one of {len(self.knees)}; load the page again"
            )
        return row

    def film(self, row: int) -> Radiograph:
        """Return the film of a row."""
        return read_film(self.root / self.knees[row][0])

    def state(self, row: int) -> str:
        """Return the decision about a row, or "undecided"."""
        if row < len(self.table):
            return STATES[self.states[row]]
        decision = self.log.decisions.get(self.knees[row])
        return "undecided" if decision is None else decision.state

    def found(self, row: int) -> Detection:
        """Return the knee of a row as it was found, or where it was added."""
        if row < len(self.table):
            return self.table.detection(row)
        decision = self.log.decisions.get(self.knees[row])
        if decision is None:
            raise SettingsError(f"row {row}: it has no knee; expected one; load the page again")
        return added_knee(decision, None)

    def knee(self, row: int) -> Detection:
        """Return the knee of a row as decided; it keeps its reasons for review."""
        found = self.found(row)
        if self.state(row) != CORRECTED or row >= len(self.table):
            return found
        return reviewed(found, self.log.decisions[self.knees[row]])

    def outlined(self, row: int) -> Detection:
        """Return the knee of a row as decided, with outlines of the run's outline network.

        Raises:
            SettingsError: The run has no outlines, or another network lies in the place of its own.
        """
        outliner = self.check_outliner()
        key = row, self.log.decisions.get(self.knees[row])
        last = self._outlined
        if last is None or last[0] != key:
            placed = self.state(row) == CORRECTED
            last = key, outliner.outline(self.knee(row), self.film(row), placed=placed)
            self._outlined = last  # another thread may replace it at once
        return last[1]

    def check_outliner(self) -> Outliner:
        """Return how the run outlined its knees; raise SettingsError if it did not."""
        if self.outliner is None:
            raise SettingsError(
                f"{self.out}: no outlines; expected a run made with --measure; detect again with it"
            )
        return self.outliner

    def redrawn(self, row: int, borders: Borders) -> Detection:
        """Return the knee of a row with borders that the reviewer drew, and their measures."""
        return draw_borders(self.outlined(row), borders)

    def same_film(self, row: int) -> list[int]:
        """Return the rows of knees on the film of a row that were not rejected."""
        film = self.knees[row][0]
        rows = [self._rows[film, side] for side in SIDES if (film, side) in self._rows]
        return [other for other in rows if self._has_knee(other)]

    def order(self, query: RowQuery) -> list[int]:
        """Return the rows that match a query, sorted; knees that were added come first."""
        if query.shown == "no_knee":
            films = (row for row, (_, side) in self._more_rows() if not side)
            return [row for row in films if _named(self.knees[row][0], query)]
        rows: list[int] = self.table.select(query, self.states).tolist()
        limits = query.reason, query.low, query.high
        if query.shown not in ("all", "decided", CORRECTED) or any(x is not None for x in limits):
            return rows
        added = [
            row
            for row, (film, side) in self._more_rows()
            if query.side in (None, side) and _named(film, query) and self._has_knee(row)
        ]
        return added + rows

    def counts(self) -> dict[str, int]:
        """Return the number of knees in each state, and of all knees."""
        counts = np.bincount(self.states, minlength=len(STATES)).tolist()
        added = sum(self._has_knee(row) for row, _ in self._more_rows())
        totals = dict(zip(STATES, counts, strict=True))
        totals[CORRECTED] += added
        return totals | {"rows": len(self.table) + added}

    def last_row(self) -> int | None:
        """Return the row of the last decision."""
        return None if self.log.last is None else self._rows.get(self.log.last.knee)

    def thumbnail(self, row: int) -> Path:
        """Return the file of a row's thumbnail; make those of its film if necessary."""
        path = self._thumbnail_path(row)
        if not path.exists():
            film = self.film(row)
            for other in {row, *self.same_film(row)}:
                knee = self.knee(other) if self.knees[other][1] else None
                make_thumbnail(self._thumbnail_path(other), film, knee)
        return path

    def loss(self, row: int, area: Area, side: str | None = None) -> float | None:
        """Return the loss of the run's template at a place, or None if it is unknown."""
        start = self._start(row, side)
        if side is None and area == area_of(start):
            return finite(start.loss)
        if self.template is None:
            return None
        return loss_at(move_detection(start, area), self.film(row), self.template)

    def free_sides(self, row: int) -> list[str]:
        """Return the halves of a row's film to which a knee can be added."""
        film = self.knees[row][0]
        taken = {self.knees[other][1] for other in self.same_film(row)}
        known = {side for side in SIDES if self._rows.get((film, side), math.inf) < len(self.table)}
        return [side for side in SIDES if side not in taken | known]

    def draft(self, row: int, side: str) -> Detection:
        """Return where a knee that is added starts: mirrored from the other one if there is one."""
        film = self.film(row)
        height, width = film.size
        others = [self.knee(other) for other in self.same_film(row)]
        if others:
            knee = others[0]
            mirrored = Area(
                width - knee.centre[0], knee.centre[1], knee.width_px, -knee.rotation_deg
            )
            laterality = OTHER_SIDE.get(knee.laterality, "")
            return move_detection(replace(knee, side=side, laterality=laterality), mirrored)
        if not len(self.table):
            raise SettingsError(
                f"{self.out}: no knee was found in this run; expected one with the template's "
                "shape; detect with another method or template"
            )
        reference, wide = self.table.detection(0), NEW_WIDTH * width
        if reference.width_mm is not None and film.mm_per_px is not None:
            wide = reference.width_mm / film.mm_per_px
        area = Area((0.25 if side == "left" else 0.75) * width, height / 2, wide, 0.0)
        return move_detection(replace(reference, side=side, laterality=""), area)

    def decide(self, request: DecisionRequest) -> int:
        """Record a decision; return the row that it is about."""
        row = self.check_row(request.row)
        film, side = self.knees[row]
        if (request.state == CORRECTED) != (request.area is not None):
            raise SettingsError(f"{request.state}; expected an area with a correction only")
        if request.side is not None and request.side not in self.free_sides(row):
            raise SettingsError(f"{request.side} half; expected one without a knee; correct that")
        if request.outlines and (request.state != CORRECTED or request.side is not None):
            raise SettingsError("outlines; expected them with a correction of a saved knee only")
        if request.state == ACCEPTED and row >= len(self.table):
            return row  # the reviewer drew it
        if request.area is None:
            found = self.found(row)
            decision = Decision(film, side, request.state, area_of(found), finite(found.loss))
        else:
            start, height = self._start(row, request.side), None
            if request.side is not None or row >= len(self.table):  # it is or was added
                height = request.area.width_px / start.width_px * start.height_px
            loss = self.loss(row, request.area, request.side)
            borders = request.outlines
            drawn = None if borders is None else self.redrawn(row, borders).outlines
            what = loss, request.laterality, request.landmarks, height, drawn
            decision = Decision(film, request.side or side, CORRECTED, request.area, *what)
        self.log.add(decision)
        return self._update(self._row_of(decision.knee))

    def undo(self) -> tuple[Decision | None, int | None]:
        """Revoke the last decision; return it and its row, None where there is none."""
        undone = self.log.undo()
        row = None if undone is None else self._rows.get(undone.knee)
        return undone, None if row is None else self._update(row)

    def _row_of(self, knee: KneeKey) -> int:
        """Return the row of a knee, a new one if there is none."""
        if knee not in self._rows:
            self._rows[knee] = len(self.knees)
            self.knees.append(knee)
        return self._rows[knee]

    def _update(self, row: int) -> int:
        """Set the state of a row of the table to what its decision says."""
        if row < len(self.table):
            decision = self.log.decisions.get(self.knees[row])
            counts = decision is not None and is_current(decision, self.table.detection(row))
            self.states[row] = STATES.index(decision.state) if decision and counts else 0
        return row

    def _start(self, row: int, side: str | None) -> Detection:
        """Return the knee of a row before its correction, or the draft of one to add to a half."""
        return self.found(row) if side is None else self.draft(row, side)

    def _more_rows(self) -> Iterable[tuple[int, KneeKey]]:
        """Return the rows behind the table."""
        count = len(self.table)
        return enumerate(self.knees[count:], start=count)

    def _has_knee(self, row: int) -> bool:
        """Return whether a row has a knee: found, or added and neither undone nor rejected."""
        return row < len(self.table) or self.state(row) == CORRECTED

    def _thumbnail_path(self, row: int) -> Path:
        film, side = self.knees[row]
        return self.thumbnails / f"{thumbnail_key(film, self.knee(row) if side else None)}.jpg"


def path_inside(folder: Path, name: str) -> Path:
    """Return a path in a folder.

    Raises:
        SettingsError: It is a link that leads out of the folder.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SettingsError(
            f"{path}: a link that leads out of {folder}; expected a file in it; remove the link"
        )
    return path


def _named(film: str, query: RowQuery) -> bool:
    return (query.film or "").casefold() in film.casefold()


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it: None for NaN."""
    return float(value) if math.isfinite(value) else None
