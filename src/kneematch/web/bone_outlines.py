"""Outlines and measures of a run's knees, for the review page."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field

from kneematch.errors import SettingsError
from kneematch.films.radiograph import Radiograph
from kneematch.knee.decision import check_outlines
from kneematch.knee.detection import Detection
from kneematch.knee.measure import PERCENT, JointMeasures
from kneematch.run.apply import ended_run, run_config
from kneematch.run.config import DetectConfig
from kneematch.run.database import Run

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
    """How a run outlines and measures knees that a reviewer placed."""

    config: DetectConfig  # settings of the run
    sha256: str | None  # SHA-256 of the file of its outline network

    def measures(self, knee: Detection, film: Radiograph) -> JointMeasures:
        """Return the outlines and measures of a knee that a reviewer placed.

        Raises:
            SettingsError: another network lies in the place of the run's.
        """
        from kneematch.knee.measuring import measure_placed_knees, outline_network  # SciPy is slow

        if self.config.outline_hash()["outlines"] != self.sha256:
            file = self.config.outlines or "The built-in outline network"
            raise SettingsError(
                f"{file} is not the outline network of the run. Put it back, or detect again."
            )
        network = outline_network(self.config.outlines)
        (measured,) = measure_placed_knees(film, [knee], network)
        if measured.measures is None:
            raise SettingsError("The knee cannot be measured.")
        return measured.measures

    def table(self, measures: JointMeasures) -> dict[str, Any]:
        """Return the main measures as texts: a unit, and lines of name, medial, lateral width.

        The unit is mm where the film has spacing, else percent of the plateau's width.
        """
        width_mm = measures.outlines.width_mm
        unit, decimals, factor = "% of the plateau", 1, 1.0
        if width_mm is not None:
            unit, decimals = "mm", 2
            factor = width_mm / (self.config.magnification or 1.0) / PERCENT

        def text(name: str) -> str:
            measure = measures.values[name]
            if measure.value is None:
                return measure.reason
            spread = "" if measure.sd is None else f" ± {factor * measure.sd:.{decimals}f}"
            return f"{factor * measure.value:.{decimals}f}{spread}"

        lines = [(label, *map(text, names)) for label, names in SHOWN.items()]
        return {"unit": unit, "lines": lines}


def load_outliner(run: Run, root: Path) -> Outliner | None:
    """Return how a run outlines knees; None if it measures none.

    A relative path of its outline network is taken from `root`.
    """
    config = run_config(run)
    if not config.measure:
        return None
    if config.outlines is not None:
        config = replace(config, outlines=str(root / config.outlines))
    return Outliner(config, ended_run(run).hashes.get("outlines"))


def draw_borders(measures: JointMeasures, borders: Borders) -> JointMeasures:
    """Return outlines with borders that a reviewer drew, and their measures.

    Raises:
        SettingsError: no borders on a film look like that.
    """
    femur, tibia = (np.array(line, np.float64).round(3) for line in (borders.femur, borders.tibia))
    drawn = measures.outlines.redrawn(femur, tibia)
    check_outlines(drawn)
    return JointMeasures.from_outlines(drawn)


def borders_of(measures: JointMeasures) -> dict[str, Any]:
    """Return borders as `Borders` has them."""
    lines = measures.outlines
    return {name: getattr(lines, name).round(3).tolist() for name in ("femur", "tibia")}
