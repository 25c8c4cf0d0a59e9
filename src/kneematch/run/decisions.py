"""review.csv: the decisions of a review as a table, written and read."""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kneematch.errors import SettingsError
from kneematch.films.csv_text import read_csv, write_csv
from kneematch.knee.decision import LONGEST, Area, Decision
from kneematch.knee.detection import AREA_SIDES, CORRECTED, DEGREE, PIXEL
from kneematch.knee.measure import Outlines

REVIEW: Final = "review.csv"
UNDONE: Final = "undone"
UNKNOWN: Final = "unknown"  # in the file: the reviewer says that the patient's side is not known
AREA_COLUMNS: Final = tuple(each.name for each in fields(Area))
COLUMNS: Final = (
    *("time", "film", "image_side", "decision", *AREA_COLUMNS),
    *("loss", "laterality", "landmarks", "height_px", "outlines", *LONGEST),
)

Entry = tuple[str, str, str, Decision, bool]  # time, film, side, decision, whether it was revoked


def write_decisions(entries: Iterable[Entry], path: Path) -> None:
    """Write decisions in the order in which they were made; without any, remove the file."""
    entries = list(entries)
    if not entries:
        path.unlink(missing_ok=True)
        return
    with write_csv(path, COLUMNS) as add:
        for time, film, side, decision, revoked in entries:
            add([time, film, side, UNDONE if revoked else decision.state, *_cells(decision)])


def read_decisions(path: Path) -> Iterator[Entry]:
    """Yield the decisions of a review.csv, in the order in which they were made.

    Raises:
        SettingsError: the file cannot be read as decisions.
    """
    try:
        header, rows = read_csv(path)
    except (OSError, ValueError, csv.Error) as error:
        raise SettingsError(f"{path} cannot be read as a table of decisions.") from error
    if tuple(header) != COLUMNS:
        raise SettingsError(f"{path} does not have the columns {', '.join(COLUMNS)}.")
    for number, cells in enumerate(rows, start=2):
        try:
            yield _entry(cells)
        except (ValueError, TypeError, AttributeError, RecursionError, SettingsError) as error:
            raise SettingsError(
                f"{path}: row {number} is not a decision. Correct it, or remove the row."
            ) from error


def holding(entries: Iterable[Entry]) -> dict[tuple[str, str, str], Entry]:
    """Return the last decision that holds by film, side and reader, in the order made."""
    stacks: dict[tuple[str, str, str], list[tuple[int, Entry]]] = {}
    for number, entry in enumerate(entries):
        _, film, side, decision, revoked = entry
        stack = stacks.setdefault((film, side, decision.reader), [])
        if revoked:  # where a film has changed, earlier corrections are revoked, too
            said = _without_state(decision)
            alike = [k for k, (_, each) in enumerate(stack) if _without_state(each[3]) == said]
            at = alike[-1] if alike else len(stack) - 1
            del stack[at : at + 1]
        else:
            stack.append((number, entry))
    last = sorted((stack[-1][0], key) for key, stack in stacks.items() if stack)
    return {key: stacks[key][-1][1] for _, key in last}


def _without_state(decision: Decision) -> dict[str, Any]:
    """Return a decision without its state, which review.csv does not have of revoked ones."""
    return decision.to_dict() | {"state": ""}


def _entry(cells: list[str]) -> Entry:
    time, film, side, state, *area, loss, laterality, points, height, outlines = cells[:13]
    if side not in AREA_SIDES:
        raise ValueError("a side that no picture has")
    x, y, width, rotation = map(float, area)
    datetime.fromisoformat(time)
    landmarks = None
    if points:
        landmarks = {name: (float(x), float(y)) for name, (x, y) in json.loads(points).items()}
    decision = Decision(
        CORRECTED if state == UNDONE else state,
        Area(x, y, width, rotation),
        float(loss) if loss else None,
        "" if laterality == UNKNOWN else laterality or None,
        landmarks,
        float(height) if height else None,
        Outlines.from_dict(json.loads(outlines)) if outlines else None,
        **dict(zip(LONGEST, cells[13:], strict=True)),
    )
    return time, film, side, decision, state == UNDONE


def _cells(decision: Decision) -> list[str]:
    """Return the cells of a decision after its state."""
    *position, rotation = astuple(decision.area)
    numbers = [*(f"{value:.{PIXEL}f}" for value in position), f"{rotation:.{DEGREE}f}"]
    loss = "" if decision.loss is None else f"{decision.loss:.6f}"
    laterality = UNKNOWN if decision.laterality == "" else decision.laterality or ""
    landmarks = ""
    if decision.landmarks is not None:
        points = decision.landmarks.items()
        landmarks = json.dumps({name: [round(x, 3), round(y, 3)] for name, (x, y) in points})
    height = "" if decision.height_px is None else f"{decision.height_px:.3f}"
    outlines = "" if decision.outlines is None else json.dumps(decision.outlines.to_dict())
    texts = [getattr(decision, name) for name in LONGEST]
    return [*numbers, loss, laterality, landmarks, height, outlines, *texts]
