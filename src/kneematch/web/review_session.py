"""ReviewSession: the knees of a run and the decisions about them, for the review page."""

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from kneematch.errors import SettingsError
from kneematch.films.discovery import common_folder
from kneematch.films.radiograph import Radiograph
from kneematch.films.run_folder import find_root
from kneematch.knee.decision import Area, Decision, move
from kneematch.knee.detection import ACCEPTED, CORRECTED, Detection
from kneematch.knee.measure import JointMeasures
from kneematch.paper.split import SIDES
from kneematch.run.apply import ended_run
from kneematch.run.database import Run
from kneematch.web.bone_outlines import Borders, Outliner, draw_borders, load_outliner
from kneematch.web.films import read_film
from kneematch.web.knee_rows import Row, RowQuery, add_functions, read_rows, row_order, rows_of_film
from kneematch.web.template_loss import load_run_template, loss_at

NEW_WIDTH: Final = 0.25  # width of an added knee over the film's, where nothing tells its size
OTHER_SIDE: Final = {"R": "L", "L": "R"}

Side = Literal["left", "right"]

logger = logging.getLogger("kneematch")


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """Body of a request: what the user decides about a row."""

    row: int
    state: Literal["accepted", "rejected", "corrected"]
    side: Side | None = None  # half of a knee to add to the row's film
    area: Area | None = None  # new place of the knee, in a correction
    laterality: Literal["R", "L", ""] | None = None
    landmarks: dict[str, tuple[float, float]] | None = None
    outlines: Borders | None = None  # None leaves them to the run's outline network


