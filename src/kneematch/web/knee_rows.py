"""The rows of the review page: the knees of a run and its films without one, from the database."""

# ruff: noqa: S608 - statements are built of constants; values are bound

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from kneematch.errors import SettingsError
from kneematch.knee.decision import Decision, add_knee, decide
from kneematch.knee.detection import CORRECTED, DECISIONS, Detection
from kneematch.run.database import Run
from kneematch.run.film_record import NO_KNEE

UNDECIDED, TO_REVIEW = "undecided", "to_review"
IS_KNEE: Final = f"(needs_review IS NOT NULL OR state = '{CORRECTED}')"  # found, or added
NAMED: Final = "has_name(CAST(path AS BLOB), ?)"  # names of files need not be UTF-8
HAS_NAME: Final = f"film IN (SELECT id FROM films WHERE {NAMED})"
HAS_REASON: Final = (
    "needs_review AND EXISTS (SELECT 1 FROM json_each(reasons) WHERE json_each.value = ?)"
)
HAS_LATERALITY: Final = (  # as a reviewer said, or else as found
    "COALESCE((SELECT json_extract(content, '$.laterality') FROM decisions "
    f"WHERE id = knees.decision AND state = '{CORRECTED}'), "
    "json_extract(found, '$.laterality')) = ?"
)
LACKS_MEASURES: Final = (  # a measure is a list that begins with its value
    "json_extract(found, '$.measures') IS NULL OR EXISTS (SELECT 1 FROM "
    "json_each(found, '$.measures.values') WHERE json_extract(json_each.value, '$[0]') IS NULL)"
)
NO_KNEES: Final = (  # a film has none, neither found nor added
    f"status = '{NO_KNEE}' AND NOT EXISTS "
    f"(SELECT 1 FROM knees WHERE film = films.id AND state = '{CORRECTED}')"
)
ORDERS: Final = {  # the database has an index for each
    "doubtful": "-needs_review, -loss, film, side",
    "film": "film, side",
}
KNEES: Final = """
SELECT k.id, f.id, f.path, f.height, f.width, f.mm_per_px, k.side, k.found, k.state, d.content
FROM knees k JOIN films f ON f.id = k.film LEFT JOIN decisions d ON d.id = k.decision WHERE {}
"""
FILMS: Final = f"""
SELECT -id, id, path, height, width, mm_per_px, '', NULL, '', NULL FROM films
WHERE status = '{NO_KNEE}' AND -id IN (SELECT value FROM json_each(?))
"""


