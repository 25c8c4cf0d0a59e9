"""Tests of a knee's row in measurements.csv."""

import csv
import hmac
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kneematch.errors import SettingsError
from kneematch.knee.detection import Detection
from kneematch.knee.measure import JointMeasures, Outlines
from kneematch.run.config import DetectConfig
from kneematch.run.film_record import OK, FilmRecord
from kneematch.run.outputs.measurements import measurement_values, open_measurements

KEY = b"sixteen bytes or more"


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
    return Detection.from_matrix(
        np.diag([140.0, 140.0, 1.0]),
        {},
        side="right",
        method="locator",
        measures=JointMeasures.from_outlines(outlines),
    )


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


def write_knees(folder: Path, film: str, **settings: Any) -> dict[str, str]:
    """Write a knee of a film to the tables of a run; return its row of knees.csv."""
    x = np.linspace(0, 200, 11)
    tibia = np.stack([x, np.full_like(x, 100.0)], axis=1)
    outlines = Outlines(tibia - [0, 20], tibia, "left")
    with open_measurements(folder, DetectConfig(measure=True, **settings)) as add:
        add(FilmRecord(1, film, "name", status=OK, knees=(measured(outlines),)))
    with (folder / "knees.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    return row


def test_open_measurements_takes_patient_and_visit_from_the_path(tmp_path: Path) -> None:
    film, patterns = "study/P0042/v2/P0042.dcm", {"patient_from_path": "/(P[0-9]+)/"}
    row = write_knees(tmp_path, film)
    assert (row["patient"], row["visit"], row["film"]) == ("", "", film)
    row = write_knees(tmp_path, film, visit_from_path="/v([0-9])/", **patterns)
    assert (row["patient"], row["visit"], row["film"]) == ("P0042", "2", film)
    assert write_knees(tmp_path, "other.dcm", **patterns)["patient"] == ""


def test_open_measurements_hashes_patients_with_a_key(tmp_path: Path) -> None:
    key, settings = tmp_path / "key", {"patient_from_path": "(P[0-9]+)"}
    key.write_bytes(KEY + b"\r\n")  # of the editor
    row = write_knees(tmp_path, "a/P0042/P0042.dcm", hash_patients=str(key), **settings)
    assert row["patient"] == hmac.new(KEY, b"P0042", "sha256").hexdigest()[:16]
    assert row["film"] == f"a/{row['patient']}/{row['patient']}.dcm"
    row = write_knees(tmp_path, "a/p0042.dcm", hash_patients=str(key), **settings)
    assert row["film"] == hmac.new(KEY, b"a/p0042.dcm", "sha256").hexdigest()[:16]
    assert row["patient"] == ""
    for wrong, message in ((b"short", "16 or more bytes"), (None, "cannot be read")):
        key.unlink() if wrong is None else key.write_bytes(wrong)
        with pytest.raises(SettingsError, match=message):
            write_knees(tmp_path, "P1.dcm", hash_patients=str(key), **settings)
    os.mkfifo(key)  # which is not waited for
    with pytest.raises(SettingsError, match="cannot be read"):
        write_knees(tmp_path, "P1.dcm", hash_patients=str(key), **settings)
