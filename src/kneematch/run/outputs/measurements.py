"""Measures of a run as CSV, one row per knee, and outlines as JSON."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kneematch.films.csv_text import Cell
from kneematch.knee.detection import DEGREE, PIXEL, Detection
from kneematch.knee.measure import (
    ANGLE,
    COMPARTMENTS,
    FIXED_WIDTHS,
    LATERAL,
    MEDIAL,
    PICTURE_UNITS,
    UNITS,
    JointMeasures,
    Outlines,
    in_mm,
    landmarks,
    narrowest_place,
)
from kneematch.run.config import DetectConfig
from kneematch.run.film_record import FilmRecord
from kneematch.run.outputs.tables import (
    SPACING,
    Columns,
    json_list,
    open_json,
    open_table,
    review_text,
)

MEASUREMENTS: Final = "measurements.csv"
KNEES: Final = "knees.csv"
OUTLINES: Final = "outlines.json"
FORMAT: Final = "kneematch-outlines/2"
MM: Final = {"pct": "mm", "pct2": "mm2"}
DECIMALS: Final = 4

COLUMNS: Final[Columns] = {
    **dict.fromkeys(("film", "image_side", "laterality", "medial")),
    "plateau_width_px": PIXEL,
    "plateau_width_mm": DECIMALS,
    "mm_per_px": SPACING,
    "magnification": DECIMALS,
    **{
        f"{name}_{column}": DEGREE if unit == ANGLE else DECIMALS
        for name, unit in (UNITS | PICTURE_UNITS).items()
        for column in (unit, f"{unit}_sd", MM.get(unit))
        if column is not None
    },
    **{f"jsw_{name}_minimum_x": DECIMALS for name in COMPARTMENTS},
    "review": None,
    "reason": None,
}

# knees.csv: what a statistician opens first.
MAIN: Final = (
    *("jsw_minimum_pct", "jsw_minimum_mm", "jsw_medial_minimum_pct", "jsw_lateral_minimum_pct"),
    *("jsw_medial_mean_pct", "jsw_lateral_mean_pct", "jsw_x225_pct", "jsw_x250_pct"),
    *("joint_line_angle_deg", "tibiofemoral_angle_deg"),
)
KNEE_COLUMNS: Final[Columns] = {
    **dict.fromkeys(("film", "image_side", "laterality", "medial")),
    "plateau_width_mm": DECIMALS,
    **dict.fromkeys(MAIN, DECIMALS),
    **dict.fromkeys(("review", "reason", "decision")),
}


@contextmanager
def open_measurements(folder: Path, config: DetectConfig) -> Iterator[Callable[[FilmRecord], None]]:
    """Yield a function that adds a film's knees to the tables of measures and outlines.json."""
    with (
        open_table(folder / MEASUREMENTS, COLUMNS) as add_row,
        open_table(folder / KNEES, KNEE_COLUMNS) as add_main,
        open_json(folder / OUTLINES) as file,
    ):
        file.write(f'{{"format": {json.dumps(FORMAT)}, "knees": [')
        add_outlines = json_list(file)

        def add(film: FilmRecord) -> None:
            for knee in (each for each in film.kept if not each.template):
                values = measurement_values(film.path, knee) | {
                    "magnification": config.magnification
                }
                add_row(values)
                add_main(values | {"decision": knee.decision} | _smaller_minimum(values))
                if knee.measures is not None:
                    add_outlines(_outline_record(film.path, knee, knee.measures.outlines))

        yield add
        file.write("\n]}\n")


def measurement_values(film: str, knee: Detection) -> dict[str, Cell]:
    """Return the values of a knee by column; those that are left out are missing."""
    values: dict[str, Cell] = {
        "film": film,
        "image_side": knee.side,
        "laterality": knee.laterality,
        "review": review_text(knee),
    }
    reasons = list(knee.reasons)
    if knee.measures is None:
        return values | {"reason": "; ".join(reasons)}
    outlines = knee.measures.outlines
    values["medial"] = outlines.medial
    values["plateau_width_px"] = outlines.width_px
    values["mm_per_px"] = outlines.mm_per_px
    values["plateau_width_mm"] = outlines.width_mm
    for name, measure in knee.measures.values.items():
        values[f"{name}_{measure.unit}"] = measure.value
        values[f"{name}_{measure.unit}_sd"] = measure.sd
        values[f"{name}_{MM.get(measure.unit)}"] = in_mm(measure, outlines)
    for name in COMPARTMENTS:
        if values.get(f"jsw_{name}_minimum_pct") is not None:
            values[f"jsw_{name}_minimum_x"] = narrowest_place(outlines, name)
    reasons += _reasons_left_out(knee.measures, "; ".join(reasons))
    return values | {"reason": "; ".join(reasons)}


def _smaller_minimum(values: dict[str, Cell]) -> dict[str, Cell]:
    """Return the smaller minimum width of both compartments, where both are known."""
    smaller: dict[str, Cell] = {}
    for unit in ("pct", "mm"):
        for one, other in (("medial", "lateral"), ("left", "right")):
            both = [values.get(f"jsw_{name}_minimum_{unit}") for name in (one, other)]
            widths = [float(width) for width in both if width is not None]
            if len(widths) == len(both):
                smaller[f"jsw_minimum_{unit}"] = min(widths)
    return smaller


def _reasons_left_out(measures: JointMeasures, known: str) -> list[str]:
    """Return why measures are left out, unless the reason is known already.

    A compartment without any measure is named as a whole.
    """
    parts: dict[str, dict[str, str]] = defaultdict(dict)
    for name, measure in measures.values.items():
        parts[_part(name)][name] = measure.reason
    left_out: dict[str, list[str]] = defaultdict(list)  # names by reason
    for part, reasons in parts.items():
        one = set(reasons.values())
        for name, reason in ({part: one.pop()} if len(one) == 1 else reasons).items():
            left_out[reason].append(name)
    return [
        f"{', '.join(names)}: {reason}"
        for reason, names in left_out.items()
        if reason and reason not in known
    ]


def _part(measure: str) -> str:
    """Return the compartment of a measure; an angle is a part of its own."""
    if measure in FIXED_WIDTHS:
        return MEDIAL if FIXED_WIDTHS[measure] < 0.5 else LATERAL
    return next((name for name in COMPARTMENTS if name in measure), measure)


def _outline_record(film: str, knee: Detection, outlines: Outlines) -> dict[str, Any]:
    """Return the outlines of a knee as JSON can hold them."""
    places = landmarks(outlines)
    return {
        "film": film,
        "image_side": knee.side,
        "polarity": knee.polarity,
        **outlines.to_dict(),
        "landmarks": {name: [round(x, 3), round(y, 3)] for name, (x, y) in places.items()},
    }