@dataclass(frozen=True, slots=True)
class RowQuery:
    """Which rows to show, in which order: the parameters of a request."""

    sort: Literal["doubtful", "film"] = "doubtful"
    shown: Literal[
        "all",
        "to_review",
        "unmeasured",
        "undecided",
        "decided",
        "accepted",
        "rejected",
        "corrected",
        "no_knee",
    ] = "all"
    side: Literal["R", "L", "unknown"] | None = None  # the patient's side
    reason: Annotated[str, Field(max_length=400)] | None = None
    film: Annotated[str, Field(max_length=400)] | None = None  # part of its name

    def conditions(self) -> dict[str, object]:
        """Return the conditions on knees, each with its value."""
        states = dict.fromkeys(("all", "decided", "unmeasured")) | {UNDECIDED: ""}
        given = {
            "state = ?": "" if self.shown == TO_REVIEW else states.get(self.shown, self.shown),
            "state != ?": "" if self.shown == "decided" else None,
            HAS_LATERALITY: "" if self.side == "unknown" else self.side,
            "-needs_review = ?": -1 if self.shown == TO_REVIEW else None,
            f"({LACKS_MEASURES}) = ?": 1 if self.shown == "unmeasured" else None,
            HAS_REASON: self.reason,
            HAS_NAME: (self.film or "").casefold() or None,
        }
        return {each: value for each, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A knee of a run, or a film without one."""

    key: int  # id of the knee; of a film without one, minus the id of the film
    film: int
    path: str
    size: tuple[int, int]  # (height, width) of the film in pixels
    mm_per_px: float | None
    side: str  # "" for a film without a knee
    found: Detection | None  # None for a knee that the reviewer added
    applied: str  # the newest decision, if it applies to the knee
    decision: Decision | None  # the newest one

    @property
    def state(self) -> str:
        """The decision about the knee, "undecided", or "no_knee" for a film without one."""
        if not self.side:
            return NO_KNEE
        if self.found is None:  # it may have been added and then rejected
            return UNDECIDED if self.decision is None else self.decision.state
        return self.applied or UNDECIDED

    @property
    def has_area(self) -> bool:
        """Whether the row shows an area: that of a knee, or of one that was added and rejected."""
        return self.found is not None or self.decision is not None

    @property
    def start(self) -> Detection:
        """The knee as it was found, or where it was added; SettingsError if there is none."""
        if self.found is not None:
            return self.found
        if self.decision is None:
            raise SettingsError("This film has no knee. Add one first.")
        return add_knee(self.decision, self.side, self.mm_per_px)

    @property
    def knee(self) -> Detection:
        """The knee as decided, with its reasons for review; SettingsError if there is none."""
        if self.found is None or self.decision is None or self.state != CORRECTED:
            return self.start
        reasons, needed = self.found.reasons, self.found.needs_review
        return replace(decide(self.found, self.decision), needs_review=needed, reasons=reasons)


def add_name_filter(run: Run) -> None:
    """Let the queries of a run look for part of a film's name; called once for a connection."""
    run.sql.create_function(
        "has_name", 2, lambda path, part: part in os.fsdecode(path).casefold(), deterministic=True
    )


def row_order(run: Run, query: RowQuery, limit: int = -1) -> list[int]:
    """Return the keys of the rows that match a query, the worst first or in the films' order."""
    if query.shown == NO_KNEE:
        values: list[object] = [(query.film or "").casefold()]
        statement = f"SELECT -id FROM films WHERE {NO_KNEES} AND {NAMED} ORDER BY id"
    else:
        conditions = query.conditions()
        where, values = " AND ".join([IS_KNEE, *conditions]), list(conditions.values())
        statement = f"SELECT id FROM knees WHERE {where} ORDER BY {ORDERS[query.sort]}"
    return [key for (key,) in run.query(f"{statement} LIMIT ?", *values, limit)]


def read_rows(run: Run, keys: Sequence[int]) -> dict[int, Row]:
    """Return rows by their keys; those that are not there are left out."""
    wanted = json.dumps(keys)
    by_key = KNEES.format("k.id IN (SELECT value FROM json_each(?))")
    found = (*run.query(by_key, wanted), *run.query(FILMS, wanted))
    return {row.key: row for row in map(_row, found)}


def rows_of_film(run: Run, film: int) -> list[Row]:
    """Return the rows of the knees of a film, the left one first.

    A knee was found, or added and neither undone nor rejected.
    """
    rows = map(_row, run.query(f"{KNEES.format('k.film = ?')} ORDER BY k.side", film))
    return [row for row in rows if row.found is not None or row.state == CORRECTED]


def count_states(run: Run) -> dict[str, int]:
    """Return the number of knees in each state, of all as "rows", and of those left to review."""
    states = dict(run.query("SELECT state, COUNT(*) FROM knees WHERE state != '' GROUP BY state"))
    counts = {state: states.get(state, 0) for state in DECISIONS}
    ((rows,),) = run.query(f"SELECT COUNT(*) FROM knees WHERE {IS_KNEE}")
    ((left,),) = run.query("SELECT COUNT(*) FROM knees WHERE -needs_review = -1 AND state = ''")
    undecided = rows - sum(counts.values())
    return {UNDECIDED: undecided, **counts, "rows": rows, TO_REVIEW: left}


def count_reasons(run: Run) -> list[tuple[str, int]]:
    """Return all reasons to review knees and their counts, the most frequent first."""
    return run.query(
        "SELECT value, COUNT(*) FROM knees, json_each(reasons) WHERE -needs_review = -1 "
        "GROUP BY value ORDER BY 2 DESC, MIN(knees.id)"
    )


def _row(cells: tuple[Any, ...]) -> Row:
    key, film, path, height, width, mm_per_px, side, found, state, decision = cells
    knee = found and Detection.from_json(found)
    newest = decision and Decision.from_json(decision)
    return Row(key, film, path, (height, width), mm_per_px, side, knee, state, newest)
