"""Tests of a knee's row in measurements.csv and knees.csv."""

from pathlib import Path

import numpy as np
import pytest

from detections import make_detection
from kneematch.knee.detection import Detection
from kneematch.knee.measure import JointMeasures, Outlines
from kneematch.run.config import DetectConfig
from kneematch.run.film_record import OK, FilmRecord
from kneematch.run.outputs.measurements import measurement_values, open_measurements
from tables import read_table


def test_measurement_values_say_where_minima_lie() -> None:
    """A joint space of 10 % that is narrowest at x = 0.2 medially and at the lateral inner end."""
    x = np.linspace(0, 1, 1001)
    gap = 0.1 - 0.05 * np.exp(-(((x - 0.2) / 0.03) ** 2)) + 0.02 * np.clip(x - 0.6, 0, 1)
    tibia = np.stack([200 * x, np.full_like(x, 100.0)], axis=1)
    outlines = Outlines(tibia - np.stack([0 * x, 200 * gap], axis=1), tibia, "left")
    values = measurement_values("film.dcm", measured(outlines))
    assert values["jsw_medial_minimum_pct"] == pytest.approx(5.0, abs=0.1)
    assert values["jsw_medial_minimum_x"] == pytest.approx(0.2, abs=0.01)
    assert values["jsw_lateral_minimum_x"] == pytest.approx(0.7)


def measured(outlines: Outlines) -> Detection:
    return make_detection(measures=JointMeasures.from_outlines(outlines))


@pytest.mark.parametrize(
    ("unclear", "expected"),
    [
        ((0.0, 0.5), "medial: outline not clear; "),
        ((0.0, 1.0), "medial, lateral: outline not clear; "),
        ((0.14, 0.181), "jsw_x150, jsw_x175: outline not clear; "),
        ((0.0, 0.0), ""),
    ],
)
def test_measurement_values_name_a_compartment_without_measures(
    unclear: tuple[float, float], expected: str
) -> None:
    x = np.linspace(0, 1, 101)
    sd = np.where((unclear[0] <= x) & (x < unclear[1]), 13.5, 0.1)
    tibia, up = np.stack([200 * x, np.full_like(x, 100.0)], axis=1), np.array([0, 20])
    outlines = Outlines(tibia - up, tibia, "left", sd, sd)
    values = measurement_values("film.dcm", measured(outlines))
    assert values["reason"] == f"{expected}tibiofemoral_angle: shaft too short"


def test_open_measurements_writes_the_main_measures_to_knees_csv(tmp_path: Path) -> None:
    x = np.linspace(0, 200, 11)
    tibia = np.stack([x, np.full_like(x, 100.0)], axis=1)
    outlines = Outlines(tibia - [0, 20], tibia, "left")
    with open_measurements(tmp_path, DetectConfig(measure=True)) as add:
        add(FilmRecord(1, "a/film.dcm", "name", status=OK, knees=(measured(outlines),)))
    (row,) = read_table(tmp_path / "knees.csv")
    told = row["film"], row["image_side"], row["jsw_minimum_pct"]
    assert told == ("a/film.dcm", "right", "10.0000")