class ReviewSession:
    """The knees of a run and the decisions about them; rows are named by their keys."""

    def __init__(self, out: Path, root: Path | None = None) -> None:
        """Open the folder `out` of a run.

        Films with relative paths lie in `root`, or else where `find_root` finds them; so do the
        run's template and networks.

        Raises:
            SettingsError: the folder cannot be reviewed.
        """
        self.out = out
        self._lock = threading.Lock()  # requests are answered by several threads
        self._run = Run(out, exclusive=False)
        try:
            ended_run(self._run)
            add_functions(self._run)
            self.films = [path for _, path in self._run.paths()]
            self.folder = common_folder(self.films)  # left out on cards
            named = self._run.setting("out")
            self.root, self.films_found = find_root(out, named, self.films, root)
            self.template, self.no_loss_reason = load_run_template(self._run, self.root)
            self.outliner = load_outliner(self._run, self.root)  # None in a run without measures
            self.warning = self._warn()
        except BaseException:
            self.close()
            raise
        self._measured: tuple[object, JointMeasures] | None = None  # the last knee that was

    def close(self) -> None:
        """Close the database of the run."""
        self._run.close()

    @contextmanager
    def run(self) -> Iterator[Run]:
        """Yield the run to one thread at a time."""
        with self._lock:
            yield self._run

    def _warn(self) -> str:
        """Return what the user should know about earlier decisions, and log it."""
        outdated = self._run.count_outdated_decisions()
        if not outdated:
            return ""
        verb = "is" if outdated == 1 else "are"
        warning = (
            f"{outdated} of the decisions in {self._run.path} {verb} about areas that have moved "
            f"or are gone, and {verb} ignored. Review those knees again."
        )
        logger.warning("%s", warning)
        return warning

    def row(self, row: int) -> Row:
        """Return the row with a key; raise SettingsError if there is none."""
        return self.rows([row])[0]

    def rows(self, keys: Sequence[int]) -> list[Row]:
        """Return the rows with some keys; raise SettingsError if one is not there."""
        with self.run() as run:
            rows = read_rows(run, keys)
        shown = {key for key, row in rows.items() if row.has_area or not row.side}
        missing = [key for key in keys if key not in shown]
        if missing:
            raise SettingsError(f"The run has no knee {missing[0]}. Load the page again.")
        return [rows[key] for key in keys]

    def same_film(self, row: Row) -> list[Row]:
        """Return the rows of the knees on the film of a row."""
        with self.run() as run:
            return rows_of_film(run, row.film)

    def film(self, row: Row) -> Radiograph:
        """Return the film of a row."""
        return read_film(self.root / row.path)

    def outlined(self, row: Row) -> JointMeasures:
        """Return the outlines and measures of a knee as the run's outline network makes them.

        They were made in the run, unless the reviewer has moved the knee since.

        Raises:
            SettingsError: the run has no outlines, or another network lies in the place of its own.
        """
        outliner = self.check_outliner()
        if row.decision is not None:  # without outlines that the reviewer drew
            row = replace(row, decision=replace(row.decision, outlines=None))
        knee = row.knee
        if knee.measures is not None:
            return knee.measures
        last, key = self._measured, (row.key, row.decision)
        if last is None or last[0] != key:
            last = key, outliner.measures(knee, self.film(row))
            self._measured = last  # another thread may replace it at once
        return last[1]

    def check_outliner(self) -> Outliner:
        """Return how the run outlines knees; raise SettingsError if it does not."""
        if self.outliner is None:
            raise SettingsError(f"The run in {self.out} was made without --measure.")
        return self.outliner

    def redrawn(self, row: Row, borders: Borders) -> JointMeasures:
        """Return the outlines of a row with borders that the reviewer drew, and their measures."""
        return draw_borders(self.outlined(row), borders)

    def loss(self, row: Row, area: Area, side: str | None = None) -> float | None:
        """Return the loss of the run's template at a place, or None if it is unknown."""
        start = self._start(row, side)
        if side is None and area == Area.from_detection(start):
            return finite(start.loss)
        if self.template is None:
            return None
        return loss_at(move(start, area), self.film(row), self.template)

    def free_sides(self, row: Row) -> list[str]:
        """Return the halves of a row's film to which a knee can be added."""
        taken = {other.side for other in self.same_film(row)}
        return [side for side in SIDES if side not in taken]

    def draft(self, row: Row, side: str) -> Detection:
        """Return where a knee that is added starts: mirrored from the other one if there is one."""
        height, width = row.size
        if others := self.same_film(row):
            knee = others[0].knee
            x, y = knee.centre
            mirrored = Area(width - x, y, knee.width_px, -knee.rotation_deg)
            laterality = OTHER_SIDE.get(knee.laterality, "")
            return move(replace(knee, side=side, laterality=laterality), mirrored)
        with self.run() as run:
            first = row_order(run, RowQuery(sort="film"), limit=1)
        if not first:
            raise SettingsError(
                "No knee was found in this run whose shape an added knee could have. Detect with "
                "another method or template."
            )
        reference, wide = self.row(first[0]).knee, NEW_WIDTH * width
        if reference.width_mm is not None and row.mm_per_px is not None:
            wide = reference.width_mm / row.mm_per_px
        area = Area((0.25 if side == "left" else 0.75) * width, height / 2, wide, 0.0)
        return move(replace(reference, side=side, laterality=""), area)

    def decide(self, request: DecisionRequest) -> int:
        """Record a decision; return the key of the row that it is about."""
        row = self.row(request.row)
        if (request.state == CORRECTED) != (request.area is not None):
            raise SettingsError("A correction needs an area, and other decisions have none.")
        if request.side is not None and request.side not in self.free_sides(row):
            raise SettingsError(f"The {request.side} half has a knee already. Correct that one.")
        if request.outlines and (request.state != CORRECTED or request.side is not None):
            raise SettingsError("Outlines come with a correction of a saved knee only.")
        if request.state == ACCEPTED and row.found is None:
            return row.key  # the reviewer drew it
        if request.area is None:
            start = row.start
            decision = Decision(request.state, Area.from_detection(start), finite(start.loss))
        else:
            decision = self._correction(row, request, request.area)
        with self.run() as run:
            return run.decide(row.film, request.side or row.side, decision)

    def _correction(self, row: Row, request: DecisionRequest, area: Area) -> Decision:
        start, height = self._start(row, request.side), None
        if request.side is not None or row.found is None:  # it is or was added
            height = area.width_px / start.width_px * start.height_px
        borders = request.outlines
        return Decision(
            CORRECTED,
            area,
            self.loss(row, area, request.side),
            request.laterality,
            request.landmarks,
            height,
            None if borders is None else self.redrawn(row, borders).outlines,
        )

    def undo(self) -> Row | None:
        """Revoke the last decision; return its row, or None if there is nothing to revoke."""
        with self.run() as run:
            revoked = run.revoke()
            return None if revoked is None else read_rows(run, revoked[:1])[revoked[0]]

    def _start(self, row: Row, side: str | None) -> Detection:
        """Return the knee of a row before its correction, or the draft of one to add to a half."""
        return row.start if side is None else self.draft(row, side)


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it: None for NaN."""
    return float(value) if math.isfinite(value) else None
