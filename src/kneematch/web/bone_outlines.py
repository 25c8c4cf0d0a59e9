"""Outlines and measures of a run's knees, for the review page."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field

from kneematch.errors import SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.films.run_folder import RUN
from kneematch.knee.detection import Detection
from kneematch.knee.measure import PERCENT, measure_outlines
from kneematch.run.apply import run_config
from kneematch.run.decisions import check_outlines
from kneematch.run.outputs.run_file import read_run

MAX_POINTS: Final = 1000  # of a border that is drawn
SHOWN: Final = {  # the medial and the lateral measure of each line of the table
    "Minimum": ("jsw_medial_minimum", "jsw_lateral_minimum"),
    "x = 0.25, 0.75": ("jsw_x250", "jsw_x750"),
}

Border = Annotated[list[tuple[float, float]], Field(min_length=2, max_length=MAX_POINTS)]


@dataclass(frozen=True, slots=True)
class Borders:
    """Body of a request: the borders of femur and tibia, points (x, y) in film pixels."""

    femur: Border
    tibia: Border


@dataclass(frozen=True, slots=True)
class Outliner:
    """How a run outlined and measured its knees."""

    network: str | None  # file of the outline network; None for the built-in one
    sha256: str | None  # of that file
    magnification: float  # 1 where it is not known

    def outline(self, knee: Detection, film: Radiograph, *, placed: bool) -> Detection:
        """Return a knee with outlines and measures; `placed` if a reviewer corrected it.

        Raises:
            SettingsError: Another network lies in the place of the run's.
        """
        from kneematch.knee.measuring import (
            measure_knees,
            measure_placed_knees,
            outline_network,
        )
        from kneematch.run.measure_rows import outline_hash  # imports SciPy, which is slow

        if outline_hash(self.network)["outlines"] != self.sha256:
            raise SettingsError(
                f"{self.network or 'the built-in outline network'}: not the outline network of the "
                "run; expected that; put it back, or detect again"
            )
        measure = measure_placed_knees if placed else measure_knees
        return measure(film, [knee], outline_network(self.network))[0]

    def measures_table(self, knee: Detection) -> dict[str, Any]:
        """Return the main measures as texts: a unit, and lines of name, medial, lateral width.

        The unit is mm where the film has spacing, else percent of the plateau's width.
        """
        width_mm = None if knee.outlines is None else knee.outlines.width_mm
        unit, decimals, factor = "% of the plateau", 1, 1.0
        if width_mm is not None:
            unit, decimals, factor = "mm", 2, width_mm / self.magnification / PERCENT

        def text(name: str) -> str:
            measure = knee.measures[name]
            if measure.value is None:
                return measure.reason
            spread = "" if measure.sd is None else f" ± {factor * measure.sd:.{decimals}f}"
            return f"{factor * measure.value:.{decimals}f}{spread}"

        lines = [(label, *map(text, names)) for label, names in SHOWN.items()]
        return {"unit": unit, "lines": lines}


def load_outliner(out: Path, root: Path) -> Outliner | None:
    """Return how a run outlined its knees; None if it did not, or if its run.json is not there.

    A relative path of its outline network is taken from `root`.
    """
    try:
        run = read_run(out / RUN)
        config = run_config(run)
    except SettingsError:
        return None
    if not config.measure:
        return None
    network = None if config.outlines is None else str(root / config.outlines)
    return Outliner(network, run.hashes.get("outlines"), config.magnification or 1.0)


def draw_borders(knee: Detection, borders: Borders) -> Detection:
    """Return an outlined knee with borders that a reviewer drew, and their measures.

    Raises:
        SettingsError: No borders on a film look like that.
    """
    if knee.outlines is None:
        raise SettingsError("a knee without outlines; expected some; save the knee first")
    femur, tibia = (np.array(line, np.float64).round(3) for line in (borders.femur, borders.tibia))
    drawn = knee.outlines.redrawn(femur, tibia)
    check_outlines(drawn)
    return replace(knee, outlines=drawn, measures=measure_outlines(drawn))


def borders_of(knee: Detection) -> dict[str, Any] | None:
    """Return the borders of a knee as `Borders` has them; None if it has no outlines."""
    if knee.outlines is None:
        return None
    return {name: getattr(knee.outlines, name).round(3).tolist() for name in ("femur", "tibia")}
