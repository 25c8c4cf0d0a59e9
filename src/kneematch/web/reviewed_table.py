"""detections.reviewed.csv: the rows of a run after its review."""

import math
from pathlib import Path
from typing import Final

from kneematch.detection.detection import Detection
from kneematch.export.tables import COLUMNS, CORNERS, PIXEL
from kneematch.io.csv_text import write_csv
from kneematch.web.correction import moved
from kneematch.web.detections_table import Rows
from kneematch.web.review_log import CORRECTED, Decision, Decisions

NAME: Final = "detections.reviewed.csv"
REJECTED: Final = "rejected"
DECISION: Final = "decision"


def write_reviewed(path: Path, rows: Rows, decisions: Decisions) -> int:
    """Write all rows but the rejected ones; return how many.

    Rows are as they were, but for the corrected ones, and have one more column: `decision`, which
    is empty for a row that nobody has decided about.
    """
    count = 0
    with write_csv(path, [*rows.columns, DECISION]) as add:
        for row, cells in enumerate(rows.cells):
            decision = decisions.of(row)
            if decision is not None and decision.what == REJECTED:
                continue
            if decision is not None and decision.what == CORRECTED:
                cells = _corrected(rows, decision)
            add([*cells, "" if decision is None else decision.what])
            count += 1
    return count


def _corrected(rows: Rows, decision: Decision) -> list[str]:
    """A row whose area was moved; the energy was the film's, as found, and is left out."""
    there = moved(rows.detection(decision.row), decision.area)
    numbers = _numbers(there) | {
        "loss": math.nan if decision.loss is None else decision.loss,
        "energy": math.nan,
    }
    texts = {name: _text(value, COLUMNS.get(name)) for name, value in numbers.items()}
    texts |= {"method": there.method}
    return [
        texts.get(name, cell)
        for name, cell in zip(rows.columns, rows.cells[decision.row], strict=True)
    ]


def _numbers(found: Detection) -> dict[str, float]:
    """What changes when an area is moved, by column."""
    return {
        "centre_x_px": found.centre[0],
        "centre_y_px": found.centre[1],
        "width_px": found.width_px,
        "height_px": found.height_px,
        "rotation_deg": found.rotation_deg,
        **dict(zip(CORNERS, found.corners.flatten().tolist(), strict=True)),
        **{
            f"{name}_{axis}_px": value
            for name, place in found.landmarks.items()
            for axis, value in zip("xy", place, strict=True)
        },
    }


def _text(value: float, decimals: int | None) -> str:
    return "" if math.isnan(value) else f"{value:.{PIXEL if decimals is None else decimals}f}"
