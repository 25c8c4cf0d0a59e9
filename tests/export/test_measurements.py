"""Tests of a knee's row in measurements.csv."""

import numpy as np
import pytest

from kneematch.detection.detection import Detection
from kneematch.export.measurements import measurement_values
from kneematch.measures.measure import measure_outlines
from kneematch.measures.outlines import Outlines


def test_measurement_values_say_where_minima_lie() -> None:
    """A joint space of 10 % that is narrowest at x = 0.2 medially and at the lateral inner end."""
    x = np.linspace(0, 1, 1001)
    gap = 0.1 - 0.05 * np.exp(-(((x - 0.2) / 0.03) ** 2)) + 0.02 * np.clip(x - 0.6, 0, 1)
    tibia = np.stack([200 * x, np.full_like(x, 100.0)], axis=1)
    outlines = Outlines(tibia - np.stack([0 * x, 200 * gap], axis=1), tibia, "left")
    knee = Detection.from_matrix(
        np.diag([140.0, 140.0, 1.0]),
        {},
        side="right",
        laterality="",
        energy=0.1,
        loss=0.1,
        polarity="positive",
        method="locator",
        mm_per_px=None,
        outlines=outlines,
        measures=measure_outlines(outlines),
    )
    values = measurement_values("film.dcm", knee)
    assert values["jsw_medial_minimum_pct"] == pytest.approx(5.0, abs=0.1)
    assert values["jsw_medial_minimum_x"] == pytest.approx(0.2, abs=0.01)
    assert values["jsw_lateral_minimum_x"] == pytest.approx(0.7)
